"""Mending: a closed segment is written anew, with frames of another replica in the place of its damaged ones.

The new file takes the old one's place by a rename, as compaction does it. So readers of the old file are undisturbed,
and a death in between leaves the old file as it was. Damage that no other replica can mend stays as it is.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import pyarrow as pa

from headwater.core.errors import FrameDamaged
from headwater.log.files.disk import Disk
from headwater.log.files.lock import PartitionLock
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, seed_of
from headwater.log.files.segment_list import Successor
from headwater.log.format.encode import reencode
from headwater.log.format.frame import AFTER_GAP, GROUP_ONLY, FrameHeader, StoredFrame
from headwater.log.format.projection import Projection
from headwater.log.format.schemas import Schemas
from headwater.log.recover.report import Damage
from headwater.log.write.rewrite import Rewriter

COMPACTING: Final = ".compacting"
COMPACTION_LOCK: Final = "compaction.lock"


class Hole(NamedTuple):
    """Offsets of a segment that cannot be read: `offset` up to, and without, `next_offset`."""

    offset: int
    next_offset: int
    position: int
    """The beginning and the end of the bytes that stand in the place of their frames."""
    until: int
    reason: str


def survey(file: FrameFile, segment: Segment, first: int, end: int) -> tuple[list[tuple[int, FrameHeader]], list[Hole]]:
    """The good frames of a closed segment with offsets in [first, end), each with its position, and the holes.

    It judges frames as a reader does. It reads by `pread`, so that a device that fails is a hole and not a signal.
    """
    frames: list[tuple[int, FrameHeader]] = []
    holes: list[Hole] = []
    position, offset, passed = SEGMENT_HEADER_BYTES, first, segment.base
    previous: int | None = None
    while position < file.end:
        resume = position
        try:
            header = file.frame(position)
            if header.base_offset >= end:
                break  # left by a failed sync: no part of the log
            if previous is not None and header.previous != previous:
                resume = position if header.base_offset > offset else position + header.length
                raise FrameDamaged("a frame does not follow the one before it")
        except FrameDamaged as error:
            try:
                good = file.find_beyond(resume, passed, offset)
            except OSError as failure:
                holes.append(Hole(offset, end, position, position, _reason(failure)))
                return frames, holes
            lost_to = min(good[1].base_offset, end) if good else end
            if lost_to > offset:
                holes.append(Hole(offset, lost_to, position, good[0] if good else file.end, error.reason))
                offset = lost_to
            if good is None:
                return frames, holes
            position, previous = good[0], None
            continue
        except OSError as failure:
            holes.append(Hole(offset, end, position, position, _reason(failure)))
            return frames, holes
        begins_late = position == SEGMENT_HEADER_BYTES and header.base_offset > offset
        if begins_late and not segment.header.compacted and not header.group & AFTER_GAP:
            holes.append(Hole(offset, header.base_offset, position, position, "the beginning of a segment is missing"))
        passed = header.next_offset
        if passed > offset:
            offset = passed
            frames.append((position, header))
        previous = header.stamp_crc
        position += header.length
    if offset < end and (not segment.header.compacted or file.end < segment.header.length):
        holes.append(Hole(offset, end, file.end, file.end, "the end of a segment is missing"))
    return frames, holes


def _reason(failure: OSError) -> str:
    return f"the device does not give it back: {failure.strerror}"


class Mending:
    """One closed segment that is written anew. For one thread at a time.

    `holes` tells what is damaged. The caller goes through them in their order: it adds frames of another replica, or
    leaves what it cannot get. Nothing has changed before `finish`. Raises PartitionBusy while the log is compacted.
    """

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        schemas: Schemas,
        segment: Segment,
        first: int,
        end: int,
        replace: Callable[[Segment, Successor, Sequence[Damage]], bool],
    ) -> None:
        """`replace` puts the new file in the place of the old one, and notes the damage that is left."""
        self._disk = disk
        self._schemas = schemas
        self._segment = segment
        self._end = end
        self._replace = replace
        self.left: list[Damage] = []
        """The damage that is left in the new file, once that is finished."""
        self._kept: Hole | None = None
        """The hole that was left behind the last frame. It is written before the next one."""
        self._fd = -1
        self._rewriter: Rewriter | None = None
        self._lock = PartitionLock(directory / COMPACTION_LOCK)
        try:
            self._lock.acquire(0)
            for leftover in sorted(directory.glob(f"*{COMPACTING}")):
                disk.unlink(leftover)
            self._fd = self._open_or_nothing()
            whole = os.pread(self._fd, SEGMENT_HEADER_BYTES, 0) == segment.header.pack()
            size = os.fstat(self._fd).st_size if whole else 0  # another file has nothing that belongs here
            self._file = FrameFile(self._fd, size, seed_of(segment.header.partition), segment.path)
            frames, self.holes = survey(self._file, segment, first, end)
        except BaseException:
            self.close()
            raise
        self._frames = deque(frames)
        self._offset = first
        self._gaps = segment.header.compacted
        self.mended = 0
        """The number of frames taken from another replica, and of holes that are gaps there."""

    def _open_or_nothing(self) -> int:
        """The old file; where it is lost, one without content."""
        try:
            return self._disk.open(self._segment.path)
        except FileNotFoundError:
            return self._disk.open(Path(os.devnull))

    def add(self, frame: StoredFrame, start: int, end: int) -> None:
        """Put what a frame of another replica has of a hole, or of a part of it, in its place."""
        self._write_until(start)
        header = frame.header
        if start <= header.base_offset and header.next_offset <= end:
            self._write(frame)
            self.mended += 1
        else:  # that replica was compacted, or cut, in another way
            batch = Projection(frame.schema, None).batch(frame, start=start, end=end)
            if batch.num_rows:
                rest = reencode(frame.schema, batch, compression=frame.compression)
                base: int = batch.column(0)[0].as_py()
                self._write_left(base)
                self._writer().add(rest, base, header.leader_epoch, GROUP_ONLY | self._gap_bits(base))
                self._offset = base + rest.last_offset_delta + 1
                self.mended += 1

    def omit(self) -> None:
        """Make a gap of a hole whose records another replica has compacted away."""
        self.mended += 1

    def leave(self, hole: Hole) -> None:
        """Leave a hole, or a part of one, as it is.

        All offsets from the frame before it to the frame behind it stay damaged, since no reader could tell which of
        them are a gap.
        """
        self._write_until(hole.offset)
        self._kept = hole

    def finish(self) -> bool:
        """Put the new file in the old one's place; False if that has changed meanwhile, and nothing was done."""
        self._write_until(self._end)
        self._write_left(self._end)
        successor = self._writer().finish(compacted=self._gaps or self._offset < self._end)
        return self._replace(self._segment, successor, self.left)

    def _write_until(self, offset: int) -> None:
        """Write the good frames of the old file that begin before an offset."""
        while self._frames and self._frames[0][1].base_offset < offset:
            position, header = self._frames.popleft()
            content = pa.py_buffer(bytes(self._file.view(position, header.length)))
            self._write(StoredFrame(header, content, self._schemas.get(header.schema_id)))

    def _write(self, frame: StoredFrame) -> None:
        header = frame.header
        self._write_left(header.base_offset)
        group = header.group & GROUP_ONLY | self._gap_bits(header.base_offset)
        self._writer().add(frame.unstamped(), header.base_offset, header.leader_epoch, group)
        self._offset = header.next_offset

    def _write_left(self, next_offset: int) -> None:
        """Write what was left before the frame at an offset, if anything was."""
        hole, self._kept = self._kept, None
        if hole is not None:
            position = self._writer().position
            self._writer().keep_damaged(self._file, hole.position, hole.until)
            self.left.append(Damage(self._segment.path, position, self._offset, next_offset, hole.reason))
            self._offset = next_offset

    def _gap_bits(self, base: int) -> int:
        return AFTER_GAP if base > self._offset and not self._gaps else 0

    def _writer(self) -> Rewriter:
        if self._rewriter is None:
            self._rewriter = Rewriter(self._disk, self._segment, self._segment.path.with_suffix(COMPACTING))
        return self._rewriter

    def close(self) -> None:
        """Give everything back; a new file that is not in its place is removed."""
        if self._rewriter is not None:
            self._rewriter.close()
            self._disk.unlink(self._rewriter.path)
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
