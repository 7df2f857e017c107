"""Checking: read all of a partition's files and name everything that is not as it was written.

Nothing is changed and no lock is taken, so a partition can be checked while it is in use, from a read-only medium or as
a copy. Every frame passes `admit`, so the files may come from anywhere. A finding is either *damage*, records that were
acknowledged and cannot be read as they were written, or a *note*: something that the engine deals with by itself when
the partition is next opened or read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from headwater.core.errors import Damaged, FrameDamaged, HeadwaterError, IndexDamaged, SchemaError
from headwater.log.files.disk import TEMPORARY, Disk, open_plain, read_plain
from headwater.log.files.index import INDEX_HEADER_BYTES, NEVER, IndexEntry, IndexHeader, open_index
from headwater.log.files.marks import START_FILE, TRUNCATE_FILE, read_mark
from headwater.log.files.segment import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_MAGIC,
    FrameFile,
    Segment,
    SegmentHeader,
    list_segments,
    seed_of,
)
from headwater.log.files.segment_list import LIST_FILE, UNCUT, ListedSegment
from headwater.log.files.state import STATE_BYTES, State, StatePage, unpack_copies
from headwater.log.format.frame import AFTER_GAP, CONTROL, FrameHeader
from headwater.log.format.schemas import SchemaDirectory, Schemas
from headwater.log.format.untrusted import admit
from headwater.log.read.tail import walk
from headwater.log.recover.inventory import Inventory, take_inventory
from headwater.log.recover.recovery import STATE_FILE
from headwater.log.recover.report import Damage
from headwater.log.write.producers import ProducerTable

_ATTEMPTS: Final = 5
"""The number of times that the list of segments is read anew when the partition changes meanwhile."""

OnProgress = Callable[[int, int], None]
"""Called with the bytes checked so far and the bytes there are."""


def read_state_copies(path: Path) -> tuple[State | None, State | None]:
    """Both copies in a state file, each None when it is damaged. The one with the higher sequence counts."""
    return unpack_copies(read_plain(path, STATE_BYTES))


def lost_segments(directory: Path) -> list[Damage]:
    """Return the lost parts of a partition's closed segments, as the names and sizes of their files tell."""
    states = [copy for copy in read_state_copies(directory / STATE_FILE) if copy is not None]
    if not states:
        return []
    state = max(states, key=lambda copy: copy.sequence)
    start = max(state.start, read_mark(directory, START_FILE) or 0)
    return take_inventory(directory, state.partition, state, start).damage


