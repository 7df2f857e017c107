"""Recovery: what an opener finds is put in order, nothing acknowledged is lost, and it is reported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headwater import Damaged, FrameDamaged, PartitionConfig
from headwater.log import Appended, Damage, DirectoryPartition, encode
from tests.support.backends import OpenDirectory


def log(partition: DirectoryPartition, base: int = 0) -> Path:
    return partition.path / f"{base:020d}.log"


def values(partition: DirectoryPartition) -> list[bytes]:
    return [record.value for record in partition.records()]


@pytest.fixture
def closed(open_directory: OpenDirectory) -> DirectoryPartition:
    """A closed log of six records, in two segments of three frames."""
    with open_directory() as partition:
        for number in range(6):
            if number == 3:
                partition.roll()
            partition.append(encode([b"%d" % number * 100]))
    return partition


EXPECTED = [b"%d" % number * 100 for number in range(6)]


def interrupt(partition: DirectoryPartition) -> None:
    """Leave the beginning of an append behind the log, as a writer does that dies: the next opening recovers."""
    with log(partition, 3).open("ab") as file:
        file.write(b"HWF1")


@pytest.mark.usefixtures("closed")
def test_a_clean_log_has_nothing_to_report(open_directory: OpenDirectory) -> None:
    again = open_directory()
    assert again.recovery_reports == []
    assert again.statistics().recoveries == 0


@pytest.mark.parametrize("how", ["missing", "empty", "noise", "zeros"])
def test_the_state_is_made_anew_from_the_log(
    open_directory: OpenDirectory, closed: DirectoryPartition, how: str
) -> None:
    path = closed.path / "state"
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "noise": os.urandom(1024), "zeros": bytes(1024)}[how])
    with open_directory() as again:
        (report,) = again.recovery_reports
        assert report.rebuilt[:1] == ["state"]
        assert not report.damage
        assert values(again) == EXPECTED
        assert again.append(encode([b"next"])) == Appended(6, 7)
        assert again.statistics().recoveries == 1
    assert open_directory().recovery_reports == []


@pytest.mark.parametrize("half", [0, 1])
def test_one_damaged_copy_of_the_state_does_no_harm(
    open_directory: OpenDirectory, closed: DirectoryPartition, half: int
) -> None:
    path = closed.path / "state"
    content = bytearray(path.read_bytes())
    content[half * 512 + 60] ^= 0xFF
    path.write_bytes(content)
    again = open_directory()
    assert values(again) == EXPECTED
    assert again.append(encode([b"next"])) == Appended(6, 7)


def test_a_torn_end_is_cut(open_directory: OpenDirectory, closed: DirectoryPartition) -> None:
    frame = log(closed, 3).read_bytes()[80:300]
    with log(closed, 3).open("ab") as file:
        file.write(frame)
    again = open_directory()
    (report,) = again.recovery_reports
    assert report.cut_bytes == 220
    assert report.adopted_records == 0
    assert "cut 220 bytes of an unfinished append" in str(report)
    assert values(again) == EXPECTED
    assert again.append(encode([b"next"])) == Appended(6, 7)


def test_a_torn_end_is_cut_by_whoever_appends_next(open_directory: OpenDirectory) -> None:
    partition, other = open_directory(), open_directory()
    partition.append(encode([b"a"]))
    with log(partition).open("ab") as file:
        file.write(os.urandom(333))
    assert other.append(encode([b"b"])) == Appended(1, 2)
    assert values(partition) == [b"a", b"b"]
    assert [report.cut_bytes for report in other.recovery_reports] == [333]


@pytest.mark.parametrize(
    "content",
    [b"", b"not a segment", bytes(200), os.urandom(500)],
    ids=["empty", "text", "zeros", "noise"],
)
@pytest.mark.parametrize("base", [1, 5, 6, 999])
def test_files_that_look_like_segments_are_ignored_and_reported(
    open_directory: OpenDirectory, closed: DirectoryPartition, base: int, content: bytes
) -> None:
    stray = log(closed, base)
    stray.write_bytes(content)
    interrupt(closed)
    again = open_directory()
    assert [path for report in again.recovery_reports for path in report.strangers] == [stray]
    assert f"ignored {stray.name}" in str(again.recovery_reports[0])
    assert values(again) == EXPECTED
    assert again.append(encode([b"next"])) == Appended(6, 7)
    assert values(again) == [*EXPECTED, b"next"]
    assert stray.read_bytes() == content


@pytest.mark.parametrize("base", [1, 5, 6, 999])
def test_files_that_look_like_segments_are_not_read_by_a_clean_opening(
    open_directory: OpenDirectory, closed: DirectoryPartition, base: int
) -> None:
    log(closed, base).write_bytes(b"not a segment")
    again = open_directory()
    assert again.recovery_reports == []
    assert values(again) == EXPECTED
    assert again.append(encode([b"next"])) == Appended(6, 7)
    again.roll()
    assert values(again) == [*EXPECTED, b"next"]


def test_a_segment_of_another_log_is_ignored_and_reported(
    open_directory: OpenDirectory, closed: DirectoryPartition
) -> None:
    with open_directory(name="other") as other:
        other.append(encode([b"other"] * 20))
        other.truncate(9)
    shutil.copy(log(other, 9), log(closed, 9))
    interrupt(closed)
    again = open_directory()
    assert [path for report in again.recovery_reports for path in report.strangers] == [log(closed, 9)]
    assert values(again) == EXPECTED


def test_a_segment_under_another_name_is_ignored_and_reported(
    open_directory: OpenDirectory, closed: DirectoryPartition
) -> None:
    shutil.copy(log(closed, 0), log(closed, 100))
    interrupt(closed)
    again = open_directory()
    assert [path for report in again.recovery_reports for path in report.strangers] == [log(closed, 100)]
    assert values(again) == EXPECTED
    assert again.append(encode([b"next"])) == Appended(6, 7)


def test_unfinished_files_are_removed(open_directory: OpenDirectory, closed: DirectoryPartition) -> None:
    unfinished = closed.path / "state.1.2.tmp"
    unfinished.write_bytes(b"half")
    interrupt(closed)
    again = open_directory()
    assert not unfinished.exists()
    assert values(again) == EXPECTED


@pytest.mark.parametrize("number", range(6))
def test_a_damaged_frame_is_named_and_what_is_behind_it_can_be_read(
    open_directory: OpenDirectory, closed: DirectoryPartition, number: int
) -> None:
    path = log(closed, 0 if number < 3 else 3)
    content = bytearray(path.read_bytes())
    content[content.index(EXPECTED[number])] ^= 1
    path.write_bytes(content)
    again = open_directory()
    damage: list[Damage] = []
    readable = [record.value for record in again.records(on_damage=damage.append)]
    assert readable == EXPECTED[:number] + EXPECTED[number + 1 :]
    assert [(entry.file, entry.offset, entry.next_offset) for entry in damage] == [(path, number, number + 1)]
    with pytest.raises(FrameDamaged, match="does not match its checksum") as caught:
        list(again.records())
    assert (caught.value.file, caught.value.offset) == (path, number)
    assert again.append(encode([b"next"])) == Appended(6, 7)


def test_damage_ends_a_scan_with_the_same_error(open_directory: OpenDirectory, closed: DirectoryPartition) -> None:
    path = log(closed, 0)
    content = bytearray(path.read_bytes())
    content[content.index(EXPECTED[1])] ^= 1
    path.write_bytes(content)
    again = open_directory()
    with pytest.raises(Damaged):
        again.scan().read_all()
    damage: list[Damage] = []
    assert again.scan(on_damage=damage.append).read_all().num_rows == 5
    assert len(damage) == 1


def test_a_damaged_segment_is_not_compacted(open_directory: OpenDirectory) -> None:
    with open_directory() as partition:
        for number in range(4):
            partition.append(encode([b"%d" % number * 100], keys=[b"k"]))
        partition.roll()
    content = bytearray(log(partition).read_bytes())
    content[content.index(b"2" * 100)] ^= 1
    log(partition).write_bytes(content)
    again = open_directory()
    report = again.compact()
    assert (report.damaged, report.removed_records) == (1, 0)
    assert [record.offset for record in again.records(on_damage=lambda _: None)] == [0, 1, 3]


def test_a_lost_segment_is_named(open_directory: OpenDirectory, closed: DirectoryPartition) -> None:
    log(closed, 3).unlink()
    with open_directory() as again:
        (report,) = again.recovery_reports
        assert [(entry.offset, entry.next_offset) for entry in report.damage] == [(3, 6)]
        assert "offsets 3 to 5 are lost" in str(report)
        assert again.append(encode([b"next"])) == Appended(6, 7)
        damage: list[Damage] = []
        assert [r.offset for r in again.records(on_damage=damage.append)] == [0, 1, 2, 6]
        assert [(entry.offset, entry.next_offset) for entry in damage] == [(3, 6)]


def test_unsynced_appends_of_a_handle_that_is_gone_are_adopted(open_directory: OpenDirectory) -> None:
    abandoned = open_directory(PartitionConfig(sync="never"))
    for number in range(5):
        abandoned.append(encode([b"%d" % number]))
    again = open_directory()
    assert again.bounds() == (0, 5, 5)
    assert values(again) == [b"%d" % number for number in range(5)]
