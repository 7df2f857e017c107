"""The inventory of a partition: its files held against the list of closed segments. Nothing is changed.

The list says which closed segments there must be. Files tell the rest: which segment is growing, and what the list
would say if it is missing, damaged or older than the files.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from headwater.core.errors import Damaged, FrameDamaged, IndexDamaged, SegmentListDamaged
from headwater.log.files.disk import open_plain
from headwater.log.files.index import INDEX_HEADER_BYTES, NEVER, IndexHeader
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, seed_of
from headwater.log.files.segment_list import (
    NO_LOG,
    UNKNOWN,
    ListedSegment,
    SegmentList,
    listed_segment,
    lost_segment,
    with_newest,
)
from headwater.log.files.state import State
from headwater.log.recover.report import Damage

_NAME: Final = re.compile(r"(\d{20})\.log", re.ASCII)
MISSING: Final = "the file of a closed segment is missing"
EMPTY: Final = "the file of a closed segment is empty"
FOREIGN: Final = "the file of a closed segment is another one than was closed"
SHORTER: Final = "the file of a closed segment is shorter than when it was closed"


@dataclass(slots=True)
class Inventory:
    """The files of a partition. Entries that were made from files stand in for those that the list should have."""

    closed: list[ListedSegment] = field(default_factory=list)
    """The closed segments from `start` on, without a gap between them."""
    own: dict[int, Segment] = field(default_factory=dict)
    """The segments whose files are this log's, by their bases."""
    growing: Segment | None = None
    """The last segment, unless it is closed: then the growing one is missing."""
    leftovers: list[Path] = field(default_factory=list)
    """Files of segments that were deleted."""
    strangers: list[Path] = field(default_factory=list)
    """Files that look like segments and are not part of this log."""
    garbled: list[Path] = field(default_factory=list)
    """Files of which the log's own may be some, with a damaged header."""
    damage: list[Damage] = field(default_factory=list)
    on_disk: list[ListedSegment] = field(default_factory=list)
    """The entries that the list has, up to the first one that is damaged."""
    entries: int = 0
    """The number of entries in the list, sound or not."""
    generation: int = 0
    """That of the list; 0 when there is none, or none that is sound."""
    made: bool = False
    """True if entries were made from files, although there should have been a list that has them."""


