"""A segment: one `.log` file, a header of 80 bytes and then frames.

Every offset in a segment is at or above its base and below the base of the next segment: that base, not the file's
length, is where a segment ends. Frames beyond it, left by a failed sync, are not part of the log.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from headwater.core.errors import Damaged, FrameDamaged
from headwater.log.entropy import random_bytes
from headwater.log.files.disk import Disk, read_plain
from headwater.log.format.frame import (
    AFTER_GAP,
    EXPLICIT_OFFSETS,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER,
    FrameHeader,
)
from headwater.log.format.verify import verify_body, verify_stamp

SEGMENT_MAGIC: Final = b"HWSEGMT1"
_LAYOUT = struct.Struct("<8s16s16sqqqII")
_CHECKED: Final = _LAYOUT.size
SEGMENT_HEADER_BYTES: Final = 80
_NAME = re.compile(r"(\d{20})\.log")
_WINDOW: Final = 16 * 1024
"""The bytes that a walk reads at once: many small frames, or little more than the header of a large one."""
_SEARCH: Final = 256 * 1024


class SegmentHeader(NamedTuple):
    """The header of a segment file.

    `log` names these very bytes: a rewritten file has another one, so an index or a state made for the old file does
    not fit the new one. `chain` is what the first frame gives as its `previous`; a rewritten prefix keeps it.
    `length` is 0 while the segment grows by appends, and the file's whole length when compaction wrote it at once.
    """

    magic: bytes
    partition: bytes
    log: bytes
    base: int
    created_ns: int
    length: int
    chain: int
    reserved: int

    @property
    def compacted(self) -> bool:
        """True if offsets may be missing here because compaction removed their records."""
        return self.length > 0

    def pack(self) -> bytes:
        """The header's bytes."""
        content = _LAYOUT.pack(*self)
        checksum: int = crc32c(content)
        return content + checksum.to_bytes(4, "little").ljust(SEGMENT_HEADER_BYTES - _CHECKED, b"\0")

    @classmethod
    def unpack(cls, content: bytes) -> SegmentHeader:
        """The header in these bytes, verified."""
        if len(content) < SEGMENT_HEADER_BYTES or content[:8] != SEGMENT_MAGIC:
            raise Damaged("not a segment of this version")
        checksum = int.from_bytes(content[_CHECKED:SEGMENT_HEADER_BYTES], "little")  # and the padding, which is zeros
        if crc32c(content[:_CHECKED]) != checksum:
            raise Damaged("the header of a segment does not match its checksum")
        return cls(*_LAYOUT.unpack_from(content))


def new_segment_header(partition: bytes, base: int, created_ns: int) -> SegmentHeader:
    """The header of a segment that begins now."""
    chain = int.from_bytes(random_bytes(4), "little")
    return SegmentHeader(SEGMENT_MAGIC, partition, random_bytes(16), base, created_ns, 0, chain, 0)


def seed_of(partition: bytes) -> int:
    """Return the value that the stamp checksums of a partition start from.

    Frames of another partition do not verify here, so a frame that a user stored inside a value is never taken for
    one of the log's own when damage makes a reader search for the next frame.
    """
    seed: int = crc32c(partition)
    return seed


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a partition, as it was found."""

    path: Path
    header: SegmentHeader

    @property
    def base(self) -> int:
        """The least offset that can be here."""
        return self.header.base

    @property
    def index_path(self) -> Path:
        """The index beside it."""
        return self.path.with_suffix(".index")

    @property
    def producers_path(self) -> Path:
        """The snapshot of idempotence at this segment's base."""
        return self.path.with_suffix(".producers")

    @classmethod
    def read(cls, path: Path) -> Segment:
        """The segment in this file; raises Damaged when it is none, or has another's name."""
        try:
            header = SegmentHeader.unpack(read_plain(path, SEGMENT_HEADER_BYTES))
        except Damaged as error:
            raise error.at(file=path, position=0) from None
        except OSError as error:
            if error.errno == errno.EINVAL:  # a pipe, say, of that name
                raise Damaged("not a plain file", file=path) from None
            raise
        if path.name != f"{header.base:020d}.log":
            raise Damaged(f"the file holds the segment {header.base}, not the one of its name", file=path)
        return cls(path, header)

    @classmethod
    def create(cls, disk: Disk, directory: Path, header: SegmentHeader) -> Segment:
        """A new, empty segment, durable once its directory is synced."""
        path = directory / f"{header.base:020d}.log"
        disk.replace(path, header.pack())
        return cls(path, header)


def list_segments(directory: Path, partition: bytes | None) -> tuple[list[Segment], list[Path]]:
    """The partition's segments in order, and the files that look like segments but are not its own.

    `partition` may be None when nothing else names the partition; then the first segment does.
    """
    segments: list[Segment] = []
    strangers: list[Path] = []
    for name in sorted(os.listdir(directory)):
        path = directory / name
        if not _NAME.fullmatch(name):
            continue
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise Damaged("not a plain file")
            segment = Segment.read(path)
        except FileNotFoundError:
            continue  # removed by retention since it was listed
        except Damaged:
            strangers.append(path)
            continue
        partition = partition or segment.header.partition
        if segment.header.partition == partition:
            segments.append(segment)
        else:
            strangers.append(segment.path)
    return segments, strangers