class ReadOnlyDisk(Disk):
    """A disk on which nothing can be changed: descriptors from it refuse writes."""

    def open(self, path: Path) -> int:
        """An existing file, for reading."""
        return open_plain(path)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be. Damage with offsets says which records are lost to it."""

    kind: Literal["damage", "note"]
    file: Path
    reason: str
    position: int | None = None
    offset: int | None = None
    next_offset: int | None = None


@dataclass(slots=True)
class SegmentSummary:
    """The numbers of one segment; `end` is the offset after its last record."""

    file: Path
    base: int
    end: int
    bytes: int
    compacted: bool
    frames: int = 0
    records: int = 0
    damage: int = 0


class Check:
    """One check of one partition: iterate over `run()` for the findings; the attributes fill up on the way."""

    def __init__(
        self, directory: Path, *, schemas: Schemas | None = None, on_progress: OnProgress | None = None
    ) -> None:
        self.directory = directory
        self.schemas = schemas if schemas is not None else SchemaDirectory(directory / "schemas")
        self.partition: bytes = bytes(16)
        self.start = 0
        self.segments: list[SegmentSummary] = []
        self.bytes_done = 0
        self.bytes_total = 0
        self._on_progress = on_progress
        self._state: State | None = None
        self._listed: list[Segment] = []
        self._closed: dict[int, ListedSegment] = {}

    @property
    def end(self) -> int:
        """The offset after the last record that was found."""
        return self.segments[-1].end if self.segments else self.start

    def run(self) -> Iterator[Finding]:
        """Everything that is wrong, in the order of the log."""
        yield from self.begin()
        for base in self.bases:
            yield from self.check(base)
        yield from self.finish()

    # The parts of a run, for those that share out the segments: each worker begins, and checks its own.

    def begin(self) -> Iterator[Finding]:
        """List the segments, and tell what is wrong besides: lost files, the state, the marks, files beside the log."""
        state, inventory = self._take_inventory()
        if state is None and not inventory.own and not inventory.garbled and not inventory.closed:
            raise HeadwaterError(f"{self.directory} is not a partition: it has neither a state nor segments")
        yield from self._check_state(state)
        yield from self._check_marks(state)
        if inventory.made:
            reason = "missing, damaged or of another time: it is made anew from the files"
            yield Finding("note", self.directory / LIST_FILE, reason)
        self._state = state
        self._closed = {entry.base: entry for entry in inventory.closed}
        self._listed = [own for base, own in inventory.own.items() if self._is_part(base, inventory)]
        adopted, findings = self._adopt_garbled(inventory)
        yield from findings
        self._listed = sorted((*self._listed, *adopted), key=lambda segment: segment.base)
        self.bytes_total = sum(_size(segment.path) for segment in self._listed)
        for lost in inventory.damage:
            if int(lost.file.stem) not in self.bases:
                yield self._lost(lost.file, None, lost.offset, lost.next_offset, lost.reason)
        for path in inventory.leftovers:
            yield Finding("note", path, "a segment that had been deleted: it goes with the next recovery")
        ends = max((entry.end for entry in inventory.closed), default=self.start)
        if inventory.growing is None and not adopted and state is not None and state.durable_end > ends:
            yield self._lost(self.directory, None, ends, state.durable_end, "the growing segment is missing")

    def _is_part(self, base: int, inventory: Inventory) -> bool:
        """Return whether an own segment is the one that the list means, or the growing one."""
        growing = inventory.growing
        entry = self._closed.get(base)
        if entry is None:
            return growing is not None and growing.base == base
        return entry.log == inventory.own[base].header.log

    @property
    def bases(self) -> list[int]:
        """The first offsets of the segments, by which they are checked."""
        return [segment.base for segment in self._listed]

    def size_of(self, base: int) -> int:
        """Return the size of a segment at this moment."""
        return sum(_size(segment.path) for segment in self._listed if segment.base == base)

    def check(self, base: int) -> Iterator[Finding]:
        """Yield everything that is wrong in one segment."""
        for segment in self._listed:
            if segment.base == base:
                try:
                    yield from self._check_segment(segment, self._closed.get(base), self._state)
                except FileNotFoundError:
                    yield Finding("note", segment.path, "removed while the partition was being checked")

    def finish(self) -> Iterator[Finding]:
        """Yield everything that is wrong around the segments, and a note if they have changed."""
        yield from self._check_schemas()
        yield from self._leftovers()
        now = self._read_state()
        if self._state is not None and now is not None and now.layout != self._state.layout:
            yield Finding("note", self.directory, "segments were added, replaced or removed meanwhile: check again")

    # The inventory.

    def _read_state(self) -> State | None:
        try:
            page = StatePage(ReadOnlyDisk(), self.directory / STATE_FILE)
        except FileNotFoundError:
            return None
        try:
            return page.read()[0]
        finally:
            page.close()

    def _take_inventory(self) -> tuple[State | None, Inventory]:
        """The state and the files that belong together, although others may be at work."""
        state = self._read_state()
        for _ in range(_ATTEMPTS):
            self.partition = state.partition if state else self._partition_of_files()
            self.start = max(state.start if state else 0, self._mark(START_FILE) or 0)
            inventory = take_inventory(self.directory, self.partition, state, self.start, thorough=True)
            before, state = state, self._read_state()
            if state is None or before is None or before.layout == state.layout:
                return state, inventory
        raise HeadwaterError(f"{self.directory} changes too fast to be checked: try again")

    def _partition_of_files(self) -> bytes:
        segments = list_segments(self.directory, None)[0]
        return segments[0].header.partition if segments else self.partition

    def _check_state(self, state: State | None) -> Iterator[Finding]:
        path = self.directory / STATE_FILE
        if state is None:
            yield Finding("note", path, "missing or damaged in both copies: the next opening makes it anew")
            return
        if None in read_state_copies(path) and None in read_state_copies(path):  # once may be a write in progress
            yield Finding("note", path, "one of the two copies is damaged: the other one counts")
        if state.poisoned:
            yield Finding("note", path, "a sync has failed: reopen the partition to recover")

    def _mark(self, name: str) -> int | None:
        try:
            return read_mark(self.directory, name)
        except Damaged:
            return None

    def _check_marks(self, state: State | None) -> Iterator[Finding]:
        for name in (START_FILE, TRUNCATE_FILE):
            path = self.directory / name
            if path.exists() and self._mark(name) is None:
                kept = state is not None and name == START_FILE
                rest = "the state still says the same" if kept else "it is not known which offset it held"
                yield Finding("note", path, f"a mark does not match its checksum; {rest}")
        target = self._mark(TRUNCATE_FILE)
        if target is not None:
            yield Finding("note", self.directory / TRUNCATE_FILE, f"the next opening truncates the log to {target}")

    def _adopt_garbled(self, inventory: Inventory) -> tuple[list[Segment], list[Finding]]:
        """Segments whose header is damaged are recognised by their frames, as recovery does."""
        findings: list[Finding] = []
        adopted: list[Segment] = []
        for path in inventory.garbled:
            base = int(path.stem)
            if not stat.S_ISREG(os.lstat(path).st_mode):
                findings.append(Finding("note", path, "not a plain file: ignored"))
                continue
            with _opened(path) as fd:
                reason = "a segment of another log, or under another one's name: ignored"
                try:
                    SegmentHeader.unpack(os.pread(fd, SEGMENT_HEADER_BYTES, 0))
                except Damaged as error:
                    reason = error.reason
                    file = FrameFile(fd, os.fstat(fd).st_size, seed_of(self.partition), path)
                    if file.find(SEGMENT_HEADER_BYTES, base) is not None:
                        length = file.end if file.has_gaps(base) else 0
                        header = SegmentHeader(SEGMENT_MAGIC, self.partition, bytes(16), base, 0, length, 0, 0)
                        adopted.append(Segment(path, header))
                        findings.append(Finding("damage", path, f"{reason}; its frames are this log's", 0))
                        continue
            if base not in self._closed:
                findings.append(Finding("note", path, reason))
        findings += [
            Finding("note", path, "in the middle of another segment: ignored")
            for path in inventory.strangers
            if path not in inventory.garbled
        ]
        return adopted, findings

    # One segment.

    def _check_segment(self, segment: Segment, entry: ListedSegment | None, state: State | None) -> Iterator[Finding]:
        began = self.bytes_done
        with _opened(segment.path) as fd:
            header = segment.header
            if header.log != bytes(16):
                header = SegmentHeader.unpack(os.pread(fd, SEGMENT_HEADER_BYTES, 0))  # of the file that is open
            segment = Segment(segment.path, header)
            size = os.fstat(fd).st_size
            summary = SegmentSummary(segment.path, segment.base, segment.base, size, header.compacted)
            self.segments.append(summary)
            file = FrameFile(fd, size, seed_of(self.partition), segment.path)
            findings: list[Finding] = []
            after = entry.end if entry is not None else None
            if entry is None:
                file.end, findings = self._growing_end(segment, file, state)
            else:
                findings = _length_findings(segment, entry, size)
                file.end = min(size, entry.length)
            if any(os.pread(fd, 4, SEGMENT_HEADER_BYTES - 4)) and header.log != bytes(16):
                findings.append(Finding("damage", segment.path, "the padding of the header is not zero", 76))
            index = _IndexCheck(segment, after, state)
            for finding in findings:
                yield self._counted(summary, finding)
            short = entry is not None and size < entry.length
            for finding in self._walk(file, segment, after, summary, index, short=short):
                yield self._counted(summary, finding)
            yield from index.findings(size if after is not None else None)
            yield from self._check_producers(segment)
            if state is not None and header.log == state.segment and summary.end < state.durable_end:
                missing = self._lost(
                    segment.path, size, summary.end, state.durable_end, "the end of the log is missing"
                )
                yield self._counted(summary, missing)
            self._progress(began + size - self.bytes_done)

    def _counted(self, summary: SegmentSummary, finding: Finding) -> Finding:
        summary.damage += finding.kind == "damage"
        return finding

    def _progress(self, size: int) -> None:
        self.bytes_done += size
        if self._on_progress is not None:
            self._on_progress(self.bytes_done, self.bytes_total)

    def _growing_end(self, segment: Segment, file: FrameFile, state: State | None) -> tuple[int, list[Finding]]:
        """Up to where the growing segment counts, and what is to be said of the rest."""
        path = segment.path
        if state is None or state.segment != segment.header.log:
            floor = max(segment.base, state.durable_end if state else 0)
            chain = segment.header.chain
            tail = walk(file, SEGMENT_HEADER_BYTES, segment.base, chain, floor)
            findings = []
            if state is not None:
                findings.append(Finding("note", path, "newer than the state: the next opening brings the state up"))
            if tail.floor > tail.end:
                findings.append(self._lost(path, tail.position, tail.end, tail.floor, "the end of the log is missing"))
            if file.end > tail.position:
                findings.append(_behind(path, tail.position, file.end))
            return tail.position, findings
        limit = state.durable_position if state.poisoned else state.position
        if file.end > limit:
            return limit, [_behind(path, limit, file.end)]
        if file.end < state.position and file.end >= state.durable_position:
            return file.end, [Finding("note", path, "published records that were never synced are gone", file.end)]
        return file.end, []

    def _walk(
        self,
        file: FrameFile,
        segment: Segment,
        after: int | None,
        summary: SegmentSummary,
        index: _IndexCheck,
        *,
        short: bool,
    ) -> Iterator[Finding]:
        """Every frame of a segment. Damage is passed over as a reader passes over it.

        If the segment is `short`, its end is missing.
        """
        position, offset = SEGMENT_HEADER_BYTES, segment.base
        previous = segment.header.chain if segment.header.log != bytes(16) else None
        while position < file.end:
            header, resume = None, position
            try:
                header = file.frame(position)
                if after is not None and header.base_offset >= after:
                    yield Finding("note", segment.path, "frames behind the segment's end, of a failed sync", position)
                    break
                resume = position if header.base_offset > offset else position + header.length
                _follows(header, offset, previous, segment.header.compacted)
                resume = position + header.length
                self._admit(file, position, header)
            except (FrameDamaged, SchemaError) as error:
                good = file.find(resume, header.next_offset if header and resume > position else offset)
                lost_to = good[1].base_offset if good else self._end_of(segment, after, offset, header)
                reason = error.reason if isinstance(error, FrameDamaged) else str(error)
                yield self._lost(segment.path, position, offset, lost_to, reason)
                if good is None:
                    offset = lost_to
                    break
                self._progress(good[0] - position)
                position, offset, previous = good[0], max(offset, lost_to), None
                continue
            index.frame(position, header)
            summary.frames += 1
            summary.records += header.record_count
            self._progress(header.length)
            position, offset, previous = position + header.length, header.next_offset, header.stamp_crc
        summary.end = offset if after is None else after
        if after is not None and offset < after and (short or not segment.header.compacted):
            yield self._lost(segment.path, position, offset, after, "records are missing before the next segment")

    def _end_of(self, segment: Segment, after: int | None, offset: int, header: FrameHeader | None) -> int:
        """Return the end of a segment's records when the rest of it cannot be read."""
        if after is not None:
            return after
        state = self._read_state()
        if state is not None and state.segment == segment.header.log:
            return max(state.end, offset)
        return header.next_offset if header else offset

    def _admit(self, file: FrameFile, position: int, header: FrameHeader) -> None:
        """The content of a frame is sane, whoever wrote it."""
        if not header.attributes & CONTROL:
            data = pa.py_buffer(bytes(file.view(position, header.length)))
            admit(data, self.schemas.get(header.schema_id), explicit_offsets=True)

    def _lost(self, file: Path, position: int | None, offset: int, next_offset: int, reason: str) -> Finding:
        """Damage, unless it only touches what had been deleted."""
        if next_offset > offset and next_offset <= self.start:
            return Finding("note", file, f"{reason}; the records had been deleted", position, offset, next_offset)
        return Finding("damage", file, reason, position, max(offset, self.start), next_offset)

    # The files beside the segments.

    def _check_producers(self, segment: Segment) -> Iterator[Finding]:
        try:
            ProducerTable.load(segment.producers_path)
        except FileNotFoundError:
            yield Finding("note", segment.producers_path, "missing: retries are recognised by walking older segments")
        except Damaged as error:
            yield Finding("note", segment.producers_path, error.reason)

    def _check_schemas(self) -> Iterator[Finding]:
        for path in sorted((self.directory / "schemas").glob("*.arrow")):
            try:
                SchemaDirectory(path.parent).get(int(path.stem, 16))
            except (SchemaError, ValueError):
                yield Finding("damage", path, "a schema is not the one of its name: restore it from a backup")

    def _leftovers(self) -> Iterator[Finding]:
        for path in sorted(self.directory.iterdir()):
            if path.name.endswith((TEMPORARY, ".compacting")):
                yield Finding("note", path, "in the making, or left by a dead process: deleted when it is noticed")


