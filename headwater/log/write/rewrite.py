"""Rewriting: a changed copy of a segment takes its place by a rename, so readers of the old file are undisturbed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from headwater.core.errors import FrameDamaged
from headwater.log.entropy import random_bytes
from headwater.log.files.disk import TEMPORARY, Disk
from headwater.log.files.index import NEVER
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, seed_of
from headwater.log.files.segment_list import FOREVER, UNKNOWN, Successor
from headwater.log.format.encode import reencode
from headwater.log.format.frame import AFTER_GAP, GROUP_ONLY, HEADER_BYTES, Frame, FrameHeader, StoredFrame
from headwater.log.format.projection import Projection
from headwater.log.format.schemas import Schemas

_COPY: Final = 1024 * 1024


class Rewriter:
    """Writes the successor of a segment under another name. The successor has its own `log` uuid and the same chain."""

    def __init__(self, disk: Disk, segment: Segment, path: Path) -> None:
        self._disk = disk
        self._old = segment.header
        self.path = path
        self._seed = seed_of(segment.header.partition)
        self._fd = disk.create(path)
        self._stamp = segment.header.chain
        self.position = SEGMENT_HEADER_BYTES
        self._counted = True
        self.records = 0
        self._max_timestamp = NEVER

    def copy(self, fd: int, start: int, end: int, stamp: int) -> None:
        """Bytes of the old file as they are; `stamp` is that of the last frame among them."""
        while start < end:
            content = os.pread(fd, min(_COPY, end - start), start)
            self._disk.write(self._fd, content, self.position)
            self.position += len(content)
            start += len(content)
        self._stamp = stamp
        self._counted = False

    def add(self, frame: Frame, base_offset: int, leader_epoch: int, group: int = GROUP_ONLY) -> None:
        """A frame made anew."""
        header, self._stamp = frame.stamp(
            base_offset,
            durable_end=base_offset,
            leader_epoch=leader_epoch,
            previous=self._stamp,
            group=group,
            seed=self._seed,
        )
        self._disk.writev(self._fd, [header, frame.message], self.position, frame.length)
        self.position += frame.length
        self.records += frame.record_count
        self._max_timestamp = max(self._max_timestamp, frame.max_timestamp)

    def keep_damaged(self, file: FrameFile, start: int, end: int) -> None:
        """Keep bytes of the old file that are no good frames; or, in place of none, something that is no frame either.

        So a reader goes on to meet damage here. Where only the body of a frame is damaged, the next one still names it.
        """
        if start == end:
            self._disk.write(self._fd, bytes(HEADER_BYTES), self.position)
            self.position += HEADER_BYTES
            self._counted = False
            return
        stamp = self._stamp
        with suppress(FrameDamaged):
            for _, header in FrameFile(file.fd, end, file.seed, file.path).walk(start):
                stamp = header.stamp_crc
        self.copy(file.fd, start, end, stamp)

    def finish(self, *, compacted: bool) -> Successor:
        """Complete the file and make it durable; it still has to be renamed."""
        length = self.position if compacted else 0
        header = self._old._replace(log=random_bytes(16), length=length)
        self._disk.write(self._fd, header.pack(), 0)
        self._disk.sync(self._fd)
        records, newest = (self.records, self._max_timestamp) if self._counted else (UNKNOWN, FOREVER)
        return Successor(self.path, header, self.position, records, newest)

    def close(self) -> None:
        """Give the descriptor back."""
        self._disk.close(self._fd)


def copy_prefix(
    disk: Disk,
    segment: Segment,
    file: FrameFile,
    position: int,
    stamp: int = 0,
    last: tuple[Frame, FrameHeader] | None = None,
    *,
    compacted: bool = False,
) -> Successor:
    """Write the segment's bytes below `position`, and one frame more, to a file of another name, and make it durable.

    With `compacted` its end is left out as well, as compaction may do it.
    """
    rewriter = Rewriter(disk, segment, segment.path.with_name(segment.path.name + TEMPORARY))
    try:
        rewriter.copy(file.fd, SEGMENT_HEADER_BYTES, position, stamp)
        if last is not None:
            frame, old = last
            rewriter.add(frame, old.base_offset, old.leader_epoch, GROUP_ONLY | (old.group & AFTER_GAP))
        return rewriter.finish(compacted=compacted or segment.header.compacted)
    finally:
        rewriter.close()


def cut_segment(disk: Disk, segment: Segment, target: int, schemas: Schemas) -> Successor | None:
    """Write a segment's records below `target` to a file of another name; None if it has no others."""
    fd = disk.open(segment.path)
    try:
        file = FrameFile(fd, os.fstat(fd).st_size, seed_of(segment.header.partition), segment.path)
        stamp = segment.header.chain
        for position, header in file.walk_stamped(SEGMENT_HEADER_BYTES, segment.base):
            if header.next_offset > target:
                within_gap = bool(header.group & AFTER_GAP) and header.base_offset >= target
                rest = None
                if header.base_offset < target:  # else it goes as a whole, and may be damaged
                    if not file.is_whole(position):  # nor is it true how many records it has: it stays, as damage
                        stamp = header.stamp_crc
                        continue
                    data = pa.py_buffer(bytes(file.view(position, header.length)))
                    rest = cut_frame(StoredFrame(header, data, schemas.get(header.schema_id)), target)
                    within_gap = rest is None or header.base_offset + rest.last_offset_delta + 1 < target
                kept = (rest, header) if rest else None
                return copy_prefix(disk, segment, file, position, stamp, kept, compacted=within_gap)
            stamp = header.stamp_crc
    finally:
        disk.close(fd)
    return None


def cut_beginning(frame: StoredFrame, start: int) -> tuple[Frame, FrameHeader]:
    """The records of a frame from `start` on, of which there are some, as a frame of their own, and its place."""
    batch = Projection(frame.schema, None).batch(frame, start=start)
    rest = reencode(frame.schema, batch, compression=frame.compression)
    base: int = batch.column(0)[0].as_py()
    return rest, frame.header._replace(base_offset=base, last_offset_delta=rest.last_offset_delta)


def cut_frame(frame: StoredFrame, target: int) -> Frame | None:
    """The records of a frame below `target`, as a frame of their own."""
    batch = Projection(frame.schema, None).batch(frame, end=target)
    return reencode(frame.schema, batch, compression=frame.compression) if batch.num_rows else None
