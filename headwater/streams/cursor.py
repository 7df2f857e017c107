"""A cursor: where a consumer is in one partition."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from headwater.core.config import OnLoss
from headwater.core.errors import DataLost, FrameDamaged, HeadwaterError, OffsetOutOfRange, RecordsDamaged
from headwater.core.record import NO_HEADERS
from headwater.log import Partition, StoredFrame
from headwater.log.format.projection import Projection
from headwater.streams.acks import AckTracker
from headwater.streams.group import TopicKey
from headwater.streams.ports import Source
from headwater.streams.topic import TopicPartition

_log = logging.getLogger(__name__)

OnRecordsDamaged = Callable[[RecordsDamaged], object]
"""Told of records that cannot be read, before they are passed over. Its exceptions come out of the poll instead."""


class ConsumedRecord(NamedTuple):
    """A record, and where it came from."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: Any
    headers: Any = NO_HEADERS


class ConsumedBatch(NamedTuple):
    """Records of one partition as Arrow, from `start` up to, and without, `end`."""

    topic: str
    partition: int
    start: int
    end: int
    batch: pa.RecordBatch


class Cursor:
    """A consumer in one partition: its next offset, what it has read ahead, and what is done."""

    def __init__(
        self,
        tp: TopicPartition,
        key: TopicKey,
        partition: Partition,
        position: int,
        generation: int = 0,
        on_damage: OnRecordsDamaged | None = None,
        source: Source | None = None,
        on_loss: OnLoss = "raise",
    ) -> None:
        self.tp = tp
        self.key = key
        self.generation = generation
        """In which generation of the group the position was set from which this began."""
        self.partition = partition
        self.source: Source = source or partition
        self._on_damage = on_damage
        self._on_loss = on_loss
        self.refusal: HeadwaterError | None = None
        """The reason why nothing can be read here, for the consumer to be told."""
        self.next = position
        """The next offset to be read from the log."""
        self.frames: deque[StoredFrame] = deque()
        self.records: deque[ConsumedRecord] = deque()
        self._unpacked: StoredFrame | None = None
        """The frame that the records are of."""
        self.move(position)

    def move(self, position: int) -> None:
        """Begin anew at `position`."""
        self.next = position
        self.frames.clear()
        self.records.clear()
        self.acks = AckTracker(position)
        self.committed = position
        self.delivered = position
        """The offset after the last record that was handed out."""

    @property
    def touched(self) -> bool:
        """True if something was handed out, or is done, that is not committed."""
        return max(self.delivered, self.acks.position) > self.committed

    def fetch(self, max_bytes: int) -> bool:
        """Read ahead if nothing is; whether there is something to hand out.

        Damage comes up when everything before it was handed out. It raises RecordsDamaged, each time anew; or it is
        told to `on_damage`, counts as done, and what is behind it is read. Records that were removed before they were
        read raise DataLost, each time anew; or they are logged, and count as done.
        """
        if self.refusal is not None:
            raise self.refusal
        while not self.frames and not self.records:
            bounds = self.source.bounds()
            if self.next < bounds.start:
                self._lose(bounds.start)
            if self.next >= bounds.end:
                return False
            try:
                frames = self.source.read(self.next, max_bytes=max_bytes)
            except OffsetOutOfRange:  # removed since the bounds were looked at: the next call finds the new ones
                return False
            except FrameDamaged as error:
                if error.next_offset is None:
                    raise
                lost = RecordsDamaged(*self.tp, self.next, error.next_offset, error)
                if self._on_damage is None:
                    raise lost from error
                self._on_damage(lost)
                self._pass_over(error.next_offset)
            else:
                self.frames.extend(frames)
                if not frames:  # a compaction has left nothing from here to the end
                    self._pass_over(bounds.end)
        return True

    def _lose(self, start: int) -> None:
        """Raise DataLost for what is missing before the `start` of the log, or go on there and log it."""
        advice = f"to go on without them use seek(..., {start}), on_loss='skip' or hw group reset"
        lost = DataLost(*self.tp, self.next, start, "the log begins behind them by now", advice)
        if self._on_loss == "raise":
            raise lost
        _log.warning("%s", lost.finding)
        self._pass_over(start)

    def _pass_over(self, offset: int) -> None:
        """Go on at `offset`: there is nothing to read before it, and nobody has to wait for that."""
        self.acks.ack(self.next, offset)
        self.next = offset

    def unpack(self) -> bool:
        """Turn the next frame into records; whether it holds any.

        Offsets that hold none, after a compaction or because they do not match a filter, count as done.
        """
        frame = self.frames[0]  # a frame that cannot be decoded stays: it is not passed over
        start, end = self.next, frame.header.next_offset
        rows = zip(repeat(self.tp.topic), repeat(self.tp.partition), *frame.columns(start), strict=False)
        self.records.extend(map(tuple.__new__, repeat(ConsumedRecord), rows))
        self._unpacked = self.frames.popleft()
        self.next = end
        if len(self.records) != end - start:
            expected = start
            for record in self.records:
                self.acks.ack(expected, record.offset)
                expected = record.offset + 1
            self.acks.ack(expected, end)
        return bool(self.records)

    def take(self, limit: int) -> list[ConsumedRecord]:
        """Hand out at most `limit` of the records that are unpacked."""
        records = self.records
        if len(records) <= limit:
            taken = list(records)
            records.clear()
        else:
            taken = [records.popleft() for _ in range(limit)]
        if taken:
            self.delivered = taken[-1].offset + 1
        return taken

    def take_batches(self, projection: Projection) -> Iterator[ConsumedBatch]:
        """Hand out the frames that are read ahead."""
        while self.frames:
            batch = projection.batch(self.frames[0], self.next)
            start, self.next = self.next, self.frames.popleft().header.next_offset
            if batch.num_rows:
                self.delivered = self.next
                yield ConsumedBatch(*self.tp, start, self.next, batch)
            else:
                self.acks.ack(start, self.next)

    def back_to(self, offset: int) -> None:
        """Nobody has got what was handed out from `offset` on: it is read again."""
        self.next = self.delivered = offset
        self.frames.clear()
        self.records.clear()

    def unread(self) -> None:
        """Pack up again what is unpacked and not handed out."""
        if self.records:
            assert self._unpacked is not None, "records are of a frame"
            self.next = self.records[0].offset
            self.records.clear()
            self.frames.appendleft(self._unpacked)

    def take_as_done(self) -> None:
        """Everything that was handed out is done."""
        self.acks.ack(self.acks.position, self.delivered)
