"""Survivors: which records compaction keeps, found elsewhere, for logs whose keys do not fit in one memory.

The caller that finds them reads all closed segments, and passes on the newest offset of each key. Here they are met in
the order of the log, so only those of the frame at hand are in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.errors import FrameDamaged, PartitionError
from headwater.core.schema import OFFSET
from headwater.log.format.frame import HAS_KEYS, StoredFrame
from headwater.log.format.projection import Projection

NEWEST = pa.schema([pa.field("offset", OFFSET), pa.field("marker", pa.bool_())])
"""The newest record of each key: its offset, and whether it is a delete marker."""


class Survivors:
    """The newest records of all keys in certain segments, with offsets rising. Good for one compaction."""

    def __init__(self, segments: Mapping[int, bytes], whole: Collection[int], newest: Iterable[pa.RecordBatch]) -> None:
        """`segments` are those that were looked at: the `log` of each, by its base. Those in `whole` could be read."""
        self._segments = segments
        self._whole = whole
        self._batches: Iterator[pa.RecordBatch] = iter(newest)
        self._waiting = NEWEST.empty_table()

    def cover(self, base: int, log: bytes) -> bool:
        """Return whether a segment was looked at. Raises when it has changed since: then who is newest may have too."""
        known = self._segments.get(base)
        if known is not None and known != log:
            raise PartitionError(
                f"the segment at offset {base} was rewritten while the newest records were looked for: compact again"
            )
        return known is not None

    def check(self, base: int) -> None:
        """Raise unless all of a segment was read: of what was not, nobody knows whether it is the newest."""
        if base not in self._whole:
            raise FrameDamaged("could not be read when the newest records were looked for", offset=base)

    def plan(self, frames: Iterable[StoredFrame], *, drop_markers: bool) -> list[pa.ChunkedArray | None]:
        """For each frame of a segment which of its records stay; None when all do. Segments come in order."""
        return [self._kept(frame, drop_markers) for frame in frames]

    def _kept(self, frame: StoredFrame, drop_markers: bool) -> pa.ChunkedArray | None:
        if not frame.header.attributes & HAS_KEYS:
            return None
        key, offset = frame.schema.system("key"), frame.schema.system("offset")
        batch = Projection(frame.schema, [key, offset]).batch(frame)
        newest = self._until(frame.header.next_offset)
        if drop_markers:
            newest = newest.filter(pc.invert(newest["marker"]))
        stays = pc.is_in(batch.column(offset), value_set=newest["offset"].combine_chunks())
        stays = pc.or_(stays, pc.is_null(batch.column(key)))
        return None if pc.all(stays).as_py() else pa.chunked_array([stays])

    def _until(self, end: int) -> pa.Table:
        """The survivors with offsets below `end` that were not asked for before."""
        tables = [self._waiting]
        while not tables[-1].num_rows or tables[-1]["offset"][-1].as_py() < end:
            batch = next(self._batches, None)
            if batch is None:
                break
            if batch.num_rows:
                tables.append(pa.Table.from_batches([batch]))
        table = pa.concat_tables(tables)
        count: int = pc.sum(pc.less(table["offset"], end)).as_py() or 0
        self._waiting = table.slice(count)
        return table.slice(0, count)
