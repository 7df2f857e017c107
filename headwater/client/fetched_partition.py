"""The fetched records of a partition, which a consumer behind a broker holds until its cursor gets to them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from headwater.client.partition import partition_seed
from headwater.core.errors import FrameDamaged, HeadwaterError, OffsetOutOfRange
from headwater.core.filter import BoundFilter
from headwater.core.schema import RAW
from headwater.log import Bounds, Schemas, StoredFrame
from headwater.log.format.frame import stored_frame
from headwater.log.format.frame_filter import FrameFilter, frame_without_records
from headwater.log.format.verify import verified
from headwater.streams.cursor import Cursor
from headwater.streams.group import TopicKey
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from headwater.wire.packing import View

REST: Final = 0.1
"""A partition that could not be read is left alone for so many seconds."""


class Held(NamedTuple):
    """The result of a fetch of one partition: everything from `start` up to, and without, `end`."""

    start: int
    end: int
    log_start: int
    frames: View
    error: HeadwaterError | None
    direct: bool
    """True if the frames were read from the broker's files, which the broker has not verified."""
    filtered: bool = False
    """True if the broker has left out what does not match the consumer's filter."""


class FetchedPartition:
    """The held records of one partition, as its cursor reads them. Only `held` is touched by other threads."""

    def __init__(
        self,
        partition: TopicPartition,
        key: TopicKey,
        schemas: Schemas,
        distrust: Callable[[FetchedPartition, bool], None],
        where: BoundFilter | None = None,
    ) -> None:
        """`distrust` is called when what lies in the broker's files is damaged; also whether to ask it at once."""
        self.partition = partition
        self.key = key
        self.message = pb.TopicPartition(topic=partition.topic, partition=partition.partition, topic_uuid=key[0])
        self.held: deque[Held] = deque()
        """One after the other. An error is the last of them."""
        self.cursor: Cursor | None = None
        self.rest_until = 0.0
        self.unsound = False
        """True if the broker is to send what comes next, because what lies in its files is damaged."""
        self.where = "" if where is None else where.portable_text
        """The filter that the broker is to apply."""
        self._filter = None if where is None else FrameFilter(where, partition.partition)
        self._distrust = distrust
        self._seed = partition_seed(*key)
        self._schemas = schemas

    @property
    def position(self) -> int:
        """The offset of the next fetch if nothing is held: behind what the cursor has."""
        assert self.cursor is not None, "a cursor is followed before it is read"
        frames = self.cursor.frames
        return frames[-1].header.next_offset if frames else self.cursor.next

    @property
    def bytes(self) -> int:
        """The number of bytes that are held."""
        return sum(len(held.frames) for held in self.held)

    @property
    def tail(self) -> int:
        """The end of what is held, if the cursor needs it next; records of other offsets are dropped."""
        return self.held[-1].end if self.fits() else self.position

    def fits(self) -> bool:
        """Return whether what the cursor needs next is held; what is of another place is dropped."""
        if self.held and self.held[0].start != self.position:
            self.held.clear()
        return bool(self.held)

    @property
    def ready(self) -> bool:
        """True if the cursor has something to hand out, or to be told."""
        cursor = self.cursor
        return cursor is not None and bool(cursor.records or cursor.frames or self.fits())

    @property
    def failed(self) -> bool:
        """True if the cursor is to be told, after what is held, why there is no more."""
        return self.fits() and self.held[-1].error is not None

    @property
    def behind(self) -> bool:
        """True if what the cursor needs next was removed before it was read."""
        held = self.held[0] if self.fits() else None
        return held is not None and isinstance(held.error, OffsetOutOfRange) and held.log_start > held.start

    def bounds(self) -> Bounds:
        position = self.position
        held = self.held[0] if self.fits() else None
        if held is None:
            return Bounds(position, position, position)
        if isinstance(held.error, OffsetOutOfRange):
            # Removed before it was read; or not there any more, after a power loss, and not there again yet.
            if not self.behind:
                self.rest_until = time.monotonic() + REST
            self.held.clear()
            start = max(held.log_start, position)
            return Bounds(start, start, start)
        return Bounds(position, max(self.held[-1].end, position + 1), position)

    def read(self, offset: int, *, max_bytes: int) -> list[StoredFrame]:
        assert self.held, "bounds were looked at before"
        error = self.held[0].error
        if error is not None:
            self.held.clear()
            self.rest_until = time.monotonic() + REST
            raise error
        frames: list[StoredFrame] = []
        left, end = max_bytes, offset
        while self.held and self.held[0].error is None and left > 0:
            held = self.held.popleft()
            left -= len(held.frames)
            try:
                self._add_frames(held, offset, frames)
            except FrameDamaged:
                if not held.direct:
                    raise
                self._distrust(self, not frames)
                return frames or self._read_anew(offset, max_bytes)
            end = max(held.end, end)
        reached = frames[-1].header.next_offset if frames else offset
        if reached < end:  # the broker has nothing there for this consumer, and the next fetch begins behind it
            frames.append(frame_without_records(reached, end, RAW))
        return frames

    def _read_anew(self, offset: int, max_bytes: int) -> list[StoredFrame]:
        """Return what the broker has sent meanwhile; raises OffsetOutOfRange if nothing: the next look asks again."""
        if not self.fits():
            raise OffsetOutOfRange(offset, offset, offset, str(self.partition))
        return self.read(offset, max_bytes=max_bytes)

    def _add_frames(self, held: Held, offset: int, frames: list[StoredFrame]) -> None:
        schema_of = self._schemas.get
        frame_filter = None if held.filtered else self._filter  # an older broker sends everything
        reached = frames[-1].header.next_offset if frames else offset
        for located in verified(held.frames, self._seed, max(held.start, offset)):
            frame = stored_frame(*located, schema_of)
            if frame.header.next_offset <= reached:
                continue  # a stream may bring again what was asked for meanwhile
            reached = frame.header.next_offset
            matching = frame if frame_filter is None else frame_filter.matching(frame, offset)
            if matching is not None:
                frames.append(matching)
