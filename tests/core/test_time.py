"""Finding by time: the least offset whose record is not older, in whatever order the timestamps come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import PartitionConfig
from headwater.log import encode
from tests.support.backends import BACKENDS, OpenPartition, temporary
from tests.support.strategies import INT64

_times = st.integers(0, 30) | st.integers(*INT64) | st.sampled_from(INT64)


def least(timestamps: list[int], wanted: int, start: int = 0) -> int | None:
    return next((i for i, timestamp in enumerate(timestamps) if i >= start and timestamp >= wanted), None)


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    st.lists(st.tuples(st.lists(_times, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=12),
    st.lists(_times, min_size=1),
    st.data(),
)
def test_any_time_is_found_in_any_order(
    backend: str, frames: list[tuple[list[int], bool]], wanted: list[int], data: st.DataObject
) -> None:
    timestamps: list[int] = []
    with temporary(backend, PartitionConfig(index_interval=128, sync="never")) as partition:
        for times, roll in frames:
            if roll:
                partition.roll()
            partition.append(encode([b""] * len(times), timestamps=times))
            timestamps += times
        start = data.draw(st.integers(0, len(timestamps)))
        partition.delete_before(start)
        for time in wanted:
            assert partition.offset_at(time) == least(timestamps, time, start)


def test_a_time_after_the_last_record_has_no_offset(open_partition: OpenPartition) -> None:
    partition = open_partition()
    assert partition.offset_at(0) is None
    partition.append(encode([b"a"], timestamps=10))
    assert partition.offset_at(10) == 0
    assert partition.offset_at(11) is None
    assert partition.offset_at(1 << 70) is None


def test_a_time_before_the_first_record_is_the_start(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode([b"a", b"b"], timestamps=10))
    assert partition.offset_at(-(1 << 70)) == 0
    partition.delete_before(1)
    assert partition.offset_at(-(1 << 70)) == 1


def test_times_are_found_after_truncation_and_compaction(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode([b"a", b"b", b"c"], keys=[b"1", b"2", b"1"], timestamps=[30, 10, 20]))
    partition.append(encode([b"d"], keys=[b"2"], timestamps=40))
    partition.truncate(3)
    partition.append(encode([b"e"], keys=[b"3"], timestamps=15))
    partition.roll()
    partition.compact()
    assert [record.offset for record in partition.records()] == [1, 2, 3]
    assert partition.offset_at(11) == 2
    assert partition.offset_at(5) == 1
    assert partition.offset_at(21) is None
