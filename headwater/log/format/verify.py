"""Frames as they travel: what is fetched is verified like what is read from a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from crc32c import crc32c

from headwater.core.errors import FrameDamaged
from headwater.log import Frame
from headwater.log.format.frame import (
    ALL_ATTRIBUTES,
    ATTRIBUTES,
    BASE_OFFSET,
    BODY_CRC,
    BODY_START,
    GROUP_ONLY,
    HEADER_BYTES,
    LAST_OFFSET_DELTA,
    LENGTH,
    MAGIC,
    RECORD_COUNT,
    RESERVED,
    STAMP_BYTES,
    STAMP_CRC,
    Fields,
    parse_header,
    unpack_fields,
    verify_body,
)


def pieces(frame: Frame) -> tuple[bytes, memoryview]:
    """The bytes of a frame that has no place in a log yet, its header and the rest: whoever gives it one stamps it."""
    head, _ = frame.stamp(0, durable_end=0, leader_epoch=0, previous=0, group=GROUP_ONLY, seed=0)
    return head, memoryview(frame.message)


def packed(frame: Frame) -> bytes:
    """The same in one piece."""
    return b"".join(pieces(frame))


class Located(NamedTuple):
    """A verified frame: the fields of its header, the buffer that it is in, and its position there."""

    fields: Fields
    buffer: pa.Buffer
    position: int


def verified(content: bytes | memoryview, seed: int, offset: int) -> Iterator[Located]:
    """The frames of a log in these bytes, one after the other, from the one that holds `offset` on.

    Raises FrameDamaged for whatever is not the log's own, whole, and in its order.
    """
    view = memoryview(content)
    buffer = pa.py_buffer(view)
    if buffer.address & 7:  # Arrow wants them aligned
        view = memoryview(bytes(view))
        buffer = pa.py_buffer(view)
    at = 0
    first = True
    while at < len(view):
        if len(view) - at < HEADER_BYTES:
            raise FrameDamaged("the header of a frame is cut short", offset=offset)
        fields = unpack_fields(view, at)
        end = at + fields[LENGTH]
        if (
            fields[0] != MAGIC
            or crc32c(view[at : at + STAMP_BYTES], seed) != fields[STAMP_CRC]
            or end > len(view)
            or crc32c(view[at + BODY_START : end]) != fields[BODY_CRC]
            or fields[ATTRIBUTES] > ALL_ATTRIBUTES
            or not fields[RECORD_COUNT]
            or fields[RESERVED]
        ):
            verify_body(view, at, parse_header(view, at, seed))  # says what is wrong
        after = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
        if after <= offset or (not first and fields[BASE_OFFSET] < offset):
            raise FrameDamaged("a frame is not where it belongs", offset=offset)
        yield Located(fields, buffer, at)
        first, offset, at = False, after, end
