"""Reading: frames as views on the files, verified, from any process and without a lock.

A reader takes the published end from the state and never goes beyond it. Closed segments, and large spans of the
growing one, are mapped; what has just been appended is read by `pread`. Bytes below the published end never change in
place, so a view stays valid for as long as someone holds it, whatever is appended, compacted or deleted meanwhile.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from headwater.config import PartitionConfig
from headwater.errors import FrameDamaged, IndexDamaged, OffsetOutOfRange
from headwater.log.disk import Disk
from headwater.log.frame import StoredFrame, parse_header, verify_body
from headwater.log.index import IndexBuilder, open_index
from headwater.log.recovery import Damage
from headwater.log.schemas import Schemas
from headwater.log.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, list_segments, seed_of
from headwater.log.state import State

MAPPED_FROM: Final = 1024 * 1024
"""Spans of the growing segment at least this large are mapped; smaller ones are read."""

OnDamage = Callable[[Damage], None]
"""Called for each damaged stretch that a reader passes over."""


class Span(NamedTuple):
    """Bytes of a segment from file position `start` on, as a view that keeps them alive."""

    start: int
    buffer: pa.Buffer
    view: memoryview


class MappingCache:
    """Maps files for reading and keeps the most recently used mappings, up to a number of bytes.

    An evicted mapping lives on for as long as views on it are held; the cache only bounds what nobody uses.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._mutex = threading.Lock()
        self._spans: OrderedDict[bytes, Span] = OrderedDict()
        self._bytes = 0

    def get(self, log: bytes, length: int, fd: int) -> Span:
        """The first `length` bytes, or more, of the file that `log` names."""
        with self._mutex:
            span = self._spans.get(log)
            if span is not None and len(span.view) >= length:
                self._spans.move_to_end(log)
                return span
        mapping = mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        span = Span(0, pa.py_buffer(mapping), memoryview(mapping))
        with self._mutex:
            old = self._spans.pop(log, None)
            self._bytes += length - (len(old.view) if old else 0)
            self._spans[log] = span
            while self._bytes > self._limit and len(self._spans) > 1:
                _, evicted = self._spans.popitem(last=False)
                self._bytes -= len(evicted.view)
        return span

    def keep_only(self, logs: set[bytes]) -> None:
        """Drop the mappings of files that are no longer part of the log."""
        with self._mutex:
            for log in [log for log in self._spans if log not in logs]:
                self._bytes -= len(self._spans.pop(log).view)

    @property
    def mapped_bytes(self) -> int:
        """How much address space the cache holds."""
        return self._bytes


