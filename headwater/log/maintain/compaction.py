"""Compaction: keep the newest record of each key.

The newest offset of each key is learnt from the newest segment to the oldest, until the memory set aside for it is
full: knowing fewer keys is safe, it only removes less. Then segments are rewritten from the oldest to the newest, so
that a delete marker goes only after everything it deletes has gone. All of it is done on columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.schema import KEY, OFFSET, Schema
from headwater.log.format.encode import reencode
from headwater.log.format.frame import CONTROL, HAS_KEYS, Frame, StoredFrame
from headwater.log.format.projection import Projection

_FRAME_BYTES: Final = 1024 * 1024
"""Rewritten frames are filled up to about this size: what is left of many small ones becomes a few."""


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result of `compact`. Segments with damage are left as they are, so that nothing readable is lost with it."""

    segments: int
    rewritten: int
    damaged: int
    removed_records: int
    bytes_before: int
    bytes_after: int


class Rewritten(NamedTuple):
    """A frame of a compacted segment, and where it belongs."""

    frame: Frame
    base_offset: int
    leader_epoch: int


class Compactor:
    """Decides which records stay."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._learnt: list[pa.Table] = []
        self._newest: pa.Table | None = None

    def learn(self, frames: Iterable[StoredFrame]) -> bool:
        """Note the keys of a segment, newest segment first; False when the memory for them is used up."""
        tables = []
        for frame in frames:
            if frame.header.attributes & HAS_KEYS:
                columns = [frame.schema.system("key"), frame.schema.system("offset")]
                batch = Projection(frame.schema, columns).batch(frame)
                tables.append(pa.table(batch.columns, names=["key", "offset"]))
        if tables:
            self._learnt.append(_newest(pa.concat_tables(tables)))
        return sum(int(table.nbytes) for table in self._learnt) < self._memory

    def finish_learning(self) -> None:
        """No more segments will be learnt."""
        empty = pa.table({"key": pa.array([], KEY), "offset": pa.array([], OFFSET)})
        self._newest = _newest(pa.concat_tables([empty, *self._learnt]))
        self._learnt = []

    def plan(self, frames: Iterable[StoredFrame], *, drop_markers: bool) -> list[pa.Array | None]:
        """For each frame of a segment which of its records stay; None when all do."""
        assert self._newest is not None, "learning has not been finished"
        keys: list[pa.Array] = []
        offsets: list[pa.Array] = []
        markers: list[pa.Array] = []
        rows: list[int] = []
        for frame in frames:
            if not frame.header.attributes & HAS_KEYS:
                rows.append(0)
                continue
            batch = frame.batch()
            rows.append(batch.num_rows)
            keys.append(batch.column(frame.schema.system("key")))
            offsets.append(frame.offsets(batch))
            markers.append(delete_markers(batch, frame.schema))
        if not keys:
            return [None] * len(rows)
        learnt = pc.index_in(pa.chunked_array(keys), value_set=self._newest["key"])
        newest = pc.take(self._newest["offset"], learnt)
        keep = pc.fill_null(pc.equal(newest, pa.chunked_array(offsets)), True)
        if drop_markers:
            # A marker whose key was not learnt may still have something to delete.
            droppable = pc.and_(pa.chunked_array(markers), pc.is_valid(learnt))
            keep = pc.and_(keep, pc.invert(droppable))
        masks: list[pa.Array | None] = []
        position = 0
        for count in rows:
            mask = keep.slice(position, count)
            masks.append(None if pc.all(mask).as_py() is not False else mask)
            position += count
        return masks


def rewrite_frames(frames: Iterable[StoredFrame], masks: Iterable[pa.Array | None]) -> Iterator[Rewritten]:
    """The frames with only the records that stay; whole large frames keep their bytes, the rest are put together."""
    pending: list[pa.RecordBatch] = []
    last: StoredFrame | None = None
    for frame, mask in zip(frames, masks, strict=True):
        large = frame.header.length >= _FRAME_BYTES // 16
        alone = frame.header.attributes & CONTROL or (mask is None and large)
        if pending and last is not None and (alone or _full(pending) or not _are_alike(frame, last)):
            yield _together(pending, last)
            pending = []
        last = frame
        if alone:
            yield Rewritten(frame.unstamped(), frame.header.base_offset, frame.header.leader_epoch)
            continue
        batch = Projection(frame.schema, None).batch(frame)
        batch = batch if mask is None else batch.filter(pa.concat_arrays(mask.chunks))
        if batch.num_rows:
            pending.append(batch)
    if pending and last is not None:
        yield _together(pending, last)


def _are_alike(frame: StoredFrame, other: StoredFrame) -> bool:
    """Return whether one frame can hold what is left of both. Replicas go by which records are of which epoch."""
    ours, theirs = frame.header, other.header
    return ours.schema_id == theirs.schema_id and ours.leader_epoch == theirs.leader_epoch


def _full(pending: list[pa.RecordBatch]) -> bool:
    return sum(int(batch.nbytes) for batch in pending) >= _FRAME_BYTES


def _together(pending: list[pa.RecordBatch], like: StoredFrame) -> Rewritten:
    batch = pa.concat_batches(pending)
    frame = reencode(like.schema, batch, compression=like.compression)
    first: int = batch.column(0)[0].as_py()
    return Rewritten(frame, first, like.header.leader_epoch)


def _newest(table: pa.Table) -> pa.Table:
    """The greatest offset of each key; records without a key are nobody's successors."""
    keyed = table.filter(pc.is_valid(table["key"]))
    return keyed.group_by("key").aggregate([("offset", "max")]).rename_columns(["key", "offset"])


def delete_markers(batch: pa.RecordBatch, schema: Schema) -> pa.Array:
    """Return the mask of the delete markers (tombstones): rows with nothing in any payload column."""
    columns = [pc.is_null(batch.column(name)) for name in schema.payload.names]
    markers = columns[0]
    for column in columns[1:]:
        markers = pc.and_(markers, column)
    return markers
