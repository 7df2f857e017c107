"""Rolling: a segment is closed when it is full or old, and readers notice nothing."""

from __future__ import annotations

from headwater import PartitionConfig
from headwater.log import encode
from headwater.testing import ManualClock
from tests.support.backends import OpenDirectory, OpenPartition


def test_a_segment_is_closed_when_the_next_append_would_not_fit(open_partition: OpenPartition) -> None:
    partition = open_partition(PartitionConfig(segment_bytes=8192))
    frame = encode([b"x" * 1000])
    for _ in range(20):
        partition.append(frame)
        statistics = partition.statistics()
        assert statistics.bytes <= statistics.segments * 8192
    assert partition.statistics().segments > 2
    assert [record.offset for record in partition.records()] == list(range(20))


def test_a_segment_is_closed_when_its_first_record_is_old(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(PartitionConfig(segment_age=60), clock=clock)
    clock.advance(1000)
    partition.append(encode([b"first"]))
    clock.advance(59)
    partition.append(encode([b"second"]))
    assert partition.statistics().segments == 1
    clock.advance(2)
    partition.append(encode([b"third"]))
    assert partition.statistics().segments == 2
    clock.advance(59)
    partition.append(encode([b"fourth"]))
    assert partition.statistics().segments == 2


def test_an_empty_segment_is_not_closed(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(PartitionConfig(segment_age=1), clock=clock)
    assert partition.roll() is False
    partition.append(encode([b"x"]))
    assert partition.roll() is True
    assert partition.roll() is False
    clock.advance(100)
    partition.append(encode([b"y"]))
    assert partition.statistics().segments == 2


def test_an_atomic_group_is_never_split(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(segment_bytes=8192))
    for _ in range(10):
        partition.append([encode([b"x" * 1000])] * 3)
    bases = sorted(int(path.stem) for path in partition.path.glob("*.log"))
    assert len(bases) > 3
    assert all(base % 3 == 0 for base in bases)


def test_a_roll_makes_everything_durable_in_every_mode(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(sync="never"))
    partition.append(encode([b"x"]))
    assert partition.bounds().durable_end == 0
    partition.roll()
    assert partition.bounds().durable_end == 1


def test_a_reader_crosses_segments_without_noticing(open_partition: OpenPartition) -> None:
    partition = open_partition()
    position = 0
    for number in range(12):
        partition.append(encode([b"%d" % number]))
        if number % 3 == 0:
            partition.roll()
        for record in partition.records(position):
            assert record.value == b"%d" % record.offset == b"%d" % position
            position += 1
    assert position == 12


def test_another_handle_follows_a_roll(open_directory: OpenDirectory) -> None:
    partition, other = open_directory(), open_directory()
    for number in range(10):
        assert (partition, other)[number % 2].append(encode([b"%d" % number])).base_offset == number
        (other, partition)[number % 2].roll()
    assert [record.value for record in partition.records()] == [b"%d" % number for number in range(10)]
    assert partition.statistics().segments == 11