class Reader:
    """The reading side of one partition in one process. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        config: PartitionConfig,
        disk: Disk,
        schemas: Schemas,
        state: Callable[[], State],
    ) -> None:
        self._directory = directory
        self._config = config
        self._disk = disk
        self._schemas = schemas
        self._state = state
        self._segments: tuple[int, list[Segment], list[int]] = (-1, [], [])
        self.mappings = MappingCache(config.mapping_cache_bytes)

    def segments(self, state: State) -> list[Segment]:
        """The segments as of this state."""
        layout, found, _ = self._segments
        if layout != state.layout:
            found = list_segments(self._directory, state.partition)[0]
            found = [segment for segment in found if segment.base <= state.segment_base]
            self._segments = (state.layout, found, [segment.base for segment in found])
            self.mappings.keep_only({segment.header.log for segment in found})
        return found

    def frames(self, start: int, end: int, on_damage: OnDamage | None = None) -> Iterator[StoredFrame]:
        """Every frame with records in [start, end), in order; all of them, or an error.

        Damage raises FrameDamaged where `on_damage` is not given; otherwise it is reported and passed over. Records
        that retention removes before they are reached raise OffsetOutOfRange.
        """
        offset = start
        attempts = 0
        while offset < end:
            state = self._state()
            if offset < state.start:
                raise OffsetOutOfRange(offset, state.start, state.end, str(self._directory))
            try:
                before = offset
                for frame in self._segment_frames(state, offset, end, on_damage):
                    if isinstance(frame, int):
                        offset = frame
                    else:
                        offset = frame.header.next_offset
                        yield frame
                attempts = 0 if offset > before else attempts + 1
            except FileNotFoundError:
                attempts += 1  # retention or a truncation was faster
                self._segments = (-1, [], [])
            if attempts > 3:
                raise FrameDamaged("the log ends before its published end", file=self._directory, offset=offset)

    def _segment_frames(
        self, state: State, offset: int, end: int, on_damage: OnDamage | None
    ) -> Iterator[StoredFrame | int]:
        """Frames of the segment that holds `offset`; a number says where to go on, past what is not there."""
        segments = self.segments(state)
        number = bisect_right(self._segments[2], offset) - 1
        if number < 0 or number >= len(segments):
            raise FileNotFoundError(self._directory)
        segment = segments[number]
        after = segments[number + 1].base if number + 1 < len(segments) else None
        growing = after is None
        fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if growing:
                if segment.header.log != state.segment:
                    raise FileNotFoundError(segment.path)
                limit = state.position
            else:
                limit = os.fstat(fd).st_size
            stop = end if after is None else min(end, after)
            seed = seed_of(state.partition)
            position = self._locate(segment, state, offset, fd, limit, after)
            span = self._span(segment, fd, position, limit, growing)
        except BaseException:
            os.close(fd)
            raise
        try:
            view, buffer, skew = span.view, span.buffer, span.start
            previous = None
            get_schema = self._schemas.get
            while position < limit:
                resume = position
                try:
                    header = parse_header(view, position - skew, seed)
                    if header.next_offset <= offset:
                        previous = header.stamp_crc
                        position += header.length
                        continue
                    if header.base_offset >= stop:
                        break
                    if previous is not None and header.previous != previous:
                        # Behind a gap it is good; in the very place of another frame it is not the one that was there.
                        resume = position if header.base_offset > offset else position + header.length
                        raise FrameDamaged("a frame does not follow the one before it")
                    verify_body(view, position - skew, header)
                except FrameDamaged as error:
                    file = FrameFile(fd, limit, seed, segment.path)
                    found = file.find(resume, offset)
                    lost_to = min(found[1].base_offset if found else stop, stop)
                    if lost_to > offset:
                        self._damaged(Damage(segment.path, position, offset, lost_to, error.reason), on_damage)
                        offset = lost_to
                        yield offset
                    if found is None:
                        return
                    position, previous = found[0], None
                    continue
                yield StoredFrame(header, buffer.slice(position - skew, header.length), get_schema(header.schema_id))
                previous = header.stamp_crc
                position += header.length
                offset = header.next_offset
        finally:
            os.close(fd)
        if after is not None and offset < stop:
            if not segment.header.compacted:
                lost = Damage(segment.path, position, offset, stop, "the end of a segment is missing")
                self._damaged(lost, on_damage)
            yield stop

    def _damaged(self, damage: Damage, on_damage: OnDamage | None) -> None:
        if on_damage is None:
            raise FrameDamaged(damage.reason, file=damage.file, position=damage.position, offset=damage.offset)
        on_damage(damage)

    def _span(self, segment: Segment, fd: int, position: int, limit: int, growing: bool) -> Span:
        if growing and limit - position < MAPPED_FROM:
            content = os.pread(fd, limit - position, position)
            return Span(position, pa.py_buffer(content), memoryview(content))
        return self.mappings.get(segment.header.log, limit, fd)

    # Finding a place.

    def _locate(self, segment: Segment, state: State, offset: int, fd: int, limit: int, after: int | None) -> int:
        """Where to begin reading for `offset`: an indexed frame at or before it."""
        if offset <= segment.base:
            return SEGMENT_HEADER_BYTES
        for _ in range(2):
            try:
                entries = state.index_entries if after is None else None
                with open_index(segment.index_path, segment.header.log, entries) as index:
                    entry = index.at_offset(offset)
                return entry.position if entry and entry.position < limit else SEGMENT_HEADER_BYTES
            except (IndexDamaged, FileNotFoundError):
                if after is None:
                    break
                self._rebuild_index(segment, fd, limit, after)
        return SEGMENT_HEADER_BYTES

    def _rebuild_index(self, segment: Segment, fd: int, limit: int, after: int) -> None:
        """Index a closed segment anew by walking over its headers."""
        file = FrameFile(fd, limit, seed_of(segment.header.partition), segment.path)
        builder = IndexBuilder(self._config.index_interval)
        for position, header in file.walk_whole(SEGMENT_HEADER_BYTES, segment.base):
            if header.base_offset >= after:
                break
            builder.add(position, header.base_offset, header.max_timestamp)
        self._disk.replace(segment.index_path, builder.pack(segment.header.log, limit), sync=False)

    def time_position(self, timestamp: int, state: State) -> int | None:
        """An offset at or before the first record that is not older than `timestamp`; None when all are older.

        Everything before that offset is older, whatever order the timestamps are in.
        """
        segments = self.segments(state)
        for number, segment in enumerate(segments):
            after = segments[number + 1].base if number + 1 < len(segments) else None
            fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                limit = state.position if after is None else os.fstat(fd).st_size
                found = self._time_in_segment(segment, timestamp, state, fd, limit, after)
            finally:
                os.close(fd)
            if found is not None:
                return found
        return None

    def _time_in_segment(
        self, segment: Segment, timestamp: int, state: State, fd: int, limit: int, after: int | None
    ) -> int | None:
        position = SEGMENT_HEADER_BYTES
        self._locate(segment, state, segment.base + 1, fd, limit, after)  # makes the index sound
        try:
            with open_index(
                segment.index_path, segment.header.log, state.index_entries if after is None else None
            ) as index:
                entry = index.at_time(timestamp)
                position = entry.position if entry else position
        except (IndexDamaged, FileNotFoundError):
            pass
        file = FrameFile(fd, limit, seed_of(segment.header.partition), segment.path)
        for _, header in file.walk_whole(position, segment.base):
            if after is not None and header.base_offset >= after:
                return None
            if header.max_timestamp >= timestamp:
                return header.base_offset
        return None
