"""A partition in memory: the same behaviour, for tests and for programs that need no disk. Gone when it is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise

import pyarrow as pa

from headwater.core.config import PartitionConfig
from headwater.core.errors import OffsetOutOfRange, PartitionClosed
from headwater.log.clock import REAL_CLOCK, Clock
from headwater.log.elapsed import Elapsed
from headwater.log.entropy import random_bytes
from headwater.log.files.counters import NO_COUNTERS, count, count_compression, put, unpack_counters
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, seed_of
from headwater.log.format.frame import (
    GROUP_FIRST,
    GROUP_LAST,
    GROUP_ONLY,
    Frame,
    StoredFrame,
    Take,
    Taken,
    read_header,
)
from headwater.log.format.schemas import Schemas
from headwater.log.maintain.compaction import CompactionReport, Compactor, rewrite_frames
from headwater.log.maintain.retention import RetentionReport, SegmentFacts, expired
from headwater.log.partition import Bounds, Partition, PartitionStatistics
from headwater.log.recover.report import OnDamage
from headwater.log.write.commit import Appended
from headwater.log.write.flush import compression_of
from headwater.log.write.producers import ProducerTable
from headwater.log.write.rewrite import cut_frame


class _Segment:
    def __init__(self, base: int, created_ns: int) -> None:
        self.base = base
        self.created_ns = self.first_append_ns = created_ns
        self.frames: list[StoredFrame] = []
        self.compacted = False
        self.producers = ProducerTable().pack()

    @property
    def size(self) -> int:
        return SEGMENT_HEADER_BYTES + sum(frame.header.length for frame in self.frames)


class MemoryPartition(Partition):
    """A partition whose frames are in this process's memory."""

    def __init__(
        self,
        config: PartitionConfig | None = None,
        *,
        schemas: Schemas | None = None,
        uuid: bytes | None = None,
        clock: Clock = REAL_CLOCK,
        elapsed: Elapsed | None = None,
    ) -> None:
        """`schemas` is where typed frames find their schemas. `uuid` names the partition, by default at random."""
        self.config = config or PartitionConfig()
        self.schemas = schemas if schemas is not None else Schemas()
        self._clock = clock
        self._elapsed = elapsed or Elapsed(clock)
        self._mutex = threading.RLock()
        self._seed = seed_of(random_bytes(16) if uuid is None else uuid)
        self._start = self._end = 0
        self._stamp = 0
        self._segments = [_Segment(0, clock.now_ns())]
        self._producers = ProducerTable()
        self._records = self._frame_count = self._bytes = self._appends = self._last_append_ns = 0
        self._counters = NO_COUNTERS
        self._closed = False

    def __str__(self) -> str:
        return "memory partition"

    def _open(self) -> AbstractContextManager[bool]:
        if self._closed:
            raise PartitionClosed(self)
        return self._mutex

    def configure(self, config: PartitionConfig) -> None:
        self.config = config

    # Writing.

    def _append(self, group: tuple[Frame, ...]) -> Appended:
        with self._open():
            identity = group[0].identity
            if identity is not None:
                original = self._producers.check(identity, group[0].record_count)
                if original is not None:
                    return Appended(original.base_offset, original.end_offset, duplicate=True)
            now = self._clock.now_ns()
            active = self._segments[-1]
            too_large = active.size + sum(frame.length for frame in group) > self.config.segment_bytes
            if active.frames and (too_large or now - active.first_append_ns > self.config.segment_age * 1e9):
                self.roll()
            active = self._segments[-1]
            if not active.frames:
                active.first_append_ns = now
            base = offset = self._end
            stored = []
            for number, frame in enumerate(group):
                bits = (GROUP_FIRST if number == 0 else 0) | (GROUP_LAST if number == len(group) - 1 else 0)
                stored.append(self._store(frame, offset, bits))
                offset += frame.last_offset_delta + 1
            active.frames += stored
            if identity is not None:
                self._producers.add(identity, group[0].record_count, base, offset, now)
            self._end = offset
            self._appends += 1
            self._last_append_ns = now
            for frame in group:
                self._records += frame.record_count
                self._frame_count += 1
                self._bytes += frame.length
            compression = compression_of(group)
            if compression is not None:
                *counted, compression_ns = compression
                counted.append(self._clock.measured(compression_ns))
                self._counters = count_compression(self._counters, counted)
            return Appended(base, offset)

    def _store(self, frame: Frame, offset: int, group: int) -> StoredFrame:
        content, self._stamp = frame.stamp(
            offset, durable_end=0, leader_epoch=0, previous=self._stamp, group=group, seed=self._seed
        )
        data = content + memoryview(frame.message)
        return StoredFrame(read_header(memoryview(data)), pa.py_buffer(data), frame.schema)

    def sync(self) -> None:
        self._open()

    def writer_sequence(self, writer: bytes) -> int:
        with self._open():
            return self._producers.writer_sequence(writer)

    # Reading.

    def bounds(self) -> Bounds:
        with self._open():
            return Bounds(self._start, self._end, self._end)

    def _read(
        self,
        start: int,
        end: int,
        take: Take[Taken],
        on_damage: OnDamage | None = None,  # noqa: ARG002 - memory has no damage
    ) -> Iterator[Taken]:
        offset = start
        while offset < end:
            with self._open():
                if not self._start <= offset < self._end:
                    raise OffsetOutOfRange(offset, self._start, self._end, str(self))
                number = max(i for i, segment in enumerate(self._segments) if segment.base <= offset)
                frames = list(self._segments[number].frames)
                last = number + 1 == len(self._segments)
                after = self._end if last else self._segments[number + 1].base
            for frame in frames:
                if frame.header.next_offset > offset and frame.header.base_offset < end:
                    taken = take(frame.header, frame.buffer, frame.start)
                    if taken is not None:
                        yield taken
            offset = after

    def _time_hint(self, timestamp: int) -> int | None:
        with self._open():
            for segment in self._segments:
                for frame in segment.frames:
                    if frame.header.max_timestamp >= timestamp and frame.header.next_offset > self._start:
                        return frame.header.base_offset
        return None

    # Cleaning.

    def roll(self) -> bool:
        with self._open():
            if not self._segments[-1].frames:
                return False
            now = self._clock.now_ns()
            self._producers.expire(self._elapsed.is_older(self.config.producer_expiry))
            self._segments.append(_Segment(self._end, now))
            self._segments[-1].producers = self._producers.pack()
            self._counters = count(self._counters, rotations=1)
            return True

    def truncate(self, offset: int) -> None:
        with self._open():
            self._check_range(offset)
            if offset == self._end:
                return
            self._producers = self._producers_at(offset)
            kept = [segment for segment in self._segments if segment.base < offset]
            if kept:
                last = kept[-1]
                whole = [frame for frame in last.frames if frame.header.next_offset <= offset]
                for frame in last.frames[len(whole) :]:
                    rest = cut_frame(frame, offset) if frame.header.base_offset < offset else None
                    if rest is not None:
                        whole.append(self._store(rest, frame.header.base_offset, GROUP_ONLY))
                last.frames = whole
            kept.append(_Segment(offset, self._clock.now_ns()))
            kept[-1].producers = self._producers.pack()
            self._segments = kept
            self._end = offset

    def _producers_at(self, offset: int) -> ProducerTable:
        """Return the producer table as of `offset`. Compaction forgets producers; the next segment remembers them."""
        for segment, after in pairwise([*self._segments, None]):
            assert segment is not None, "only the last is followed by none"
            if segment.base == offset:
                return ProducerTable.unpack(segment.producers)
            if after is None or after.base > offset:
                if segment.compacted and after is not None:
                    known = ProducerTable.unpack(after.producers)
                    known.forget_beyond(offset)
                    return known
                table = ProducerTable.unpack(segment.producers)
                for frame in segment.frames:
                    if frame.header.next_offset <= offset:
                        table.add_stored(frame.header, segment.created_ns)
                return table
        raise AssertionError("the last segment has no end")

    def delete_before(self, offset: int) -> None:
        with self._open():
            if offset > self._end:
                self._check_range(offset)
            if offset <= self._start:
                return
            if offset == self._end:
                self.roll()
            self._start = offset
            while len(self._segments) > 1 and self._segments[1].base <= offset:
                self._segments.pop(0)

    def _check_range(self, offset: int) -> None:
        if not self._start <= offset <= self._end:
            raise OffsetOutOfRange(offset, self._start, self._end, str(self))

    def segments(self) -> list[SegmentFacts]:
        with self._open():
            closing: list[int | None] = [segment.created_ns for segment in self._segments[1:]]
            return [
                SegmentFacts(segment.base, segment.size, segment.first_append_ns, closed)
                for segment, closed in zip(self._segments, [*closing, None], strict=True)
            ]

    def retain(self, *, keep_from: int | None = None) -> RetentionReport:
        with self._open():
            facts = self.segments()
            self._elapsed.look()
            number = expired(facts, self.config, self._elapsed.age_ns, keep_from)
            wanted = expired(facts, self.config, self._elapsed.age_ns, None)
            if wanted:
                offset = max(facts[number].base, self._start) if number else None
                self.remove_expired(offset, facts[number:wanted])
            return RetentionReport(number, sum(fact.size for fact in facts[:number]), self._start)

    def remove_expired(self, offset: int | None, protected: Sequence[SegmentFacts] = ()) -> None:
        with self._open():
            started = self._clock.boot_ns()
            before = list(self._segments)
            if offset is not None:
                self.delete_before(offset)
            removed = [segment for segment in before if segment not in self._segments]
            counters = count(
                self._counters,
                retention_runs=1,
                retention_ns=self._clock.boot_ns() - started,
                retention_records=sum(frame.header.record_count for segment in removed for frame in segment.frames),
                retention_bytes=sum(segment.size for segment in removed),
                removed_segments=len(removed),
            )
            self._counters = put(
                counters,
                last_retention_ns=max(self._clock.now_ns(), 0),
                protected_segments=len(protected),
                protected_bytes=sum(segment.size for segment in protected),
            )

    def compact(self) -> CompactionReport:
        with self._open():
            closed = [segment for segment in self._segments[:-1] if segment.frames]
            compactor = Compactor(self.config.compaction_memory)
            for segment in reversed(closed):
                if not compactor.learn(segment.frames):
                    break
            compactor.finish_learning()
            before = sum(segment.size for segment in closed)
            rewritten = removed = 0
            self._elapsed.look()
            for segment in closed:
                closed_ns = self._segments[self._segments.index(segment) + 1].created_ns
                old_markers = self._elapsed.age_ns(closed_ns) > self.config.delete_grace * 1e9
                masks = compactor.plan(segment.frames, drop_markers=old_markers)
                if all(mask is None for mask in masks):
                    continue
                count = sum(frame.header.record_count for frame in segment.frames)
                segment.frames = [
                    self._store(frame, base, GROUP_ONLY) for frame, base, _ in rewrite_frames(segment.frames, masks)
                ]
                segment.compacted = True
                rewritten += 1
                removed += count - sum(frame.header.record_count for frame in segment.frames)
            after = sum(segment.size for segment in closed)
            return CompactionReport(len(closed), rewritten, 0, removed, before, after)

    # The handle.

    def statistics(self) -> PartitionStatistics:
        with self._open():
            return PartitionStatistics(
                start=self._start,
                end=self._end,
                durable_end=self._end,
                segments=len(self._segments),
                bytes=sum(segment.size for segment in self._segments),
                total_records=self._records,
                total_frames=self._frame_count,
                total_bytes=self._bytes,
                total_appends=self._appends,
                total_syncs=0,
                last_append_ns=self._last_append_ns,
                recoveries=0,
                damaged=0,
                poisoned=False,
                mapped_bytes=0,
                counters=unpack_counters(self._counters),
            )

    def close(self) -> None:
        self._closed = True
