"""Statistics: a partition in numbers that add up."""

from __future__ import annotations

import dataclasses

import pytest

from headwater import PartitionConfig
from headwater.log import encode
from headwater.testing import ManualClock
from tests.support.backends import OpenDirectory, OpenPartition


def test_a_new_partition_has_nothing_to_count(open_partition: OpenPartition) -> None:
    statistics = open_partition().statistics()
    assert statistics.segments == 1
    assert (statistics.start, statistics.end, statistics.durable_end) == (0, 0, 0)
    assert (statistics.total_records, statistics.total_frames, statistics.total_bytes) == (0, 0, 0)
    assert (statistics.total_appends, statistics.last_append_ns, statistics.damaged) == (0, 0, 0)
    assert not statistics.poisoned


def test_totals_count_what_was_appended(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(clock=clock)
    small, large = encode([b"a"]), encode([b"b", b"c"])
    partition.append([small, large])
    clock.advance(5)
    partition.append(large)
    statistics = partition.statistics()
    assert (statistics.total_records, statistics.total_frames, statistics.total_appends) == (5, 3, 2)
    assert statistics.total_bytes == small.length + 2 * large.length
    assert statistics.last_append_ns == clock.now_ns()
    assert (statistics.start, statistics.end) == (0, 5)


def test_bytes_are_those_that_are_there_and_totals_stay(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode([b"x" * 1000]))
    partition.roll()
    partition.append(encode([b"y"]))
    before = partition.statistics()
    assert before.bytes > before.total_bytes > 1000
    partition.delete_before(1)
    after = partition.statistics()
    assert after.bytes < before.bytes - 1000
    assert after.segments == before.segments - 1
    assert (after.total_records, after.total_bytes) == (before.total_records, before.total_bytes)
    assert (after.start, after.end) == (1, 2)


def test_statistics_are_a_picture_of_one_moment(open_partition: OpenPartition) -> None:
    partition = open_partition()
    statistics = partition.statistics()
    partition.append(encode([b"a"]))
    assert statistics.end == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        statistics.end = 1  # type: ignore[misc]


def test_bytes_are_the_sizes_of_the_files(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(segment_bytes=4096))
    for _ in range(10):
        partition.append(encode([b"x" * 1000]))
    statistics = partition.statistics()
    files = list(partition.path.glob("*.log"))
    assert statistics.segments == len(files) > 2
    assert statistics.bytes == sum(path.stat().st_size for path in files)


def test_totals_count_over_all_handles_and_reopenings(open_directory: OpenDirectory) -> None:
    partition, other = open_directory(), open_directory()
    partition.append(encode([b"a"]))
    other.append(encode([b"b"]))
    assert partition.statistics().total_appends == other.statistics().total_appends == 2
    partition.close()
    other.close()
    again = open_directory().statistics()
    assert (again.total_appends, again.total_records, again.recoveries) == (2, 2, 0)


def test_every_append_is_synced_by_default(open_directory: OpenDirectory) -> None:
    partition = open_directory()
    for number in range(1, 4):
        partition.append(encode([b"a"]))
        assert partition.statistics().total_syncs == number
