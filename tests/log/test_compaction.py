"""Compaction: the newest record of each key stays, offsets stay, and readers are undisturbed."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import PartitionConfig, Schema
from headwater.log import DirectoryPartition, Disk, MemoryPartition, Partition, encode, encode_batch
from headwater.testing import ManualClock
from tests.support.backends import BACKENDS, OpenDirectory, OpenPartition, temporary

GRACE = 3600.0


def put(partition: Partition, *pairs: tuple[str | None, str | None]) -> None:
    """One frame of records with these keys and values."""
    keys = [key.encode() if key is not None else None for key, _ in pairs]
    partition.append(encode([value.encode() if value is not None else None for _, value in pairs], keys=keys))


def content(partition: Partition) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in partition.records()]


def test_the_newest_record_of_each_key_stays(open_partition: OpenPartition) -> None:
    partition = open_partition()
    put(partition, ("a", "1"), ("b", "1"), ("a", "2"))
    put(partition, ("c", "1"), ("b", "2"))
    partition.roll()
    report = partition.compact()
    assert content(partition) == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2")]
    assert (report.segments, report.rewritten, report.removed_records, report.damaged) == (1, 1, 2, 0)
    assert report.bytes_after < report.bytes_before
    assert partition.bounds() == (0, 5, 5)


def test_a_newer_record_in_a_later_segment_counts(open_partition: OpenPartition) -> None:
    partition = open_partition()
    for number in range(3):
        put(partition, ("a", f"{number}"), (f"only {number}", "x"))
        partition.roll()
    partition.compact()
    assert content(partition) == [
        (1, b"only 0", b"x"),
        (3, b"only 1", b"x"),
        (4, b"a", b"2"),
        (5, b"only 2", b"x"),
    ]


def test_the_growing_segment_is_neither_changed_nor_looked_at(open_partition: OpenPartition) -> None:
    partition = open_partition()
    put(partition, ("a", "1"))
    partition.roll()
    put(partition, ("a", "2"), ("a", "3"))
    assert partition.compact().removed_records == 0
    assert [value for _, _, value in content(partition)] == [b"1", b"2", b"3"]


def test_records_without_a_key_stay(open_partition: OpenPartition) -> None:
    partition = open_partition()
    put(partition, (None, "1"), ("a", "1"), (None, "1"), ("a", "2"))
    partition.append(encode([b"no key at all"]))
    partition.roll()
    partition.compact()
    assert [offset for offset, _, _ in content(partition)] == [0, 2, 3, 4]


def test_an_empty_key_is_a_key(open_partition: OpenPartition) -> None:
    partition = open_partition()
    put(partition, ("", "1"), ("", "2"))
    partition.roll()
    partition.compact()
    assert content(partition) == [(1, b"", b"2")]


def test_headers_and_timestamps_stay_with_their_records(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(
        encode([b"1", b"2", b"3"], keys=[b"a", b"a", b"b"], headers=[None, {"h": b"2"}, None], timestamps=[9, 8, 7])
    )
    before = list(partition.records())
    partition.roll()
    partition.compact()
    assert list(partition.records()) == before[1:]


def test_a_delete_marker_is_kept_during_its_grace_and_dropped_after_it(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(PartitionConfig(delete_grace=GRACE), clock=clock)
    put(partition, ("a", "1"), ("b", "1"))
    put(partition, ("a", None))
    partition.roll()
    put(partition, ("z", "growing"))
    clock.advance(GRACE - 1)
    partition.compact()
    assert content(partition)[:2] == [(1, b"b", b"1"), (2, b"a", None)]
    clock.advance(2)
    partition.compact()
    assert content(partition)[:2] == [(1, b"b", b"1"), (3, b"z", b"growing")]
    assert partition.bounds() == (0, 4, 4)


def test_the_grace_counts_from_the_closing_of_the_segment(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(PartitionConfig(delete_grace=GRACE, segment_age=100 * GRACE), clock=clock)
    put(partition, ("a", None))
    clock.advance(10 * GRACE)
    partition.roll()
    partition.compact()
    assert content(partition) == [(0, b"a", None)]


def test_a_segment_of_which_nothing_stays_leaves_its_offsets_unused(open_partition: OpenPartition) -> None:
    partition = open_partition()
    put(partition, ("a", "1"))
    partition.roll()
    put(partition, ("a", "2"))
    partition.roll()
    partition.compact()
    assert content(partition) == [(1, b"a", b"2")]
    assert list(partition.records(0, 1)) == []
    assert [record.offset for record in partition.records(1)] == [1]
    assert partition.append(encode([b"x"])).base_offset == 2


def test_compacting_twice_removes_nothing_more(open_partition: OpenPartition) -> None:
    partition = open_partition()
    put(partition, ("a", "1"), ("a", "2"))
    partition.roll()
    partition.compact()
    before = content(partition)
    report = partition.compact()
    assert (report.rewritten, report.removed_records) == (0, 0)
    assert report.bytes_before == report.bytes_after
    assert content(partition) == before


def test_compacting_an_empty_partition_does_nothing(open_partition: OpenPartition) -> None:
    assert open_partition().compact().segments == 0


def test_any_offset_can_be_read_after_compaction(open_partition: OpenPartition) -> None:
    partition = open_partition(PartitionConfig(index_interval=128))
    for number in range(40):
        put(partition, (f"{number % 7}", f"{number}"), (None, "x") if number % 5 == 0 else ("0", "x"))
        if number % 10 == 9:
            partition.roll()
    partition.compact()
    left = content(partition)
    for start in range(81):
        assert content_from(partition, start) == [row for row in left if row[0] >= start]


def content_from(partition: Partition, start: int) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in partition.records(start)]


def test_an_iterator_from_before_the_compaction_is_undisturbed(open_partition: OpenPartition) -> None:
    partition = open_partition()
    for number in range(6):
        put(partition, ("a", f"{number}"), (None, f"{number}"))
    partition.roll()
    reader = partition.frames()
    first = next(reader)
    partition.compact()
    seen = [record.value for frame in (first, *reader) for record in frame.records() if record.key is None]
    assert seen == [b"%d" % number for number in range(6)]


def test_typed_records_are_compacted(open_partition: OpenPartition) -> None:
    schema = Schema(pa.schema([("x", pa.int64()), ("y", pa.list_(pa.string()))]))
    clock = ManualClock()
    partition = open_partition(PartitionConfig(delete_grace=GRACE), clock=clock)
    rows = [{"x": 1, "y": ["a"]}, {"x": 2, "y": None}, {"x": None, "y": None}, {"x": None, "y": []}]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema.payload)
    partition.append(encode_batch(batch, schema, keys=[b"k", b"k", b"gone", b"empty"]))
    put(partition, ("raw", "beside"))
    partition.roll()
    partition.compact()
    assert [(record.offset, record.value) for record in partition.records()] == [
        (1, rows[1]),
        (2, None),
        (3, rows[3]),
        (4, b"beside"),
    ]
    clock.advance(GRACE + 1)
    partition.compact()
    assert [record.offset for record in partition.records()] == [1, 3, 4]


def test_the_compression_stays(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode([b"x" * 5000] * 3, keys=[b"a", b"a", b"b"], compression="zstd"))
    partition.roll()
    partition.compact()
    assert {frame.compression for frame in partition.frames()} == {"zstd"}


def test_many_small_frames_become_few(open_partition: OpenPartition) -> None:
    partition = open_partition(PartitionConfig(sync="never"))
    for number in range(200):
        put(partition, (f"{number % 100}", "x"))
    partition.roll()
    partition.compact()
    assert len(list(partition.frames())) == 1
    assert len(list(partition.records())) == 100


def test_too_little_memory_removes_less_and_nothing_wrong(open_partition: OpenPartition) -> None:
    partition = open_partition(PartitionConfig(compaction_memory=4096, sync="never"))
    for number in range(30):
        partition.append(encode([b"x"] * 50, keys=[b"%d" % (number % 3 * 50 + i) for i in range(50)]))
        partition.roll()
    newest = {record.key: record.offset for record in partition.records()}
    report = partition.compact()
    assert report.removed_records > 0
    assert newest == {record.key: record.offset for record in partition.records()}


_pair = st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from([None, "v"]))
_pairs = st.lists(_pair, min_size=1, max_size=4)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=30)
@given(st.lists(st.tuples(_pairs, st.booleans()), max_size=10), st.booleans())
def test_any_log_keeps_the_newest_of_each_key(
    backend: str, frames: list[tuple[list[tuple[str | None, str | None]], bool]], grace_over: bool
) -> None:
    clock = ManualClock()
    config = PartitionConfig(delete_grace=GRACE, sync="never", segment_age=10 * GRACE)
    with temporary(backend, config, clock=clock) as partition:
        for pairs, roll in frames:
            put(partition, *pairs)
            if roll:
                partition.roll()
        before = content(partition)
        growing = 0
        for number, (_, roll) in enumerate(frames):
            if roll:
                growing = sum(len(pairs) for pairs, _ in frames[: number + 1])
        newest = {key: offset for offset, key, _ in before if offset < growing}
        clock.advance(GRACE + 1 if grace_over else 1)
        partition.compact()
        assert content(partition) == [
            (offset, key, value)
            for offset, key, value in before
            if offset >= growing or key is None or (newest[key] == offset and not (value is None and grace_over))
        ]


def test_compaction_is_there_after_reopening(open_directory: OpenDirectory) -> None:
    with open_directory() as partition:
        put(partition, ("a", "1"), ("b", "1"), ("a", "2"))
        partition.roll()
        partition.compact()
    with open_directory() as partition:
        assert content(partition) == [(1, b"b", b"1"), (2, b"a", b"2")]
        assert partition.recovery_reports == []


def test_another_handle_sees_the_compaction_and_keeps_what_it_holds(open_directory: OpenDirectory) -> None:
    partition, other = open_directory(), open_directory()
    put(partition, ("a", "1"), ("a", "2"))
    partition.roll()
    held = list(other.frames())
    partition.compact()
    assert [record.value for frame in held for record in frame.records()] == [b"1", b"2"]
    assert content(other) == [(1, b"a", b"2")]


def test_appends_go_on_during_compaction(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(sync="never", segment_bytes=8192))
    appended: list[int] = []

    def produce() -> None:
        frames = (encode([b"x" * 50], keys=[b"%d" % (number % 10)]) for number in range(300))
        appended.extend(partition.append(frame).base_offset for frame in frames)

    producer = threading.Thread(target=produce)
    producer.start()
    removed = 0
    while producer.is_alive():
        removed += partition.compact().removed_records
    producer.join()
    partition.roll()
    removed += partition.compact().removed_records
    assert removed == 290
    assert appended == list(range(300))
    assert [(record.offset, record.key) for record in partition.records()] == [
        (290 + number, b"%d" % number) for number in range(10)
    ]


def test_a_compacted_log_in_memory_is_smaller() -> None:
    with MemoryPartition() as partition:
        for _ in range(10):
            put(partition, ("a", "x" * 1000))
        partition.roll()
        before = partition.statistics().bytes
        partition.compact()
        assert partition.statistics().bytes < before / 3


class Died(BaseException):
    """The end of a process."""


class FatalDisk(Disk):
    """A disk whose process dies before a compacted segment takes the place of the one before."""

    def rename(self, source: Path, target: Path) -> None:
        if source.suffix == ".compacting":
            raise Died
        super().rename(source, target)


def test_compactions_that_die_one_after_the_other_leave_what_was_there(tmp_path: Path) -> None:
    with DirectoryPartition(tmp_path) as partition:
        put(partition, ("a", "1"), ("a", "2"), ("b", "1"))
        partition.roll()
        everything = content(partition)
    for _ in range(3):
        with pytest.raises(Died), DirectoryPartition(tmp_path, disk=FatalDisk()) as partition:
            partition.compact()
    with DirectoryPartition(tmp_path) as partition:
        assert content(partition) == everything
        assert partition.compact().removed_records == 1
        assert content(partition) == everything[1:]
    with DirectoryPartition(tmp_path) as partition:
        assert content(partition) == everything[1:]
