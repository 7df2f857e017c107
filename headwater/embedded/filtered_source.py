"""A source of records that match a filter, over a partition."""

from __future__ import annotations

from headwater.core.filter import BoundFilter
from headwater.log import Bounds, StoredFrame
from headwater.log.format.frame_filter import FrameFilter
from headwater.streams.ports import Source


class FilteredSource:
    """Reads a source, and keeps the records that match. For one cursor."""

    def __init__(self, source: Source, where: BoundFilter, partition: int) -> None:
        self._source = source
        self._filter = FrameFilter(where, partition)

    def bounds(self) -> Bounds:
        """Return the offsets that can be read now, whatever matches."""
        return self._source.bounds()

    def read(self, offset: int, *, max_bytes: int) -> list[StoredFrame]:
        """Return what matches in the frames from `offset` on, and a frame without records for what is behind it."""
        return self._filter.all_matching(self._source.read(offset, max_bytes=max_bytes), offset)
