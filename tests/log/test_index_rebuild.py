"""The index is a convenience: missing or damaged it is made anew, and no offset changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater import PartitionConfig
from headwater.log import Appended, DirectoryPartition, encode
from tests.support.backends import OpenDirectory

CONFIG = PartitionConfig(index_interval=256)
RECORDS = 90


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "noise": lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
    "a bad header": lambda path: flip(path, 20),
    "a bad first entry": lambda path: flip(path, 64 + 3),
    "a bad last entry": lambda path: flip(path, path.stat().st_size - 20),
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 16),
    "another segment's": lambda path: path.write_bytes(next(p for p in siblings(path) if p != path).read_bytes()),
}


def siblings(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.index"))


@pytest.fixture
def closed(open_directory: OpenDirectory) -> DirectoryPartition:
    """A closed log of ninety records whose values and timestamps are their offsets, in three segments."""
    with open_directory(CONFIG) as partition:
        for base in range(0, RECORDS, 3):
            if base in (30, 60):
                partition.roll()
            partition.append(encode([b"%d" % (base + i) for i in range(3)], timestamps=range(base, base + 3)))
    assert len(list(partition.path.glob("*.index"))) == 3
    return partition


def check(partition: DirectoryPartition) -> None:
    assert partition.bounds() == (0, RECORDS, RECORDS)
    for start in range(0, RECORDS + 1, 4):
        records = list(partition.records(start))
        assert [(record.offset, record.value) for record in records] == [(i, b"%d" % i) for i in range(start, RECORDS)]
        assert partition.offset_at(start) == start if start < RECORDS else None


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, 2], ids=["closed segment", "growing segment"])
def test_a_damaged_index_is_made_anew(
    open_directory: OpenDirectory, closed: DirectoryPartition, number: int, damage: str
) -> None:
    DAMAGES[damage](siblings(closed.path / "x")[number])
    with open_directory(CONFIG) as partition:
        check(partition)
        assert partition.append(encode([b"next"])) == Appended(RECORDS, RECORDS + 1)
        assert partition.statistics().damaged == 0
    assert len(siblings(closed.path / "x")) == 3


def test_a_missing_index_of_the_growing_segment_is_reported(
    open_directory: OpenDirectory, closed: DirectoryPartition
) -> None:
    siblings(closed.path / "x")[2].unlink()
    (report,) = open_directory(CONFIG).recovery_reports
    assert report.rebuilt == [f"{60:020d}.index"]
    assert "rebuilt" in str(report)


def test_all_indexes_can_be_missing_while_the_log_is_open(open_directory: OpenDirectory) -> None:
    partition = open_directory(CONFIG)
    for base in range(0, RECORDS, 3):
        if base in (30, 60):
            partition.roll()
        partition.append(encode([b"%d" % (base + i) for i in range(3)], timestamps=range(base, base + 3)))
        for path in siblings(partition.path / "x"):
            path.unlink()
    check(partition)


def test_an_index_that_was_rebuilt_is_used(open_directory: OpenDirectory, closed: DirectoryPartition) -> None:
    originals = {path: path.read_bytes() for path in siblings(closed.path / "x")[:2]}
    for path in originals:
        path.unlink()
    partition = open_directory(CONFIG)
    list(partition.records(29))
    list(partition.records(59))
    assert {path: path.read_bytes() for path in originals} == originals


def test_offsets_survive_retention_and_rebuilding(open_directory: OpenDirectory, closed: DirectoryPartition) -> None:
    with open_directory(CONFIG) as partition:
        partition.delete_before(45)
    for path in siblings(closed.path / "x"):
        path.unlink()
    (closed.path / "state").unlink()
    with open_directory(CONFIG) as partition:
        assert partition.bounds() == (45, RECORDS, RECORDS)
        assert [record.value for record in partition.records()] == [b"%d" % i for i in range(45, RECORDS)]
        assert partition.append(encode([b"next"])).base_offset == RECORDS