class _IndexCheck:
    """Compares the index of a segment with the frames of a walk. An index that is wrong is made anew by its users."""

    def __init__(self, segment: Segment, after: int | None, state: State | None) -> None:
        self._path = segment.index_path
        self._problem: str | None = None
        self._expected: dict[int, IndexEntry] = {}
        self._covered = 0
        self._newest = NEVER
        same = state is not None and state.segment == segment.header.log
        count = state.index_entries if after is None and state is not None and same else None
        if after is None and not same:
            return  # how many entries count is not known; recovery makes the index anew
        try:
            with _opened(self._path) as fd:
                header = IndexHeader.unpack(os.pread(fd, INDEX_HEADER_BYTES, 0))
            if header.log != segment.header.log:
                return  # made for the file that a rewritten one has replaced, which is as good as none
            self._covered = header.covered
            with open_index(self._path, segment.header.log, count) as entries:
                self._expected = {entry.position: entry for entry in entries}
        except FileNotFoundError:
            self._problem = "missing"
        except IndexDamaged as error:
            self._problem = error.reason

    def frame(self, position: int, header: FrameHeader) -> None:
        """A frame that is in the log."""
        entry = self._expected.pop(position, None)
        if entry is not None and (entry.offset != header.base_offset or entry.max_timestamp < self._newest):
            self._problem = f"the entry for position {position} is wrong"
        self._newest = max(self._newest, header.max_timestamp)

    def findings(self, size: int | None) -> Iterator[Finding]:
        """Yield everything that is wrong with the index; `size` is the length of a closed segment."""
        if self._problem is None and size is not None and self._covered > size:
            self._problem = "covers more than the segment has"
        if self._problem is not None:
            yield Finding("note", self._path, f"{self._problem}: it is made anew when it is needed")