def delete_segment(disk: Disk, path: Path, *, producers: bool = True) -> None:
    """Remove a segment with what belongs to it. The log goes last: while it is there, the rest can be made again."""
    disk.unlink(path.with_suffix(".index"))
    if producers:
        disk.unlink(path.with_suffix(".producers"))
    disk.unlink(path)


class FrameFile:
    """Frames of one open segment, read by `pread` through a window: for walks, where a bad disk must raise, not kill.

    `end` bounds what is read; it never reaches into bytes that are still being written.
    """

    def __init__(self, fd: int, end: int, seed: int, path: Path) -> None:
        self.fd = fd
        self.end = end
        self.seed = seed
        self.path = path
        self._window = memoryview(b"")
        self._window_start = 0

    def view(self, position: int, size: int) -> memoryview:
        """Up to `size` bytes at `position`, fewer at the end."""
        size = min(size, self.end - position)
        start = position - self._window_start
        if start < 0 or start + size > len(self._window):
            wanted = min(max(size, _WINDOW), self.end - position)
            self._window = memoryview(os.pread(self.fd, max(wanted, 0), position))
            self._window_start = position
            start = 0
        return self._window[start : start + max(size, 0)]

    def header(self, position: int) -> FrameHeader:
        """The verified header at `position`; the frame's bytes are known to be within the end."""
        try:
            header = verify_stamp(self.view(position, HEADER_BYTES), 0, self.seed)
            if position + header.length > self.end:
                raise FrameDamaged("a frame is cut short", offset=header.base_offset)
        except FrameDamaged as error:
            raise error.at(file=self.path, position=position, offset=error.offset) from None
        return header

    def frame(self, position: int) -> FrameHeader:
        """The header at `position`, with the body verified too."""
        header = self.header(position)
        try:
            verify_body(self.view(position, header.length), 0, header)
        except FrameDamaged as error:
            raise error.at(file=self.path, position=position, offset=header.base_offset) from None
        return header

    def walk(self, position: int) -> Iterator[tuple[int, FrameHeader]]:
        """Each position and header from `position` to the end, or to a header that is damaged, which raises."""
        while position < self.end:
            header = self.header(position)
            yield position, header
            position += header.length

    def walk_stamped(self, position: int, offset: int) -> Iterator[tuple[int, FrameHeader]]:
        """Like `walk`, but passing over frames whose stamp is damaged.

        Of the others, only the stamp is known to be true: where they begin, not how far they reach, who wrote them, or
        when. A caller that relies on that asks `is_whole`.
        """
        while position < self.end:
            try:
                header = self.header(position)
            except FrameDamaged:
                frame = self.find(position, offset)
                if frame is None:
                    return
                position, header = frame
            yield position, header
            position, offset = position + header.length, header.base_offset + 1

    def walk_identified(self, position: int, offset: int) -> Iterator[FrameHeader]:
        """The frames that tell who wrote them, and are whole: what others tell is not to be believed."""
        for at, header in self.walk_stamped(position, offset):
            if header.producer_id != NO_PRODUCER and self.is_whole(at):
                yield header

    def has_gaps(self, offset: int) -> bool:
        """Return whether offsets are missing between frames that name one another: compaction wrote such a file."""
        previous = None
        end: int | None = offset
        for position, header in self.walk_stamped(SEGMENT_HEADER_BYTES, offset):
            chained = position == SEGMENT_HEADER_BYTES or header.previous == previous
            if chained and not header.group & AFTER_GAP and end is not None and header.base_offset != end:
                return True
            whole = self.is_whole(position)
            if whole and header.attributes & EXPLICIT_OFFSETS:
                return True
            previous, end = header.stamp_crc, header.next_offset if whole else None
        return False

    def find(self, position: int, least_offset: int) -> tuple[int, FrameHeader] | None:
        """The first whole frame at or after `position` whose offsets are not below `least_offset`.

        This is how good frames behind a damaged one are found: by its length where the stamp is good, else by
        searching for the magic bytes. Copies of older frames inside a value have offsets below `least_offset`.
        """
        for candidate in self._candidates(position):
            if candidate < position:
                continue  # inside a frame that has been passed over
            try:
                header = self.header(candidate)
            except FrameDamaged:
                continue
            if header.base_offset >= least_offset and self.is_whole(candidate):
                return candidate, header
            position = candidate + header.length
        return None

    def find_beyond(self, position: int, least_offset: int, offset: int) -> tuple[int, FrameHeader] | None:
        """The same as `find`, but passing over frames that end at or before `offset`."""
        frame = self.find(position, least_offset)
        while frame and frame[1].next_offset <= offset:
            frame = self.find(frame[0] + frame[1].length, frame[1].next_offset)
        return frame

    def is_whole(self, position: int) -> bool:
        """Return True if the frame at `position` is sound, its body too."""
        try:
            self.frame(position)
        except FrameDamaged:
            return False
        return True

    def _candidates(self, position: int) -> Iterator[int]:
        """The aligned positions from `position` on at which a frame may begin."""
        while position < self.end:
            window = os.pread(self.fd, min(_SEARCH, self.end - position), position)
            at = window.find(MAGIC)
            while at >= 0:
                if (position + at) % 8 == 0:
                    yield position + at
                at = window.find(MAGIC, at + 1)
            position += max(len(window) & ~7, 8)  # aligned, so that no frame's magic straddles two windows
