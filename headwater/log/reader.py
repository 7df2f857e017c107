"""Reading: frames as views on the files, verified, from any process and without a lock.

A reader takes the published end from the state and never goes beyond it. Closed segments, and large spans of the
growing one, are mapped; what has just been appended is read by `pread`. Bytes below the published end never change in
place, so a view stays valid for as long as someone holds it, whatever is appended, compacted or deleted meanwhile.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
from crc32c import crc32c

from headwater.config import PartitionConfig
from headwater.errors import FrameDamaged, IndexDamaged, OffsetOutOfRange
from headwater.log.commit import Extent
from headwater.log.damage import DamageNotes
from headwater.log.disk import Disk
from headwater.log.frame import (
    AFTER_GAP,
    ALL_ATTRIBUTES,
    BODY_START,
    GROUP,
    HEADER_BYTES,
    MAGIC,
    PREVIOUS,
    STAMP_BYTES,
    Fields,
    FrameHeader,
    Take,
    Taken,
    parse_header,
    unpack_fields,
    verify_body,
)
from headwater.log.index import IndexBuilder, IndexEntry, IndexReader, open_index
from headwater.log.mapping import MappingCache, Span
from headwater.log.open_files import open_file
from headwater.log.refusals import opening
from headwater.log.report import Damage
from headwater.log.schemas import Schemas
from headwater.log.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, list_segments, seed_of
from headwater.log.state import State
from headwater.log.writer import Writer

MAPPED_FROM: Final = 1024 * 1024
"""Spans of the growing segment at least this large are mapped; smaller ones are read."""

_PATIENCE: Final = 10
"""How often a reader looks again when the files are not as the state says, because someone is changing them."""

_Found = TypeVar("_Found")
OnDamage = Callable[[Damage], None]
"""Called for each damaged stretch that a reader passes over."""


class Reader:
    """The reading side of one partition in one process. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        config: PartitionConfig,
        disk: Disk,
        schemas: Schemas,
        state: Callable[[], State],
        writer: Writer,
    ) -> None:
        self._directory = directory
        self.config = config
        self._disk = disk
        self._schemas = schemas
        self._state = state
        self._writer = writer
        self._notes = DamageNotes(writer)
        self._strangers: set[Path] = set()
        self._listed: tuple[int, list[Segment]] = (-1, [])
        self.mappings = MappingCache(config.mapping_cache_bytes)

    def segments(self, state: State) -> list[Segment]:
        """The segments as of this state."""
        layout, segments = self._listed
        if layout != state.layout:
            found, strangers = list_segments(self._directory, state.partition)
            if not self._strangers.issuperset(strangers):
                # One of them may be ours with a damaged header, which recovery can tell and mend.
                self._strangers.update(strangers)
                self._writer.mend()
                return self.segments(self._state())
            segments = [segment for segment in found if segment.base <= state.segment_base]
            self._listed = (state.layout, segments)
            self.mappings.keep_only({segment.header.log for segment in segments})
        return segments

    def sizes(self) -> list[tuple[Segment, int]]:
        """The segments as they are now, with the sizes of their files."""
        return self._patiently(
            lambda state: [(segment, os.stat(segment.path).st_size) for segment in self.segments(state)]
        )

    def _patiently(self, look: Callable[[State], _Found]) -> _Found:
        """Look at the files; look again when they are not as listed, because someone is changing them."""
        for _ in range(_PATIENCE):
            try:
                with opening(self._directory):
                    return look(self._state())
            except FileNotFoundError:
                self._writer.check_present()
                self._listed = (-1, [])
        return look(self._state())

    # Frames in order.

    def read(self, start: int, end: int, take: Take[Taken], on_damage: OnDamage | None = None) -> Iterator[Taken]:
        """What `take` makes of every frame with records in [start, end), in order; of all of them, or an error.

        Damage raises FrameDamaged where `on_damage` is not given; otherwise it is reported and passed over. Records
        that retention removes before they are reached raise OffsetOutOfRange.
        """
        report = partial(self._report, on_damage=on_damage)
        offset = start
        attempts = 0
        while offset < end:
            state = self._state()
            if not state.start <= offset < state.end:
                raise OffsetOutOfRange(offset, state.start, state.end, str(self._directory))
            before = offset
            try:
                offset = yield from self._read_segment(state, offset, end, take, report)
            except FileNotFoundError:
                self._writer.check_present()
                self._listed = (-1, [])  # retention, compaction or a truncation was faster than this reader
            attempts = 0 if offset > before else attempts + 1
            if attempts > _PATIENCE:
                raise FrameDamaged("the log ends before its published end", file=self._directory, offset=offset)

    def _read_segment(
        self, state: State, offset: int, end: int, take: Take[Taken], on_damage: OnDamage
    ) -> Generator[Taken, None, int]:
        """The frames of the segment that holds `offset`; returns the offset to go on with."""
        with opening(self._directory):
            segment, after = self._holding(offset, state)
        stop = end if after is None else min(end, after)
        with self._opened(segment, after, state) as file:
            with opening(self._directory):
                position = self._seek(segment, after, state, file, lambda index: index.at_offset(offset))
                span = self._span(segment, after, file, position)
            offset, position = yield from _follow(file, span, position, segment.base, offset, stop, take, on_damage)
        if after is None or offset >= stop:
            return offset
        if not segment.header.compacted:
            on_damage(Damage(segment.path, position, offset, stop, "the end of a segment is missing"))
        return stop

    def _holding(self, offset: int, state: State) -> tuple[Segment, int | None]:
        """The segment that holds an offset, and where the next one begins, if there is one."""
        segments = self.segments(state)
        number = bisect_right(segments, offset, key=lambda segment: segment.base) - 1
        if number < 0:
            raise FileNotFoundError(self._directory)
        return segments[number], segments[number + 1].base if number + 1 < len(segments) else None

    def locate(self, start: int, end: int, most_bytes: int) -> tuple[Extent, int] | None:
        """Where frames with records in [start, end) lie, about so many bytes of them; and the offset to go on with.

        They are of one segment. Only their stamps are verified: that their bodies are whole is for who reads them to
        see. None where not even that can be said: reading tells what is wrong.
        """
        state = self._state()
        with suppress(FileNotFoundError, FrameDamaged):
            segment, after = self._holding(start, state)
            with self._opened(segment, after, state) as file:
                position = self._seek(segment, after, state, file, lambda index: index.at_offset(start))
                found = _extent(file, position, start, end, most_bytes)
                if found is None:
                    return None
                first, stop, last, following = found
                extent = Extent(str(segment.path), segment.header.log, first, stop - first, last.stamp_crc)
                limit = state.end if after is None else after
                if following is not None and following < limit:
                    reached = following
                elif last.next_offset == limit or segment.header.compacted:
                    reached = limit
                else:
                    return None  # the end of the segment is missing
                return extent, min(reached, end)
        return None

    def note(self, damage: Damage) -> None:
        """Note damage for everyone, as if a reader had met it."""
        self._notes.meet(damage)

    def forget_damage(self, start: int, end: int) -> None:
        """Damage in [start, end) was mended: note it again when it is met again."""
        self._notes.forget(start, end)

    def _report(self, damage: Damage, on_damage: OnDamage | None) -> None:
        self.note(damage)
        if on_damage is None:
            raise FrameDamaged(
                damage.reason,
                file=damage.file,
                position=damage.position,
                offset=damage.offset,
                next_offset=damage.next_offset,
            )
        on_damage(damage)

    @contextmanager
    def _opened(self, segment: Segment, after: int | None, state: State) -> Iterator[FrameFile]:
        """The segment's file, bounded by what may be read of it."""
        with opening(self._directory):
            fd = open_file(segment.path, os.O_RDONLY)
        try:
            # The file of that name may be another one by now: compacted, cut, or mended.
            content = os.pread(fd, SEGMENT_HEADER_BYTES, 0)
            if content != segment.header.pack() or (after is None and segment.header.log != state.segment):
                raise FileNotFoundError(segment.path)
            limit = state.position if after is None else os.fstat(fd).st_size
            yield FrameFile(fd, limit, seed_of(state.partition), segment.path)
        finally:
            os.close(fd)

    def _span(self, segment: Segment, after: int | None, file: FrameFile, position: int) -> Span:
        if after is None and file.end - position < MAPPED_FROM:
            content = os.pread(file.fd, file.end - position, position)
            return Span(position, pa.py_buffer(content), memoryview(content))
        return self.mappings.get(segment.header.log, file.end, file.fd)

    # Finding a place.

    def _seek(
        self,
        segment: Segment,
        after: int | None,
        state: State,
        file: FrameFile,
        search: Callable[[IndexReader], IndexEntry | None],
    ) -> int:
        """The position that `search` finds in the index, or the segment's first. An unsound index is made anew."""
        entries = state.index_entries if after is None else None
        for attempt in range(2):
            with suppress(IndexDamaged):
                with open_index(segment.index_path, segment.header.log, entries) as index:
                    entry = search(index)
                return entry.position if entry and entry.position < file.end else SEGMENT_HEADER_BYTES
            if after is None or attempt:
                break  # the growing segment's index is its writers' to mend
            self._rebuild_index(segment, after, file)
        return SEGMENT_HEADER_BYTES

    def _rebuild_index(self, segment: Segment, after: int, file: FrameFile) -> None:
        """Index a closed segment anew by walking over its headers. Where it cannot be written, readers walk."""
        builder = IndexBuilder(self.config.index_interval)
        for position, header in file.walk_stamped(SEGMENT_HEADER_BYTES, segment.base):
            if header.base_offset >= after:
                break
            builder.add(position, header.length, header.base_offset, header.max_timestamp)
        with suppress(OSError):
            self._disk.replace(segment.index_path, builder.pack(segment.header.log, file.end), sync=False)

    def time_position(self, timestamp: int) -> int | None:
        """The base offset of the first frame that says it has a record not older than `timestamp`; None if none does.

        Everything before that frame is older, whatever order the timestamps are in, or damaged.
        """
        return self._patiently(lambda state: self._time_position(timestamp, state))

    def _time_position(self, timestamp: int, state: State) -> int | None:
        segments = self.segments(state)
        for number, segment in enumerate(segments):
            after = segments[number + 1].base if number + 1 < len(segments) else None
            with self._opened(segment, after, state) as file:
                position = self._seek(segment, after, state, file, lambda index: index.at_time(timestamp))
                for _, header in file.walk_stamped(position, segment.base):
                    if after is not None and header.base_offset >= after:
                        break
                    if header.max_timestamp >= timestamp:
                        return header.base_offset
        return None


