"""Reading: frames as views on the files, verified, from any process and without a lock.

A reader takes the published end from the state and never goes beyond it. Closed segments, and large spans of the
growing one, are mapped; what has just been appended is read by `pread`. Bytes below the published end never change in
place, so a view stays valid for as long as someone holds it, whatever is appended, compacted or deleted meanwhile.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from headwater.core.errors import (
    Damaged,
    FrameDamaged,
    IndexDamaged,
    OffsetOutOfRange,
    OpenFailed,
    PartitionPoisoned,
    SegmentListDamaged,
    WriteFailed,
)
from headwater.log.files.disk import open_plain
from headwater.log.files.index import IndexBuilder, IndexEntry, IndexReader, open_index
from headwater.log.files.mapping import MappedSpan, MappingCache
from headwater.log.files.refusals import opening
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, SegmentHeader, seed_of
from headwater.log.files.segment_list import LIST_FILE, NO_LOG, ListedSegment, SegmentList
from headwater.log.files.state import State
from headwater.log.format.frame import (
    AFTER_GAP,
    BASE_OFFSET,
    GROUP,
    LAST_OFFSET_DELTA,
    LENGTH,
    PREVIOUS,
    STAMP_CRC,
    Fields,
    FrameHeader,
    Take,
    Taken,
)
from headwater.log.format.verify import verify_frame, verify_stamp
from headwater.log.recover.damage import DamageNotes
from headwater.log.recover.inventory import EMPTY, FOREIGN, MISSING, SHORTER
from headwater.log.recover.report import Damage
from headwater.log.write.commit import Extent
from headwater.log.write.owner import PartitionOwner

MAPPED_FROM: Final = 1024 * 1024
"""Spans of the growing segment at least this large are mapped; smaller ones are read."""

_PATIENCE: Final = 10
"""The number of times that a reader looks again if the files differ from the state because a process changes them."""
_AT_ONCE: Final = 3
"""So often it does that without waiting."""

_NO_FILE: Final = (errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.ENOTDIR)
"""The errors of opening something that has the name of a segment and cannot be its file."""

_Found = TypeVar("_Found")
OnDamage = Callable[[Damage], None]
"""Called for each damaged stretch that a reader passes over."""


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
            found: list[Damage] = []
            for entry in lost:
                with suppress(OffsetOutOfRange):
                    first = max(entry.base, state.start)
                    for _ in self.read(first, entry.end, lambda *_: None, found.append):
                        pass
            return found

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
        found = _read_list(self._directory, state)
        try:
            yield found
        finally:
            if found is not None:
                found.close()

    def _sort_out_mappings(self, state: State) -> None:
        """Give back mappings of files that were replaced or removed: until then they keep their place on the disk."""
        layout, generation, listed = self._known
        now = (state.layout, state.list_generation, state.listed)
        if now == self._known:
            return
        self._known = now
        only_rolls = state.list_generation == generation and state.layout - layout == state.listed - listed
        mapped = self.mappings.mapped()
        if only_rolls or not mapped:
            return
        with suppress(SegmentListDamaged):
            found = _read_list(self._directory, state)
            try:
                self.mappings.drop([one for one in mapped if not _is_part(one, state, found)])
            finally:
                if found is not None:
                    found.close()

    def _patiently(self, look: Callable[[State], _Found]) -> _Found:
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
            with self._opened(entry, state) as found:
                segment, file = found.segment, found.file
                with opening(self._directory):
                    position = self._seek(found, state, lambda index: index.at_offset(offset))
                    span = self._span(found, position)
                offset, position = yield from _follow(file, span, position, segment.base, offset, stop, take, on_damage)
        except _SegmentLost as lost:
            if entry is None or not self._stays(entry, lost):
                self._mend(lost, state)
                raise FileNotFoundError(lost.file) from None
            on_damage(Damage(lost.file, 0, offset, stop, lost.reason))
            return stop
        if entry is None or offset >= stop:
            return offset
        if not found.whole:
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

    def _stays(self, entry: ListedSegment, lost: _SegmentLost) -> bool:
        """Return True if a segment that could not be opened is lost: nobody has changed the list meanwhile."""
        state = self._state()
        with suppress(FileNotFoundError, SegmentListDamaged):
            unchanged = entry.end > state.start and self._holding(entry.base, state) == entry
            return unchanged and (not lost.mendable or entry.base in self._mended)
        return False

    def _mend(self, lost: _SegmentLost, state: State) -> None:
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
            with self._opened(entry, state) as found:
                segment = found.segment
                position = self._seek(found, state, lambda index: index.at_offset(start))
                extent_found = _extent(found.file, position, start, end, most_bytes)
                if extent_found is None:
                    return None
                first, stop, last, following = extent_found
                extent = Extent(str(segment.path), segment.header.log, first, stop - first, last.stamp_crc)
                limit = state.end if entry is None else entry.end
                if following is not None and following < limit:
                    reached = following
                elif last.next_offset == limit or (segment.header.compacted and found.whole):
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
    def _opened(self, entry: ListedSegment | None, state: State) -> Iterator[_OpenSegment]:
        """The file of a closed segment, or of the growing one, bounded by what may be read of it.

        Raises _SegmentLost when it is not there, or another one.
        """
        base = state.segment_base if entry is None else entry.base
        path = self._directory / f"{base:020d}.log"
        try:
            fd = open_plain(path)
        except FileNotFoundError:
            raise _SegmentLost(path, MISSING) from None
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise OpenFailed(self._directory, error) from error
            raise _SegmentLost(path, FOREIGN) from error
        try:
            content = os.pread(fd, SEGMENT_HEADER_BYTES, 0)
            size = os.fstat(fd).st_size
            if entry is None:
                segment, length = _growing(path, content, state), state.position
            else:
                segment, length = _matching(path, content, entry, state)
            file = FrameFile(fd, min(size, length), seed_of(state.partition), path)
            yield _OpenSegment(segment, file, size >= length, None if entry is None else entry.end)
        finally:
            os.close(fd)

    def _span(self, found: _OpenSegment, position: int) -> MappedSpan:
        file = found.file
        if found.end is None and file.end - position < MAPPED_FROM:
            content = os.pread(file.fd, file.end - position, position)
            return MappedSpan(position, pa.py_buffer(content), memoryview(content))
        return self.mappings.get(found.segment.base, found.segment.header.log, file.end, file.fd)

    # Finding a place.

    def _seek(self, found: _OpenSegment, state: State, search: Callable[[IndexReader], IndexEntry | None]) -> int:
        """The position that `search` finds in the index, or the segment's first. An unsound index is made anew."""
        segment, file = found.segment, found.file
        entries = state.index_entries if found.end is None else None
        for attempt in range(2):
            with suppress(IndexDamaged):
                with open_index(segment.index_path, segment.header.log, entries) as index:
                    entry = search(index)
                return entry.position if entry and entry.position < file.end else SEGMENT_HEADER_BYTES
            if found.end is None or attempt:
                break  # the growing segment's index is its writers' to mend
            self._rebuild_index(segment, found.end, file)
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
                        found = self._time_in_segment(timestamp, entry, state)
                        if found is not None:
                            return found
        return self._time_in_segment(timestamp, None, state)

    def _time_in_segment(self, timestamp: int, entry: ListedSegment | None, state: State) -> int | None:
        try:
            with self._opened(entry, state) as found:
                position = self._seek(found, state, lambda index: index.at_time(timestamp))
                for _, header in found.file.walk_stamped(position, found.segment.base):
                    if entry is not None and header.base_offset >= entry.end:
                        break
                    if header.max_timestamp >= timestamp:
                        return header.base_offset
        except _SegmentLost as lost:
            if entry is None or not self._stays(entry, lost):
                self._mend(lost, state)
                raise FileNotFoundError(lost.file) from None
            self.note(Damage(lost.file, 0, max(entry.base, state.start), entry.end, lost.reason))
        return None