def _follows(header: FrameHeader, offset: int, previous: int | None, compacted: bool) -> None:
    """Raise unless the frame is the one that comes next."""
    if previous is not None and header.previous != previous:
        raise FrameDamaged("a frame does not follow the one before it")
    if header.base_offset < offset:
        raise FrameDamaged("a frame repeats offsets that came before it")
    if previous is not None and header.base_offset > offset and not compacted and not header.group & AFTER_GAP:
        raise FrameDamaged("offsets are missing before a frame")


def _length_findings(segment: Segment, entry: ListedSegment, size: int) -> list[Finding]:
    """Return the findings about the length of a closed segment. The walk over it tells which offsets are missing."""
    if size > entry.length and not entry.flags & UNCUT:
        reason = f"the file has {size} bytes and had {entry.length} when it was closed: what was added is ignored"
        return [Finding("damage", segment.path, reason, entry.length)]
    if size < entry.length:
        reason = f"the file has {size} bytes and had {entry.length} when it was closed"
        return [Finding("damage", segment.path, reason, size)]
    return []


def _behind(path: Path, position: int, size: int) -> Finding:
    reason = f"{size - position} bytes behind the published end: an append in progress, or one that was cut off"
    return Finding("note", path, reason, position)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = open_plain(path)
    try:
        yield fd
    finally:
        os.close(fd)