def _follow(
    file: FrameFile,
    span: Span,
    position: int,
    base: int,
    offset: int,
    stop: int,
    take: Take[Taken],
    on_damage: OnDamage,
) -> Generator[Taken, None, tuple[int, int]]:
    """The frames from `position` on, from `offset` up to `stop`; returns the next offset and position.

    All reading goes through this loop, so it verifies with the fewest calls, and leaves explaining what is wrong to
    those that do the same at leisure.
    """
    start, buffer, view = span
    seed, limit, size = file.seed, file.end, len(view)
    position, previous, passed = _skip(file, view, start, position, base, offset)
    while position < limit:
        resume = position
        try:
            at = position - start
            if size - at < HEADER_BYTES:
                raise FrameDamaged("the header of a frame is cut short")
            fields = unpack_fields(view, at)
            magic, length, first, _, _, follows, _, body, stamp, bits, _, count, last, _, _, _, _, _, rest = fields
            if (
                magic != MAGIC
                or crc32c(view[at : at + STAMP_BYTES], seed) != stamp
                or at + length > size
                or crc32c(view[at + BODY_START : at + length]) != body
                or bits > ALL_ATTRIBUTES
                or not count
                or rest
            ):
                verify_body(view, at, parse_header(view, at, seed))  # says what is wrong
            if first >= stop:
                offset = _before_next(fields, previous, offset, stop)
                break
            if follows != previous and previous is not None:
                # Behind a gap it is good; in the very place of another frame it is not the one that was there.
                resume = position if first > offset else position + length
                raise FrameDamaged("a frame does not follow the one before it")
        except FrameDamaged as error:
            found = file.find(resume, passed)
            while found and found[1].next_offset <= offset:
                found = file.find(found[0] + found[1].length, found[1].next_offset)
            lost_to = min(found[1].base_offset, stop) if found else stop
            if lost_to > offset:
                on_damage(Damage(file.path, position, offset, lost_to, error.reason))
                offset = lost_to
            if found is None:
                break
            position, previous = found[0], None
            continue
        passed = first + last + 1
        if passed > offset:  # else it ends before a gap in which `offset` is
            offset = passed
            taken = take(fields, buffer, at)
            if taken is not None:
                yield taken
        previous = stamp
        position += length
    return offset, position


