"""Scrubbing: a closed segment is read again as the device has it, so that damage is met before its records are missed.

Damage is noted as if readers had met it. The caller sets the pace.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import suppress

from headwater.core.errors import FrameDamaged, OffsetOutOfRange
from headwater.log.directory import ClosedSegment, DirectoryPartition
from headwater.log.files.disk import drop_page_cache, open_plain
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, seed_of
from headwater.log.recover.report import Damage


def scrub(partition: DirectoryPartition, closed: ClosedSegment) -> Iterator[int]:
    """Verify the frames of a segment; each step says how many bytes it has read. A deleted one is passed over."""
    segment = closed.segment
    whole = False
    with suppress(OSError), open(open_plain(segment.path), "rb", buffering=0) as opened:
        fd = opened.fileno()
        drop_page_cache(fd)
        file = FrameFile(fd, min(os.fstat(fd).st_size, closed.size), seed_of(segment.header.partition), segment.path)
        whole = yield from _verify(partition, closed, file)
    if not whole:  # a reader tells what exactly is lost, and notes it; or that the file is another one by now
        with suppress(OffsetOutOfRange):
            for _ in partition.frames(closed.first, closed.end, on_damage=lambda _: None):
                pass


def _verify(partition: DirectoryPartition, closed: ClosedSegment, file: FrameFile) -> Generator[int, None, bool]:
    """Read all of it; whether a reader has nothing to add."""
    if os.pread(file.fd, SEGMENT_HEADER_BYTES, 0) != closed.segment.header.pack():
        return False
    position, offset = SEGMENT_HEADER_BYTES, closed.segment.base
    previous: int | None = None
    try:
        while position < file.end:
            header = file.frame(position)
            if previous is not None and header.previous != previous:
                return False
            position, offset, previous = position + header.length, header.next_offset, header.stamp_crc
            yield header.length
    except FrameDamaged:
        return False
    except OSError as error:
        # Not by a reader, whom a mapping that cannot be read would kill. Where it is good again nobody can tell.
        reason = f"the device does not give it back: {error.strerror}"
        partition.note_damage(Damage(file.path, position, max(offset, closed.first), closed.end, reason))
        return True
    return offset >= closed.end or (closed.segment.header.compacted and file.end == closed.size)
