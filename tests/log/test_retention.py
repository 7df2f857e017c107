"""Retention: closed segments that are too old or too many go, and nothing that is still wanted."""

from __future__ import annotations

import pytest

from headwater import PartitionConfig
from headwater.log import Partition, encode
from headwater.testing import ManualClock
from tests.support.backends import OpenDirectory, OpenPartition

SEGMENT = 10
"""Records in each segment of `fill`."""


def fill(partition: Partition, segments: int, clock: ManualClock | None = None, seconds: float = 0) -> None:
    """Closed segments of ten records, `seconds` apart; the growing one is left empty."""
    for _ in range(segments):
        partition.append(encode([b"x" * 100] * SEGMENT))
        if clock is not None:
            clock.advance(seconds)
        partition.roll()


def test_nothing_goes_by_default(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(clock=clock)
    fill(partition, 3)
    clock.advance(10**9)
    report = partition.retain()
    assert (report.segments, report.bytes, report.start) == (0, 0, 0)


def test_segments_go_when_they_have_been_closed_for_long_enough(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(PartitionConfig(retention_age=100), clock=clock)
    fill(partition, 3, clock, seconds=30)
    clock.advance(40)
    assert partition.retain().segments == 0
    clock.advance(1)
    report = partition.retain()
    assert (report.segments, report.start) == (1, SEGMENT)
    assert report.bytes > 1000
    clock.advance(30)
    assert partition.retain().start == 2 * SEGMENT
    assert partition.bounds().start == 2 * SEGMENT


def test_a_quiet_time_after_a_roll_does_not_keep_a_segment_longer(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(PartitionConfig(retention_age=100), clock=clock)
    fill(partition, 1)
    clock.advance(50)
    partition.append(encode([b"after the quiet"]))
    clock.advance(60)
    assert partition.retain().segments == 1


def test_ages_are_the_machines_and_not_the_users(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(PartitionConfig(retention_age=100), clock=clock)
    partition.append(encode([b"ancient"], timestamps=0))
    partition.roll()
    assert partition.retain().segments == 0
    partition.append(encode([b"far in the future"], timestamps=(1 << 63) - 1))
    partition.roll()
    clock.advance(101)
    assert partition.retain().segments == 2


def test_the_oldest_segments_go_while_the_log_is_too_large(open_partition: OpenPartition) -> None:
    partition = open_partition(PartitionConfig(retention_bytes=4000))
    fill(partition, 5)
    size = partition.statistics().bytes
    report = partition.retain()
    assert 0 < report.segments < 5
    assert partition.statistics().bytes == size - report.bytes <= 4000
    assert report.start == report.segments * SEGMENT
    assert partition.retain().segments == 0


def test_a_minimum_of_segments_stays(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(PartitionConfig(retention_age=1, retention_bytes=0, retention_segments=3), clock=clock)
    fill(partition, 5)
    clock.advance(100)
    assert partition.retain().segments == 3
    assert partition.statistics().segments == 3


def test_the_growing_segment_stays(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(PartitionConfig(retention_age=0, retention_bytes=0), clock=clock)
    partition.append(encode([b"x"]))
    clock.advance(10**6)
    assert partition.retain().segments == 0
    assert len(list(partition.records())) == 1


@pytest.mark.parametrize(
    ("keep_from", "start"), [(0, 0), (5, 0), (10, 10), (11, 10), (29, 20), (30, 30), (10**9, 50), (None, 50)]
)
def test_what_is_still_wanted_stays(open_partition: OpenPartition, keep_from: int | None, start: int) -> None:
    partition = open_partition(PartitionConfig(retention_bytes=0))
    fill(partition, 5)
    assert partition.retain(keep_from=keep_from).start == start
    assert [record.offset for record in partition.records()] == list(range(start, 50))


def test_retention_never_moves_the_start_back(open_partition: OpenPartition) -> None:
    partition = open_partition(PartitionConfig(retention_bytes=0))
    fill(partition, 3)
    partition.delete_before(25)
    partition.retain(keep_from=20)
    assert partition.bounds().start == 25


def test_the_files_are_gone(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(retention_bytes=0))
    fill(partition, 3)
    partition.retain()
    assert [path.name for path in partition.path.glob("*.log")] == [f"{30:020d}.log"]
    assert [path.name for path in partition.path.glob("*.index")] == [f"{30:020d}.index"]
    assert [path.name for path in partition.path.glob("*.producers")] == [f"{30:020d}.producers"]