class _Taker:
    """Takes one inventory."""

    def __init__(self, directory: Path, partition: bytes, state: State | None, start: int, thorough: bool) -> None:
        self._directory = directory
        self._partition = partition
        self._state = state
        self._start = start
        self._thorough = thorough
        self._sizes: dict[int, int] = {}
        self._result = Inventory()
        self._own = self._result.own

    def take(self) -> Inventory:
        entries = self._read_list()
        self._look_at_files(entries)
        entries = [self._settled(entry) for entry in entries]
        entries = self._without_growing(entries)
        made = self._adopt(entries)
        if self._state is not None and self._state.list_generation:
            self._result.made |= any(entry.end > self._start for entry in made)
        self._result.closed = self._without_gaps(sorted((*entries, *made), key=lambda entry: entry.base))
        self._compare()
        named = {entry.base for entry in self._result.closed}
        self._result.strangers = [path for path in self._result.strangers if int(path.stem) not in named]
        return self._result

    def _read_list(self) -> list[ListedSegment]:
        """The sound entries of the list, unless all of it is from another time."""
        result, state = self._result, self._state
        expected = state is not None and state.listed > 0
        try:
            listed = SegmentList.read(self._directory, self._partition)
        except FileNotFoundError:
            result.made = expected
            return []
        except SegmentListDamaged:
            result.made = expected
            return []
        try:
            scanned = list(listed.scan())
            result.generation, result.entries = listed.generation, len(scanned)
        finally:
            listed.close()
        if state is not None:
            result.made = state.list_generation > listed.generation or (
                state.list_generation == listed.generation and state.listed > len(scanned)
            )
        for entry in scanned:
            if entry is None:
                break
            result.on_disk.append(entry)
        sound = [entry for entry in scanned if entry is not None]
        result.made |= len(sound) < len(scanned) and scanned[-1] is not None
        ordered = all(entry.base < entry.end <= after.base for entry, after in pairwise(sound))
        if not ordered or any(entry.base >= entry.end for entry in sound[-1:]):
            result.made, result.on_disk = True, []
            return []
        return sound

    def _look_at_files(self, entries: list[ListedSegment]) -> None:
        """Find out which files are the log's own. One that is as long as its entry says is not opened."""
        by_base = {entry.base: entry for entry in entries}
        with os.scandir(self._directory) as names:
            files = sorted((entry for entry in names if _NAME.fullmatch(entry.name)), key=lambda entry: entry.name)
        for file in files:
            path, base = Path(file.path), int(file.name[:20])
            try:
                if not stat.S_ISREG(file.stat(follow_symlinks=False).st_mode):
                    raise Damaged("not a plain file")
                size = file.stat(follow_symlinks=False).st_size
                entry = by_base.get(base)
                sealed = entry is not None and not entry.lost and entry.former_log == NO_LOG and size == entry.length
                if sealed and not self._thorough and entry is not None:
                    segment = entry.segment(self._directory, self._partition)
                else:
                    segment = Segment.read(path)
                if segment.header.partition != self._partition:
                    raise Damaged("a segment of another log")
            except FileNotFoundError:
                continue
            except Damaged:
                self._result.strangers.append(path)
                self._result.garbled.append(path)
            else:
                self._sizes[base], self._own[base] = size, segment

    def _settled(self, entry: ListedSegment) -> ListedSegment:
        """The entry as the file has it, when compaction was interrupted."""
        if entry.former_log == NO_LOG:
            return entry
        own = self._own.get(entry.base)
        return entry.settled_as(None if own is None else own.header.log)

    def _without_growing(self, entries: list[ListedSegment]) -> list[ListedSegment]:
        """Without the last entry if its segment goes on growing: the roll that was to close it was interrupted."""
        state = self._state
        last = max(self._own, default=-1)
        if state is None or not entries or entries[-1].base != last or self._own[last].header.log != state.segment:
            return entries
        return entries[:-1]

    def _adopt(self, entries: list[ListedSegment]) -> list[ListedSegment]:
        """Entries for the segments that have none. The last one is growing, unless a listed one lies behind it."""
        result = self._result
        listed = {entry.base for entry in entries}
        ends = entries[-1].end if entries else 0
        unlisted = [segment for base, segment in sorted(self._own.items()) if base not in listed]
        adopted: list[Segment] = []
        number = 0
        for segment in unlisted:
            while number < len(entries) and entries[number].end <= segment.base:
                number += 1
            after = entries[number].base if number < len(entries) else None
            if after is not None and after < segment.base:
                result.strangers.append(segment.path)  # in the middle of a segment that is listed
            elif number == 0 and after is not None and after <= self._start:
                result.leftovers.append(segment.path)
            else:
                adopted.append(segment)
        if adopted and adopted[-1].base >= ends:
            result.growing = adopted.pop()
        growing = [result.growing.base] if result.growing else []
        bases = sorted([*listed, *(segment.base for segment in adopted), *growing])
        made = []
        for segment in adopted:
            end = self._end_before_garbled(segment, bases[bases.index(segment.base) + 1])
            following = self._own.get(end)
            sealed_ns = following.header.created_ns if following is not None else segment.header.created_ns
            made.append(described(segment, end, sealed_ns))
        return made

    def _end_before_garbled(self, segment: Segment, end: int) -> int:
        """Return the end of a segment without an entry, if a garbled file stands where another one followed it.

        Of a segment that is not compacted the frames tell that, as there is one for each offset.
        """
        between = [base for path in self._result.garbled if segment.base < (base := int(path.stem)) < end]
        if not between or not segment.header.compacted:
            return end
        reached = readable_end(segment, self._sizes[segment.base])[1]
        return next((base for base in between if base >= reached), end)

    def _without_gaps(self, entries: list[ListedSegment]) -> list[ListedSegment]:
        """The entries from the log's start on, with one for whatever is missing between them."""
        growing = self._result.growing
        whole: list[ListedSegment] = []
        begin = self._start if self._state is not None else None
        for entry in entries:
            if begin is not None and entry.base > begin:
                whole.append(lost_segment(begin, entry.base))
            whole.append(entry)
            begin = entry.end
        if growing is not None and begin is not None and growing.base > begin:
            whole.append(lost_segment(begin, growing.base))
        for entry in whole:
            if entry.end <= self._start and entry.base in self._own:
                self._result.leftovers.append(self._own[entry.base].path)
        return list(with_newest(entry for entry in whole if entry.end > self._start))

    def _compare(self) -> None:
        """Name what is lost of the closed segments."""
        for entry in self._result.closed:
            own = self._own.get(entry.base)
            path = self._directory / f"{entry.base:020d}.log"
            size = self._sizes.get(entry.base)
            if own is None or size is None:
                reason = EMPTY if _is_empty(path) else FOREIGN if path.is_file() else MISSING
                self._result.damage.append(Damage(path, 0, max(entry.base, self._start), entry.end, reason))
            elif own.header.log != entry.log:
                self._result.damage.append(Damage(path, 0, max(entry.base, self._start), entry.end, FOREIGN))
            elif size < entry.length:
                position, offset = readable_end(own, size)
                if max(offset, self._start) < entry.end:
                    lost = Damage(path, position, max(offset, self._start), entry.end, SHORTER)
                    self._result.damage.append(lost)


