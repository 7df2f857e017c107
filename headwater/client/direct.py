"""Direct reading: frames of a broker on this machine are read from its files, and not sent.

The broker tells where they lie, and they are verified like those that are sent. Where its files cannot be read from
here, because it runs as another user or in a container, or one was replaced just now, it is asked for the frames.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable

from headwater.errors import Damaged
from headwater.log.segment import SEGMENT_HEADER_BYTES, SegmentHeader
from headwater.v1 import broker_pb2 as pb
from headwater.wire.packing import View


def read_extents(extents: Iterable[pb.Extent]) -> View | None:
    """The bytes that lie there, one after the other; None where they cannot be read."""
    try:
        pieces = [_mapped(extent) for extent in extents]
    except (OSError, ValueError, Damaged):
        return None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _mapped(extent: pb.Extent) -> memoryview:
    fd = os.open(extent.file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # whatever it is, it is not waited for
    try:
        header = SegmentHeader.unpack(os.pread(fd, SEGMENT_HEADER_BYTES, 0))
        end = extent.position + extent.length
        if header.log != extent.log:
            raise FileNotFoundError(extent.file)  # the file of that name is another one by now
        start = extent.position - extent.position % mmap.ALLOCATIONGRANULARITY
        mapping = mmap.mmap(fd, end - start, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=start)
        return memoryview(mapping)[extent.position - start :]
    finally:
        os.close(fd)
