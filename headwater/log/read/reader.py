"""Reading: frames as views on the files, verified, from any process and without a lock.

A reader takes the published end from the state and never goes beyond it. Closed segments, and large spans of the
growing one, are mapped; what has just been appended is read by `pread`. Bytes below the published end never change in
place, so a view stays valid for as long as someone holds it, whatever is appended, compacted or deleted meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from headwater.core.errors import (
    FrameDamaged,
    IndexDamaged,
    OffsetOutOfRange,
    OpenFailed,
    PartitionPoisoned,
    SegmentListDamaged,
    WriteFailed,
)
from headwater.log.files.counters import Counters
from headwater.log.files.index import IndexBuilder, IndexEntry, IndexReader, open_index
from headwater.log.files.mapping import MappedSpan, MappingCache
from headwater.log.files.refusals import opening
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment
from headwater.log.files.segment_list import LIST_FILE, NO_LOG, ListedSegment, SegmentList
from headwater.log.files.state import State
from headwater.log.format.frame import Take, Taken
from headwater.log.read.following import follow, frames_between
from headwater.log.read.open_segment import OpenSegment, SegmentLost, open_segment
from headwater.log.recover.damage import DamageNotes
from headwater.log.recover.inventory import SHORTER
from headwater.log.recover.report import Damage, OnDamage
from headwater.log.write.commit import Extent
from headwater.log.write.owner import PartitionOwner

MAPPED_FROM: Final = 1024 * 1024
"""Spans of the growing segment at least this large are mapped; smaller ones are read."""

_PATIENCE: Final = 10
"""The number of times that a reader looks again if the files differ from the state because a process changes them."""
_AT_ONCE: Final = 3
"""So often it does that without waiting."""

_COUNTED_EVERY: Final = 1.0
"""A reader that maps segments tells other processes of it at most once in so many seconds."""

_Answer = TypeVar("_Answer")


class Reader:
    """The reading side of one partition in one process. Thread-safe."""

    def __init__(self, owner: PartitionOwner, state: Callable[[], State]) -> None:
        self._directory = owner.directory
        self._disk = owner.disk
        self._state = state
        self._owner = owner
        self._notes = DamageNotes(owner)
        self._mended: set[int] = set()
        """The bases of segments whose headers recovery was asked to mend: once is enough."""
        self._known = (-1, 0, 0)
        """The layout, and the list's generation and length, when mappings were last sorted out."""
        self.mappings = MappingCache(owner.config.mapping_cache_bytes)
        self._reads = 0
        self._counted = Counter[str]()
        """The activity of this handle that is not in the state page yet, but for the newest."""
        self._readers = 1
        """1 until this handle counts as a reader."""
        self._counting = threading.Lock()
        self._next_count = 0.0

    # The segments.

    def closed(self) -> tuple[State, list[ListedSegment]]:
        """A state, and the closed segments that the list names then."""
        return self._patiently(self._closed)

    def _closed(self, state: State) -> tuple[State, list[ListedSegment]]:
        with self._list(state) as listed:
            return state, [] if listed is None else _below(listed.entries(), state.segment_base)

    def missing(self) -> list[Damage]:
        """Return the lost parts of closed segments, as the names and sizes of their files tell."""

        def look(state: State) -> list[Damage]:
            _, entries = self._closed(state)
            lost = [entry for entry in entries if entry.end > state.start and self._is_short(entry)]
            if lost and self._closed(self._state())[1] != entries:
                raise FileNotFoundError(self._directory)  # someone is changing them
            damage: list[Damage] = []
            for entry in lost:
                with suppress(OffsetOutOfRange):
                    first = max(entry.base, state.start)
                    for _ in self.read(first, entry.end, lambda *_: None, damage.append):
                        pass
            return damage

        return self._patiently(look)

    def _is_short(self, entry: ListedSegment) -> bool:
        """Return True if a segment's file is shorter than when it was closed."""
        try:
            size = os.stat(self._directory / f"{entry.base:020d}.log").st_size
        except OSError:
            return True
        replacing = entry.former_log != NO_LOG and size == entry.former_length
        return entry.lost or (size < entry.length and not replacing)

    @contextmanager
    def _list(self, state: State) -> Iterator[SegmentList | None]:
        """The list of closed segments as it is now, None where there are none."""
        self._sort_out_mappings(state)
        listed = _read_list(self._directory, state)
        try:
            yield listed
        finally:
            if listed is not None:
                listed.close()

    def _sort_out_mappings(self, state: State) -> None:
        """Give back mappings of files that were replaced or removed: until then they keep their place on the disk."""
        layout, generation, length = self._known
        now = (state.layout, state.list_generation, state.listed)
        if now == self._known:
            return
        self._known = now
        only_rolls = state.list_generation == generation and state.layout - layout == state.listed - length
        mapped = self.mappings.mapped()
        if only_rolls or not mapped:
            return
        with suppress(SegmentListDamaged):
            listed = _read_list(self._directory, state)
            try:
                self.mappings.drop([segment for segment in mapped if not _is_part(segment, state, listed)])
            finally:
                if listed is not None:
                    listed.close()

    def _patiently(self, look: Callable[[State], _Answer]) -> _Answer:
        """Look at the files; look again when they are not as listed, because someone is changing them."""
        for attempt in range(_PATIENCE):
            try:
                with opening(self._directory):
                    return look(self._state())
            except FileNotFoundError:
                self._await_change(attempt)
            except SegmentListDamaged:
                self._mend_list(attempt)
        return look(self._state())

    def _await_change(self, attempt: int) -> None:
        """Look again at once at first; then when the process is done that is changing the files, and has the lock."""
        self._owner.check_present()
        if attempt >= _AT_ONCE:
            with suppress(PartitionPoisoned, OpenFailed, WriteFailed), self._owner.locked():
                pass

    def _mend_list(self, attempt: int) -> None:
        """Have an unsound list made anew, unless an entry of it was just being written."""
        self._owner.check_present()
        if attempt:
            self._owner.mend()

    # Frames in order.

    def read(self, start: int, end: int, take: Take[Taken], on_damage: OnDamage | None = None) -> Iterator[Taken]:
        """Yield what `take` makes of every frame with records in [start, end), in order; of all of them, or an error.

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
                self._await_change(attempts)  # retention, compaction or a truncation was faster than this reader
            except SegmentListDamaged:
                self._mend_list(attempts)
            attempts = 0 if offset > before else attempts + 1
            if attempts > _PATIENCE:
                raise FrameDamaged("the log ends before its published end", file=self._directory, offset=offset)

    def _read_segment(
        self, state: State, offset: int, end: int, take: Take[Taken], on_damage: OnDamage
    ) -> Generator[Taken, None, int]:
        """The frames of the segment that holds `offset`; returns the offset to go on with."""
        with opening(self._directory):
            entry = self._holding(offset, state)
        stop = end if entry is None else min(end, entry.end)
        try:
            with open_segment(self._directory, entry, state) as opened:
                segment, file = opened.segment, opened.file
                with opening(self._directory):
                    position = self._seek(opened, state, lambda index: index.at_offset(offset))
                    span = self._span(opened, position)
                offset, position = yield from follow(file, span, position, segment.base, offset, stop, take, on_damage)
        except SegmentLost as lost:
            if entry is None or not self._stays(entry, lost):
                self._mend(lost, state)
                raise FileNotFoundError(lost.file) from None
            on_damage(Damage(lost.file, 0, offset, stop, lost.reason))
            return stop
        if entry is None or offset >= stop:
            return offset
        if not opened.whole:
            on_damage(Damage(segment.path, position, offset, stop, SHORTER))
        elif not segment.header.compacted:
            on_damage(Damage(segment.path, position, offset, stop, "the end of a segment is missing"))
        return stop

    def _holding(self, offset: int, state: State) -> ListedSegment | None:
        """The closed segment that holds an offset; None for the growing one."""
        if offset >= state.segment_base:
            return None
        with self._list(state) as listed:
            number = -1 if listed is None else listed.holding(offset)
            entry = listed[number] if listed is not None and number >= 0 else None
        if entry is None or entry.end <= offset:
            raise FileNotFoundError(self._directory)
        return entry

    def _stays(self, entry: ListedSegment, lost: SegmentLost) -> bool:
        """Return True if a segment that could not be opened is lost: nobody has changed the list meanwhile."""
        state = self._state()
        with suppress(FileNotFoundError, SegmentListDamaged):
            unchanged = entry.end > state.start and self._holding(entry.base, state) == entry
            return unchanged and (not lost.mendable or entry.base in self._mended)
        return False

    def _mend(self, lost: SegmentLost, state: State) -> None:
        """Have recovery look at a header that is damaged: frames may prove that the file is the log's own."""
        base = int(lost.file.stem)
        if lost.mendable and base not in self._mended and base <= state.segment_base:
            with suppress(WriteFailed):
                self._owner.mend()
            self._mended.add(base)

    def locate(self, start: int, end: int, most_bytes: int) -> tuple[Extent, int] | None:
        """Return the place of frames with records in [start, end), up to about `most_bytes`, and the next offset.

        They are of one segment. Only their stamps are verified: that their bodies are whole is for who reads them to
        see. None where not even that can be said: reading tells what is wrong.
        """
        state = self._state()
        with suppress(FileNotFoundError, SegmentListDamaged, FrameDamaged):
            entry = self._holding(start, state)
            with open_segment(self._directory, entry, state) as opened:
                segment = opened.segment
                position = self._seek(opened, state, lambda index: index.at_offset(start))
                span = frames_between(opened.file, position, start, end, most_bytes)
                if span is None:
                    return None
                first, stop, last, following = span
                extent = Extent(str(segment.path), segment.header.log, first, stop - first, last.stamp_crc)
                limit = state.end if entry is None else entry.end
                if following is not None and following < limit:
                    reached = following
                elif last.next_offset == limit or (segment.header.compacted and opened.whole):
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

    def _span(self, opened: OpenSegment, position: int) -> MappedSpan:
        file = opened.file
        self._reads += 1
        if opened.end is None and file.end - position < MAPPED_FROM:
            content = os.pread(file.fd, file.end - position, position)
            return MappedSpan(position, pa.py_buffer(content), memoryview(content))
        span = self.mappings.get(opened.segment.base, opened.segment.header.log, file.end, file.fd)
        if time.monotonic() >= self._next_count:
            self.publish_counts()
        return span

    # Counting.

    def _gather_counts(self) -> None:
        """Take over what is new. Reads of threads that meet in one line may be one less."""
        reads, self._reads = self._reads, 0
        self._counted += self.mappings.take_activity()
        if reads:
            self._counted["reads"] += reads
            self._counted["readers"] += self._readers
            self._readers = 0

    def with_own(self, counters: Counters) -> Counters:
        """Return the counters of the state page with what this handle has not told it yet."""
        with self._counting:
            self._gather_counts()
            if not self._counted:
                return counters
            added = {name: getattr(counters, name) + number for name, number in self._counted.items()}
        return replace(counters, **added)

    def publish_counts(self) -> None:
        """Let other processes see what this handle has read, if it also appends; later, if someone is at work."""
        self._next_count = time.monotonic() + _COUNTED_EVERY
        with self._counting:
            self._gather_counts()
            if self._counted and self._owner.count_later(self._counted):
                self._counted.clear()

    # Finding a place.

    def _seek(self, opened: OpenSegment, state: State, search: Callable[[IndexReader], IndexEntry | None]) -> int:
        """The position that `search` finds in the index, or the segment's first. An unsound index is made anew."""
        segment, file = opened.segment, opened.file
        entries = state.index_entries if opened.end is None else None
        for attempt in range(2):
            with suppress(IndexDamaged):
                with open_index(segment.index_path, segment.header.log, entries) as index:
                    entry = search(index)
                return entry.position if entry and entry.position < file.end else SEGMENT_HEADER_BYTES
            if opened.end is None or attempt:
                break  # the growing segment's index is its writers' to mend
            self._rebuild_index(segment, opened.end, file)
        return SEGMENT_HEADER_BYTES

    def _rebuild_index(self, segment: Segment, end: int, file: FrameFile) -> None:
        """Index a closed segment anew by walking over its headers. Where it cannot be written, readers walk."""
        builder = IndexBuilder(self._owner.config.index_interval)
        for position, header in file.walk_stamped(SEGMENT_HEADER_BYTES, segment.base):
            if header.base_offset >= end:
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
        with self._list(state) as listed:
            if listed is not None:
                for entry in listed.entries(listed.at_time(timestamp)):
                    if entry.base >= state.segment_base:
                        break
                    if entry.max_timestamp >= timestamp and entry.end > state.start:
                        offset = self._time_in_segment(timestamp, entry, state)
                        if offset is not None:
                            return offset
        return self._time_in_segment(timestamp, None, state)

    def _time_in_segment(self, timestamp: int, entry: ListedSegment | None, state: State) -> int | None:
        try:
            with open_segment(self._directory, entry, state) as opened:
                position = self._seek(opened, state, lambda index: index.at_time(timestamp))
                for _, header in opened.file.walk_stamped(position, opened.segment.base):
                    if entry is not None and header.base_offset >= entry.end:
                        break
                    if header.max_timestamp >= timestamp:
                        return header.base_offset
        except SegmentLost as lost:
            if entry is None or not self._stays(entry, lost):
                self._mend(lost, state)
                raise FileNotFoundError(lost.file) from None
            self.note(Damage(lost.file, 0, max(entry.base, state.start), entry.end, lost.reason))
        return None


def _read_list(directory: Path, state: State) -> SegmentList | None:
    if not state.listed:
        return None
    try:
        return SegmentList.read(directory, state.partition)
    except FileNotFoundError as error:
        raise SegmentListDamaged("the list of segments is missing", file=directory / LIST_FILE) from error


def _below(entries: Iterator[ListedSegment], base: int) -> list[ListedSegment]:
    """The entries of segments before the growing one."""
    return list(takewhile(lambda entry: entry.base < base, entries))


def _is_part(mapped: tuple[int, bytes], state: State, listed: SegmentList | None) -> bool:
    """Return True if a mapped segment, given by its base and log, is still part of the log."""
    base, log = mapped
    if base >= state.segment_base or listed is None:
        return log == state.segment
    number = listed.holding(base)
    return number >= 0 and log in (listed[number].log, listed[number].former_log)
