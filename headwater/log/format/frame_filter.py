"""A frame filter: the records of stored frames that match a filter, as frames again.

It decodes only the columns that the filter reads. A frame whose records all match stays as it is, and the records of a
frame that has some are encoded anew, with their offsets. So whoever reads the result sees a log from which the other
records were removed, as compaction would have removed them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.filter import BoundFilter
from headwater.core.schema import Schema
from headwater.log.format.encode import select
from headwater.log.format.frame import CONTROL, GROUP_ONLY, MAGIC, NO_PRODUCER, FrameHeader, StoredFrame, read_header
from headwater.log.format.projection import Projection

_NOTHING: Final = pa.py_buffer(b"")


class FrameFilter:
    """Chooses records of one partition. Not thread-safe."""

    def __init__(self, condition: BoundFilter, partition: int, seed: int = 0, *, compress: bool = False) -> None:
        """`seed` is that of the partition's stamps, for readers that verify frames. `compress` keeps frames small."""
        self.condition = condition
        self.partition = partition
        self._seed = seed
        self._compress = compress
        offset = condition.schema.system("offset")
        self._projection = Projection(condition.schema, sorted(condition.columns | {offset}))
        self._offset = offset

    def matching(self, frame: StoredFrame, start: int = 0, end: int | None = None) -> StoredFrame | None:
        """Return the matching records of a frame with `start` <= offset < `end`; None if there are none.

        Raises InvalidFilter if the filter cannot be applied to these records, and FrameDamaged.
        """
        batch = self._projection.batch(frame)
        if not batch.num_rows:
            return None
        mask = self.condition.matches(batch, self.partition)
        header = frame.header
        if start > header.base_offset:
            mask = pc.and_(mask, pc.greater_equal(batch.column(self._offset), start))
        if end is not None and end < header.next_offset:
            mask = pc.and_(mask, pc.less(batch.column(self._offset), end))
        count = mask.true_count
        if count == len(mask):
            return frame
        return self._selected(frame, mask) if count else None

    def matching_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that match; it must have the columns that the filter reads."""
        mask = self.condition.matches(batch, self.partition)
        return batch if mask.true_count == len(mask) else batch.filter(mask)

    def _selected(self, frame: StoredFrame, mask: pa.Array) -> StoredFrame:
        selected, base_offset = select(frame, mask, compress=self._compress)
        stamped, _ = selected.stamp(
            base_offset,
            durable_end=frame.header.durable_end,
            leader_epoch=frame.header.leader_epoch,
            previous=0,
            group=GROUP_ONLY,
            seed=self._seed,
        )
        content = b"".join((stamped, memoryview(selected.message)))
        return StoredFrame(read_header(memoryview(content)), pa.py_buffer(content), frame.schema)

    def all_matching(self, frames: Iterable[StoredFrame], start: int) -> list[StoredFrame]:
        """Return what matches in frames that follow one another, from `start` on.

        If there are offsets behind the last match, a frame without records stands for them.
        """
        matching: list[StoredFrame] = []
        end = reached = start
        for frame in frames:
            end = frame.header.next_offset
            selected = self.matching(frame, start)
            if selected is not None:
                matching.append(selected)
                reached = selected.header.next_offset
        if reached < end:
            matching.append(frame_without_records(reached, end, self.condition.schema))
        return matching


def frame_without_records(start: int, end: int, schema: Schema) -> StoredFrame:
    """Return a frame that stands for offsets which hold nothing for a reader. It is in no log, and has no bytes."""
    header = FrameHeader(
        magic=MAGIC,
        length=0,
        base_offset=start,
        durable_end=0,
        leader_epoch=0,
        previous=0,
        group=GROUP_ONLY,
        body_crc=0,
        stamp_crc=0,
        attributes=CONTROL,
        schema_id=schema.id,
        record_count=0,
        last_offset_delta=end - start - 1,
        min_timestamp=0,
        max_timestamp=0,
        producer_id=NO_PRODUCER,
        base_sequence=-1,
        producer_epoch=0,
        reserved=0,
    )
    return StoredFrame(header, _NOTHING, schema)
