"""Direct reading: frames of a broker on this machine are read from its files, and not sent.

The broker tells where they lie, and they are verified like those that are sent. Where its files cannot be read from
here, because it runs as another user or in a container, or one was replaced just now, it is asked for the frames.

They are copied into memory, not mapped: each mapping would hold a descriptor for as long as somebody has the records.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pyarrow as pa

from headwater.core.errors import Damaged
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, SegmentHeader
from headwater.log.format.frame import HEADER_BYTES, LENGTH, STAMP_CRC, unpack_fields
from headwater.v1 import broker_pb2 as pb
from headwater.wire.packing import View


def read_extents(extents: Iterable[pb.Extent]) -> View | None:
    """The bytes that lie there, one after the other; None where those that the broker means cannot be read."""
    try:
        pieces = [_read(extent) for extent in extents]
    except (OSError, Damaged):
        return None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _read(extent: pb.Extent) -> memoryview:
    fd = os.open(extent.file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # whatever it is, it is not waited for
    try:
        header = SegmentHeader.unpack(os.pread(fd, SEGMENT_HEADER_BYTES, 0))
        if header.log != extent.log or extent.position + extent.length > os.fstat(fd).st_size:
            raise FileNotFoundError(extent.file)  # the file of that name is another one by now
        view = memoryview(pa.allocate_buffer(extent.length)).cast("B")
        size = os.preadv(fd, [view], extent.position)
    finally:
        os.close(fd)
    if size != extent.length or _last_stamp(view) != extent.stamp:
        raise FileNotFoundError(extent.file)  # a copy of the log that went another way since
    return view


def _last_stamp(view: memoryview) -> int | None:
    """The checksum of the last frame's stamp, which depends on all frames before it; None if they do not end there."""
    at, stamp = 0, None
    while len(view) - at >= HEADER_BYTES:
        fields = unpack_fields(view, at)
        stamp = fields[STAMP_CRC]
        at += max(fields[LENGTH], HEADER_BYTES)
    return stamp if at == len(view) else None