def take_inventory(
    directory: Path, partition: bytes, state: State | None, start: int, *, thorough: bool = False
) -> Inventory:
    """Return the inventory of a log that begins at `start`. Only a `thorough` one opens files that look right."""
    return _Taker(directory, partition, state, start, thorough).take()


def described(segment: Segment, end: int, sealed_ns: int, *, flags: int = 0) -> ListedSegment:
    """The entry that a segment should have, as its file and its index tell."""
    header = segment.header
    with open(open_plain(segment.path), "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        length = header.length or size
        known = _indexed_timestamp(segment)
        if known is not None:
            return listed_segment(header, end, length, UNKNOWN, known, sealed_ns, flags)
        records, newest = 0, NEVER
        file = FrameFile(opened.fileno(), min(size, length), seed_of(header.partition), segment.path)
        for _, frame in file.walk_stamped(SEGMENT_HEADER_BYTES, segment.base):
            if frame.base_offset >= end:
                break
            records, newest = records + frame.record_count, max(newest, frame.max_timestamp)
        return listed_segment(header, end, length, records, newest, sealed_ns, flags)


def _indexed_timestamp(segment: Segment) -> int | None:
    """The greatest timestamp of a closed segment, if its index tells."""
    try:
        fd = open_plain(segment.index_path)
    except OSError:
        return None
    try:
        header = IndexHeader.unpack(os.pread(fd, INDEX_HEADER_BYTES, 0))
    except IndexDamaged:
        return None
    finally:
        os.close(fd)
    return header.max_timestamp if header.log == segment.header.log and header.covered else None


def readable_end(segment: Segment, size: int) -> tuple[int, int]:
    """The position and the offset up to which a segment of `size` bytes can be read."""
    position, offset = SEGMENT_HEADER_BYTES, segment.base
    fd = open_plain(segment.path)
    try:
        file = FrameFile(fd, size, seed_of(segment.header.partition), segment.path)
        for position, header in file.walk_stamped(SEGMENT_HEADER_BYTES, segment.base):
            if file.is_whole(position):
                position, offset = position + header.length, header.next_offset
    except FrameDamaged:
        pass
    finally:
        os.close(fd)
    return position, offset


def _is_empty(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode) and os.lstat(path).st_size == 0
    except OSError:
        return False


def segment_paths(directory: Path) -> Iterator[Path]:
    """The files that are named as segments are."""
    for name in sorted(os.listdir(directory)):
        if _NAME.fullmatch(name):
            yield directory / name