def _extent(
    file: FrameFile, position: int, start: int, end: int, most_bytes: int
) -> tuple[int, int, FrameHeader, int | None] | None:
    """Between which positions the frames with records in [start, end) lie, up to about so many bytes.

    With them, the header of the last one, and the offset where the one behind it begins, if there is one. None where
    there are none, or they do not follow one another. Raises FrameDamaged.
    """
    first, stop = position, file.end
    lead = previous = None
    following: int | None = None
    for at, header in file.walk(position):
        if previous is not None and header.previous != previous.stamp_crc:
            return None
        if header.base_offset >= end or (header.base_offset > start and at - first >= most_bytes):
            stop, following = at, header.base_offset
            break
        if lead is None or header.base_offset <= start:
            first, lead = at, header
        previous = header
    if lead is None or previous is None:
        return None
    if lead.next_offset <= start:
        # It ends before a gap in which `start` is, or so says a part of it that the stamp does not vouch for.
        if not file.is_whole(first):
            return None
        first += lead.length
    return (first, stop, previous, following) if first < stop else None


def _before_next(fields: Fields, previous: int | None, offset: int, stop: int) -> int:
    """How far the log is known before a frame at or beyond `stop`: all of it, if that says that nothing is missing."""
    follows = previous is None or fields[PREVIOUS] == previous
    return stop if fields[GROUP] & AFTER_GAP and follows else offset


def _skip(
    file: FrameFile, view: memoryview, start: int, position: int, passed: int, offset: int
) -> tuple[int, int | None, int]:
    """From `position` on to the last frame that begins at or before `offset`, or else to the first damaged one.

    Where frames begin is in their stamps, which are verified here. How far they reach is not, and not gone by.
    Returns its position, the stamp before it, and the offset up to which everything was passed over.
    """
    previous = None
    with suppress(FrameDamaged):
        header = parse_header(view, position - start, file.seed)
        while position + header.length < file.end:
            following = parse_header(view, position + header.length - start, file.seed)
            if following.base_offset > offset:
                break
            previous, passed = header.stamp_crc, following.base_offset
            position, header = position + header.length, following
    return position, previous, passed