class _OpenSegment(NamedTuple):
    """A segment that is open. It is `whole` when nothing of it is missing at its end; `end` is None while it grows."""

    segment: Segment
    file: FrameFile
    whole: bool
    end: int | None


class _SegmentLost(FrameDamaged):
    """The file of a segment is not there, or another one. If its header alone is damaged, recovery may mend it."""

    def __init__(self, file: Path, reason: str, *, mendable: bool = False) -> None:
        super().__init__(reason, file=file, position=0)
        self.file: Path = file
        self.mendable = mendable


def _growing(path: Path, content: bytes, state: State) -> Segment:
    """The growing segment, if this is its header."""
    try:
        header = SegmentHeader.unpack(content)
    except Damaged as error:
        raise _SegmentLost(path, error.reason, mendable=True) from None
    if header.log != state.segment or header.partition != state.partition:
        raise _SegmentLost(path, FOREIGN)
    return Segment(path, header)


def _matching(path: Path, content: bytes, entry: ListedSegment, state: State) -> tuple[Segment, int]:
    """The closed segment, or the one that it is just replacing, with its length; raises unless this is its header."""
    directory = path.parent
    segment = entry.segment(directory, state.partition)
    if content == segment.header.pack():
        return segment, entry.length
    former = entry.former(directory, state.partition)
    if former is not None and content == former.header.pack():
        return former, entry.former_length
    if not content:
        raise _SegmentLost(path, EMPTY)
    try:
        SegmentHeader.unpack(content)
    except Damaged as error:
        raise _SegmentLost(path, error.reason, mendable=not entry.lost) from None
    raise _SegmentLost(path, FOREIGN)


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


