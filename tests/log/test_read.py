"""Reading: from any offset, also from the middle of a frame, and nothing that is not there."""

from __future__ import annotations

import pytest

from headwater import OffsetOutOfRange, PartitionConfig
from headwater.log import Partition, encode
from tests.support.backends import OpenPartition


@pytest.fixture
def partition(open_partition: OpenPartition) -> Partition:
    """Thirty records whose values are their offsets, in frames of three, in three segments."""
    partition = open_partition(PartitionConfig(index_interval=128))
    for base in range(0, 30, 3):
        if base in (12, 24):
            partition.roll()
        partition.append(encode([b"%d" % offset for offset in range(base, base + 3)]))
    return partition


def test_reading_begins_at_any_offset(partition: Partition) -> None:
    for start in range(31):
        records = list(partition.records(start))
        assert [record.offset for record in records] == list(range(start, 30))
        assert all(record.value == b"%d" % record.offset for record in records)


def test_reading_ends_at_any_offset(partition: Partition) -> None:
    for end in range(31):
        assert [record.offset for record in partition.records(7, end)] == list(range(7, end))


def test_frames_are_given_whole(partition: Partition) -> None:
    first = next(partition.frames(13))
    assert (first.header.base_offset, first.header.next_offset) == (12, 15)
    assert [frame.header.base_offset for frame in partition.frames(13, 19)] == [12, 15, 18]


def test_read_gives_at_least_one_frame_and_about_as_much_as_asked(partition: Partition) -> None:
    assert [frame.header.base_offset for frame in partition.read(4, max_bytes=1)] == [3]
    size = partition.read(0)[0].header.length
    assert [frame.header.base_offset for frame in partition.read(4, max_bytes=3 * size)] == [3, 6, 9]
    assert len(partition.read(0)) == 10
    assert partition.read(30) == []


def test_a_reader_sees_what_was_there_when_it_began(partition: Partition) -> None:
    frames = partition.frames()
    next(frames)
    partition.append(encode([b"later"]))
    assert [frame.header.base_offset for frame in frames] == list(range(3, 30, 3))


def test_a_reader_goes_on_where_it_ended(partition: Partition) -> None:
    position = 30
    for number in range(5):
        partition.append(encode([b"%d" % number]))
        records = list(partition.records(position))
        assert [record.value for record in records] == [b"%d" % number]
        position = records[-1].offset + 1


@pytest.mark.parametrize(("start", "end"), [(-1, None), (31, None), (0, 31), (0, -1)])
def test_offsets_that_are_not_there_are_refused(partition: Partition, start: int, end: int | None) -> None:
    for read in (partition.frames, partition.scan, lambda *bounds: list(partition.records(*bounds))):
        with pytest.raises(OffsetOutOfRange) as caught:
            read(start, end)
        wrong = start if end is None else end
        assert (caught.value.offset, caught.value.start, caught.value.end) == (wrong, 0, 30)


def test_the_error_says_on_which_side_the_offset_lies(partition: Partition) -> None:
    partition.delete_before(5)
    with pytest.raises(OffsetOutOfRange, match=r"offset 4 of .* was removed: the log starts at 5"):
        partition.read(4)
    with pytest.raises(OffsetOutOfRange, match=r"offset 31 of .* is not there yet: the log ends at 30"):
        partition.read(31)


def test_a_reader_that_retention_overtakes_is_told(partition: Partition) -> None:
    frames = partition.frames()
    next(frames)
    partition.delete_before(30)
    with pytest.raises(OffsetOutOfRange):
        list(frames)


def test_a_reader_that_truncation_overtakes_is_told(partition: Partition) -> None:
    frames = partition.frames()
    next(frames)
    partition.truncate(2)
    with pytest.raises(OffsetOutOfRange):
        list(frames)


def test_a_frame_stays_readable_for_as_long_as_it_is_held(partition: Partition) -> None:
    frames = list(partition.frames())
    partition.append(encode([b"x"]))
    partition.truncate(3)
    partition.delete_before(3)
    partition.close()
    values = [record.value for frame in frames for record in frame.records()]
    assert values == [b"%d" % offset for offset in range(30)]
