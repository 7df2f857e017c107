"""Compaction by survivors that were found elsewhere leaves the same as compaction by the engine alone."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import PartitionConfig, PartitionError
from headwater.log import DirectoryPartition, encode
from headwater.log.recover.survivors import NEWEST, Survivors
from headwater.testing import ManualClock

GRACE = 3600.0
Segments = list[list[tuple[str | None, str | None]]]


def opened(path: Path, segments: Segments, clock: ManualClock) -> DirectoryPartition:
    """A partition with these records, two to a frame, in closed segments."""
    partition = DirectoryPartition(path, PartitionConfig(delete_grace=GRACE), clock=clock)
    for records in segments:
        for number in range(0, len(records), 2):
            pairs = records[number : number + 2]
            keys = [key.encode() if key is not None else None for key, _ in pairs]
            partition.append(encode([value.encode() if value is not None else None for _, value in pairs], keys=keys))
        partition.roll()
    return partition


def survivors(partition: DirectoryPartition, *, rows: int = 3, without: int | None = None) -> Survivors:
    """Found in plain Python, and passed on in batches of `rows`; nothing is known of the segment at `without`."""
    newest: dict[bytes, tuple[int, bool]] = {}
    segments = partition.closed()
    for closed in segments:
        for record in partition.records(closed.first, closed.end) if closed.segment.base != without else ():
            if record.key is not None:
                newest[record.key] = (record.offset, record.value is None)
    kept = [{"offset": offset, "marker": marker} for offset, marker in sorted(newest.values())]
    batches = [pa.RecordBatch.from_pylist(kept[n : n + rows], schema=NEWEST) for n in range(0, len(kept), rows)]
    whole = {closed.segment.base for closed in segments} - {without}
    return Survivors({closed.segment.base: closed.segment.header.log for closed in segments}, whole, batches)


def content(partition: DirectoryPartition) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in partition.records()]


RECORDS = st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from(["1", "2", None])).map(
    lambda pair: pair if pair[0] is not None else (None, pair[1] or "3")
)


@settings(max_examples=60, deadline=None)
@given(
    segments=st.lists(st.lists(RECORDS, min_size=1, max_size=7), min_size=1, max_size=4),
    rows=st.integers(1, 4),
    of_age=st.booleans(),
)
def test_the_same_is_left_as_by_the_engine_alone(segments: Segments, rows: int, of_age: bool) -> None:
    clock = ManualClock()
    with (
        TemporaryDirectory() as directory,
        opened(Path(directory) / "alone", segments, clock) as alone,
        opened(Path(directory) / "helped", segments, clock) as helped,
    ):
        clock.advance(GRACE * 2 if of_age else 0.0)
        expected = alone.compact()
        report = helped.compact(survivors(helped, rows=rows))
        assert content(helped) == content(alone)
        assert report.removed_records == expected.removed_records
        assert helped.compact(survivors(helped)).removed_records == 0


def test_a_segment_that_could_not_be_read_stays_and_so_do_the_markers_behind_it(tmp_path: Path) -> None:
    clock = ManualClock()
    segments: Segments = [[("a", "1"), ("b", "1")], [("a", "2"), ("c", "1")], [("a", None), ("b", "2")]]
    with opened(tmp_path / "p", segments, clock) as partition:
        clock.advance(GRACE * 2)
        report = partition.compact(survivors(partition, without=2))
        assert report.damaged == 1
        assert [offset for offset, _, _ in content(partition)] == [2, 3, 4, 5]


def test_what_was_closed_later_is_left_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "p", [[("a", "1"), ("a", "2")]], clock) as partition:
        known = survivors(partition)
        partition.append(encode([b"3", b"4"], keys=[b"a", b"a"]))
        partition.roll()
        assert partition.compact(known).segments == 1
        assert [offset for offset, _, _ in content(partition)] == [1, 2, 3]


def test_survivors_of_what_has_changed_are_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "p", [[("a", "1"), ("a", "2")], [("a", "3"), ("b", "1")]], clock) as partition:
        known = survivors(partition)
        partition.truncate(2)
        partition.append(encode([b"x"], keys=[b"c"]))
        partition.roll()
        with pytest.raises(PartitionError, match="compact again"):
            partition.compact(known)
        assert [offset for offset, _, _ in content(partition)] == [0, 1, 2]