def _follow(
    file: FrameFile,
    span: MappedSpan,
    position: int,
    base: int,
    offset: int,
    stop: int,
    take: Take[Taken],
    on_damage: OnDamage,
) -> Generator[Taken, None, tuple[int, int]]:
    """The frames from `position` on, from `offset` up to `stop`; returns the next offset and position.

    All reading goes through this loop, so it makes the fewest calls.
    """
    start, buffer, view = span
    seed, limit = file.seed, file.end
    size = min(len(view), limit - start)  # a file that was cut may have been mapped when it was longer
    position, previous, passed = _skip(file, view, start, position, base, offset)
    while position < limit:
        resume = position
        try:
            at = position - start
            fields = verify_frame(view, at, size, seed)
            length, first, follows = fields[LENGTH], fields[BASE_OFFSET], fields[PREVIOUS]
            if first >= stop:
                offset = _before_next(fields, previous, offset, stop)
                break
            if follows != previous and previous is not None:
                # Behind a gap it is good; in the very place of another frame it is not the one that was there.
                resume = position if first > offset else position + length
                raise FrameDamaged("a frame does not follow the one before it")
        except FrameDamaged as error:
            found = file.find_beyond(resume, passed, offset)
            lost_to = min(found[1].base_offset, stop) if found else stop
            if lost_to > offset:
                on_damage(Damage(file.path, position, offset, lost_to, error.reason))
                offset = lost_to
            if found is None:
                break
            position, previous = found[0], None
            continue
        passed = first + fields[LAST_OFFSET_DELTA] + 1
        if passed > offset:  # else it ends before a gap in which `offset` is
            offset = passed
            taken = take(fields, buffer, at)
            if taken is not None:
                yield taken
        previous = fields[STAMP_CRC]
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
    """Return the end of the known log before a frame at or beyond `stop`: `stop`, if the frame vouches for it."""
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
        header = verify_stamp(view, position - start, file.seed)
        while position + header.length < file.end:
            following = verify_stamp(view, position + header.length - start, file.seed)
            if following.base_offset > offset:
                break
            previous, passed = header.stamp_crc, following.base_offset
            position, header = position + header.length, following
    return position, previous, passed
