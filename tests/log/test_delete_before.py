"""Deleting from the beginning: records go, offsets stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater import OffsetOutOfRange
from headwater.log import Appended, DirectoryPartition, Partition, encode
from headwater.testing import ManualClock, RecordingDisk
from tests.support.backends import OpenDirectory, OpenPartition
from tests.support.power import values_after_power_loss


@pytest.fixture
def partition(open_partition: OpenPartition) -> Partition:
    partition = open_partition()
    fill(partition)
    return partition


def fill(partition: Partition) -> None:
    """Twelve records, in frames of three, in four segments."""
    for base in range(0, 12, 3):
        partition.roll()
        partition.append(encode([b"%d" % offset for offset in range(base, base + 3)]))


@pytest.mark.parametrize("offset", range(13))
def test_exactly_what_is_before_goes_and_offsets_stay(partition: Partition, offset: int) -> None:
    partition.delete_before(offset)
    assert partition.bounds() == (offset, 12, 12)
    assert [(record.offset, record.value) for record in partition.records()] == [
        (number, b"%d" % number) for number in range(offset, 12)
    ]
    assert partition.scan(columns=["offset"]).read_all()["offset"].to_pylist() == list(range(offset, 12))
    assert partition.append(encode([b"next"])) == Appended(12, 13)


def test_whole_segments_are_given_back(partition: Partition) -> None:
    before = partition.statistics()
    partition.delete_before(5)
    assert partition.statistics().segments == before.segments - 1
    partition.delete_before(6)
    assert partition.statistics().segments == before.segments - 2
    assert partition.statistics().bytes < before.bytes


def test_everything_can_go(partition: Partition) -> None:
    partition.delete_before(12)
    assert list(partition.records()) == []
    assert partition.statistics().segments == 1
    partition.delete_before(12)
    assert partition.append(encode([b"next"])) == Appended(12, 13)


def test_the_start_never_goes_back(partition: Partition) -> None:
    partition.delete_before(7)
    partition.delete_before(3)
    assert partition.bounds().start == 7


def test_deleting_what_is_not_there_yet_is_refused(partition: Partition) -> None:
    with pytest.raises(OffsetOutOfRange):
        partition.delete_before(13)
    assert partition.bounds().start == 0


def test_the_start_is_there_after_reopening(open_directory: OpenDirectory) -> None:
    with open_directory() as partition:
        partition.append(encode([b"a", b"b", b"c"]))
        partition.delete_before(2)
    with open_directory() as partition:
        assert partition.bounds().start == 2
        assert [record.value for record in partition.records()] == [b"c"]
        partition.delete_before(3)
    with open_directory() as partition:
        assert partition.bounds() == (3, 3, 3)
        assert partition.append(encode([b"d"])) == Appended(3, 4)


def test_another_handle_sees_the_new_start(open_directory: OpenDirectory) -> None:
    partition, other = open_directory(), open_directory()
    partition.append(encode([b"a", b"b"]))
    assert len(list(other.records())) == 2
    partition.delete_before(1)
    assert [record.value for record in other.records()] == [b"b"]
    with pytest.raises(OffsetOutOfRange):
        other.read(0)


@pytest.mark.parametrize("offset", [2, 5, 9, 12])
def test_a_power_loss_leaves_all_records_or_those_behind_the_new_start(tmp_path: Path, offset: int) -> None:
    recording = RecordingDisk(tmp_path)
    with DirectoryPartition(tmp_path / "partition", disk=recording, clock=ManualClock()) as partition:
        fill(partition)
        began = len(recording.trace)
        partition.delete_before(offset)
        ended = len(recording.trace)
    everything = [b"%d" % number for number in range(12)]
    for number, left in values_after_power_loss(recording.trace[:ended], began, tmp_path):
        if number == ended:
            assert left == everything[offset:]
        else:
            assert left in (everything, everything[offset:])
