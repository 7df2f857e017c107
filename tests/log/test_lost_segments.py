"""Closed segments whose files are gone, emptied, garbled or cut: always damage, never silence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import headwater
from headwater import Consumer, FrameDamaged, PartitionConfig, RecordsDamaged
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Damage, DirectoryPartition, encode
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, seed_of
from headwater.log.files.segment_list import LIST_FILE
from headwater.log.maintain.check import Check
from tests.faults.specimen import copy
from tests.support.backends import OpenDirectory
from tests.support.command import Command, local_hw

__all__ = ["local_hw"]

KEYS: Final = 90


def deleted(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def garbled(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))


def cut(path: Path) -> None:
    """Cut a segment where its last frame begins."""
    header = Segment.read(path).header
    with path.open("r+b") as file:
        frames = FrameFile(file.fileno(), path.stat().st_size, seed_of(header.partition), path)
        file.truncate([position for position, _ in frames.walk(SEGMENT_HEADER_BYTES)][-1])


def foreign(path: Path) -> None:
    """Put the file of another time in its place, as long as it was."""
    header = Segment.read(path).header
    with path.open("r+b") as file:
        file.write(header._replace(log=b"another log 1234").pack())


def pipe(path: Path) -> None:
    """Put a pipe in its place, which blocks those who open it as a file."""
    path.unlink()
    os.mkfifo(path)


Harm = Callable[[Path], None]
HARM: Final[list[Harm]] = [deleted, emptied, garbled, cut, foreign, pipe]


def fill(path: Path, *, compact: bool) -> dict[int, bytes]:
    """A log of small segments, with the newest record of each key if it is compacted; what is in it."""
    with DirectoryPartition(path, PartitionConfig(segment_bytes=4096)) as partition:
        for number in range(KEYS):
            partition.append(encode([b"%d" % number * 100], keys=[b"often" if number % 3 == 0 else b"k%d" % number]))
        if compact:
            partition.roll()
            assert partition.compact().removed_records
        return {record.offset: record.value for record in partition.records()}


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def look(path: Path) -> tuple[dict[int, bytes], set[int]]:
    """Return the records that can be read, and the offsets that are named as lost."""
    lost: list[Damage] = []
    with DirectoryPartition(path) as partition:
        readable = {record.offset: record.value for record in partition.records(on_damage=lost.append)}
    return readable, {offset for damage in lost for offset in range(damage.offset, damage.next_offset)}


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("number", [0, 2, -2])
@pytest.mark.parametrize("harm", HARM)
def test_what_is_lost_of_a_closed_segment_is_damage_for_everyone(
    tmp_path: Path, harm: Harm, number: int, compact: bool
) -> None:
    path = tmp_path / "log"
    written = fill(path, compact=compact)
    file = segments(path)[number]
    harm(file)
    with DirectoryPartition(path) as partition:
        start, end, _ = partition.bounds()
        assert start == 0
        with pytest.raises(FrameDamaged):
            list(partition.records())
        with pytest.raises(FrameDamaged):
            partition.scan().read_all()
        lost: list[Damage] = []
        readable = {record.offset: record.value for record in partition.records(on_damage=lost.append)}
        named = {offset for damage in lost for offset in range(damage.offset, damage.next_offset)}
        assert {damage.file for damage in lost} == {file}
        gone = written.keys() - readable.keys()
        assert gone
        assert gone <= named
        assert not named & readable.keys()
        assert all(written[offset] == value for offset, value in readable.items())
        assert partition.statistics().damaged == 1
        for offset in gone:
            extent = partition.locate(offset, end, 1 << 20)
            assert extent is None, "nothing that is lost has a place"
            with pytest.raises(FrameDamaged):
                partition.read(offset)
        assert partition.append(encode([b"on"])).base_offset == end
        partition.roll()
    assert look(path) == (readable | {end: b"on"}, named)
    findings = [finding for finding in Check(path).run() if finding.kind == "damage"]
    told = {
        offset
        for finding in findings
        if finding.offset is not None and finding.next_offset is not None
        for offset in range(finding.offset, finding.next_offset)
    }
    assert told == named


@pytest.mark.parametrize("harm", [deleted, emptied, cut])
def test_lost_segments_are_told_without_reading_them(tmp_path: Path, harm: Harm) -> None:
    path = tmp_path / "log"
    fill(path, compact=True)
    with DirectoryPartition(path) as partition:
        assert partition.missing() == []
    file = segments(path)[2]
    harm(file)
    with DirectoryPartition(path) as partition:
        [lost] = partition.missing()
        assert lost.file == file
        assert partition.statistics().damaged == 1


@pytest.mark.parametrize("compact", [False, True])
def test_deleting_the_records_ends_the_damage(tmp_path: Path, compact: bool) -> None:
    path = tmp_path / "log"
    fill(path, compact=compact)
    deleted(segments(path)[1])
    with DirectoryPartition(path) as partition:
        assert partition.statistics().damaged == 1
        closed = partition.closed()
        partition.delete_before(closed[2].first)
        assert partition.statistics().damaged == 0
        assert partition.missing() == []
        list(partition.records())
    assert not [finding for finding in Check(path).run() if finding.kind == "damage"]


@pytest.mark.parametrize("compact", [False, True])
def test_bytes_behind_a_closed_segment_are_named_and_cost_no_record(tmp_path: Path, compact: bool) -> None:
    path = tmp_path / "log"
    written = fill(path, compact=compact)
    file = segments(path)[1]
    size = file.stat().st_size
    with file.open("ab") as appended:
        appended.write(b"HWF1 garbage" * 20)
    assert look(path) == (written, set())
    with DirectoryPartition(path) as partition:
        assert partition.statistics().damaged == 0
    [finding] = [finding for finding in Check(path).run() if finding.kind == "damage"]
    assert (finding.file, finding.position, finding.offset, finding.next_offset) == (file, size, None, None)
    assert "when it was closed" in finding.reason


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("how", ["missing", "empty", "an entry", "the header", "older"])
def test_a_lost_list_is_made_anew_and_reported(tmp_path: Path, how: str, compact: bool) -> None:
    path = tmp_path / "log"
    written = fill(path, compact=compact)
    file = path / LIST_FILE
    content = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
    elif how == "older":
        file.write_bytes(content[:-256])
    else:
        content[{"empty": 0, "an entry": 300, "the header": 10}[how]] ^= 1
        file.write_bytes(b"" if how == "empty" else content)
    assert look(path) == (written, set())
    with DirectoryPartition(path) as partition:
        partition.statistics()
        assert partition.statistics().damaged == 0
    with DirectoryPartition(path) as partition:
        assert partition.recovery_reports == [], "once"


@pytest.mark.parametrize(
    ("harm", "compact"),
    [
        (harm, compact)
        for harm in (deleted, emptied, garbled, cut)
        for compact in (False, True)
        if harm is not deleted or not compact
    ],
)
def test_a_list_that_is_lost_with_a_part_of_a_segment_hides_nothing(tmp_path: Path, harm: Harm, compact: bool) -> None:
    path = tmp_path / "log"
    written = fill(path, compact=compact)
    harm(segments(path)[1])
    (path / LIST_FILE).unlink()
    readable, named = look(path)
    assert written.keys() - readable.keys()
    assert written.keys() - readable.keys() <= named
    with DirectoryPartition(path) as partition, pytest.raises(FrameDamaged):
        list(partition.records())


def test_a_partition_of_an_older_version_gets_its_list_without_a_word(open_directory: OpenDirectory) -> None:
    golden = Path(__file__).parents[1] / "golden" / "log"
    with open_directory() as empty:
        path = empty.path
    copy(golden, path.with_name("old"))
    with DirectoryPartition(path.with_name("old")) as partition:
        assert partition.recovery_reports == []
        assert len(partition.closed()) == 1
        before = list(partition.records())
        partition.roll()
        assert list(partition.records()) == before
    assert (path.with_name("old") / LIST_FILE).stat().st_size == 3 * 128


# Stores.


def drain(inbox: Consumer) -> None:
    """Read until there is an error."""
    while records := inbox.poll(timeout=60):
        for record in records:
            inbox.ack(record)


@pytest.fixture
def compacted(local_hw: Command) -> Command:
    """The case of a user: keys in a compacted topic, over many segments."""
    with headwater.open(local_hw.store) as store:
        store.create_topic("keys", compact=True, segment_bytes=4096)
        with store.producer("keys") as out:
            for number in range(KEYS):
                out.send(b"%d" % number * 200, b"often" if number % 3 == 0 else b"k%d" % number)
                out.flush()
        assert isinstance(store, DirectoryStore)
        store.topic("keys").partition(0).compact()
    return local_hw


@pytest.mark.parametrize("harm", HARM)
def test_a_store_with_a_lost_segment_is_unhealthy_and_is_not_backed_up(
    compacted: Command, tmp_path: Path, harm: Harm
) -> None:
    harm(segments(Path(compacted.store) / "keys" / "0")[2])
    compacted.binary("check", compacted.store, code=1, refused=False)
    compacted("backup", tmp_path / "backup", code=1)
    assert not (tmp_path / "backup" / "manifest.json").exists()
    with headwater.open(compacted.store) as store:
        if harm not in (garbled, foreign):  # those are met by reading, or by the scrubber
            assert store.topic("keys").statistics().unhealthy == (0,)
        with store.consumer("keys", group="g") as inbox, pytest.raises(RecordsDamaged):
            drain(inbox)
        assert store.statistics().unhealthy == ("keys/0",)


def test_a_backup_that_has_lost_a_segment_is_not_restored(compacted: Command, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    compacted("backup", backup)
    compacted("restore", backup, "--verify")
    deleted(segments(backup / "store" / "keys" / "0")[2])
    compacted("restore", backup, "--verify", code=1, text="missing")
    compacted("restore", backup, tmp_path / "restored", code=1, text="missing")
    assert not (tmp_path / "restored").exists()


def test_the_list_is_shown_with_what_became_of_the_files(compacted: Command) -> None:
    path = Path(compacted.store) / "keys" / "0"
    lost = segments(path)[2]
    deleted(lost)
    shown = compacted.json("inspect", path / LIST_FILE)
    assert shown["count"] == len(segments(path))
    assert {entry["base"]: entry["problem"] for entry in shown["entries"] if entry["problem"]} == {
        int(lost.stem): "missing"
    }
    assert "missing" in compacted("inspect", path / LIST_FILE)


def test_a_pipe_in_the_place_of_the_growing_segment_blocks_nobody(tmp_path: Path) -> None:
    fill(tmp_path / "log", compact=False)
    pipe(max((tmp_path / "log").glob("*.log")))
    with DirectoryPartition(tmp_path / "log") as partition:
        end = partition.bounds().end
        with pytest.raises(FrameDamaged):
            list(partition.records())
        assert partition.append(encode([b"after"])).base_offset == end
