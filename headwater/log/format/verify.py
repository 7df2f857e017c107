"""The verifier: the one place that decides whether stored bytes are a sound frame of a log.

Readers, recovery, `hw check`, scrubbing, repair, clients and followers all ask it. A frame is sound if its stamp
matches its checksum, which starts from the partition's seed, if its body matches the checksum that the stamp vouches
for, and if this version knows everything that the header uses. The callers check that a frame follows the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from crc32c import crc32c

from headwater.core.errors import FrameDamaged
from headwater.log.format.frame import (
    ALL_ATTRIBUTES,
    ALL_GROUP_BITS,
    ATTRIBUTES,
    BASE_OFFSET,
    BODY_CRC,
    BODY_START,
    GROUP,
    HEADER_BYTES,
    LAST_OFFSET_DELTA,
    LENGTH,
    MAGIC,
    MAX_FRAME_BYTES,
    MIN_FRAME_BYTES,
    RECORD_COUNT,
    RESERVED,
    STAMP_BYTES,
    STAMP_CRC,
    Fields,
    FrameHeader,
    read_header,
    unpack_fields,
)


def verify_frame(view: memoryview, position: int, end: int, seed: int) -> Fields:
    """Return the header's fields of the frame at `position`; raise FrameDamaged unless it is sound and ends by `end`.

    All reading passes here, so a sound frame is recognised with the fewest operations. `verify_stamp` and `verify_body`
    decide the same in two steps, and name what is wrong.
    """
    if end - position < HEADER_BYTES:
        raise FrameDamaged("the header of a frame is cut short")
    fields = unpack_fields(view, position)
    length = fields[LENGTH]
    after = position + length
    if (
        fields[0] != MAGIC
        or crc32c(view[position : position + STAMP_BYTES], seed) != fields[STAMP_CRC]
        or length & 7
        or not MIN_FRAME_BYTES <= length <= MAX_FRAME_BYTES
        or after > end
        or crc32c(view[position + BODY_START : after]) != fields[BODY_CRC]
        or fields[GROUP] > ALL_GROUP_BITS
        or fields[ATTRIBUTES] > ALL_ATTRIBUTES
        or fields[RESERVED]
        or not fields[RECORD_COUNT]
    ):
        verify_body(view[:end], position, verify_stamp(view, position, seed))
        raise AssertionError("a frame that is not sound has no fault")
    return fields


def verify_stamp(view: memoryview, position: int, seed: int) -> FrameHeader:
    """Return the header at `position`, whose stamp is sound; raise FrameDamaged if it is not.

    The body may still be damaged: see `verify_body`. Until then only the fields of the stamp are known to be true.
    """
    header = read_header(view, position)
    if crc32c(view[position : position + STAMP_BYTES], seed) != header.stamp_crc:
        raise FrameDamaged("the stamp of a frame does not match its checksum")
    length = header.length
    if length & 7 or not MIN_FRAME_BYTES <= length <= MAX_FRAME_BYTES or header.group > ALL_GROUP_BITS:
        raise FrameDamaged("the stamp of a frame has values that are not allowed")
    return header


def verify_body(view: memoryview, position: int, header: FrameHeader) -> None:
    """Raise FrameDamaged unless the body at `position` is complete and is the one that was produced."""
    body = view[position + BODY_START : position + header.length]
    if len(body) != header.length - BODY_START:
        raise FrameDamaged("a frame is cut short", offset=header.base_offset)
    if crc32c(body) != header.body_crc:
        raise FrameDamaged("the body of a frame does not match its checksum", offset=header.base_offset)
    if header.attributes > ALL_ATTRIBUTES or header.reserved:
        raise FrameDamaged("a frame uses features that this version does not know", offset=header.base_offset)
    if not header.record_count:
        raise FrameDamaged("a frame contradicts itself about how many records it has", offset=header.base_offset)


class Located(NamedTuple):
    """A verified frame: the fields of its header, the buffer that it is in, and its position there."""

    fields: Fields
    buffer: pa.Buffer
    position: int


def verified(content: bytes | memoryview, seed: int, offset: int) -> Iterator[Located]:
    """Yield the frames of a log in these bytes, one after the other, from the one that holds `offset` on.

    Raises FrameDamaged for whatever is not the log's own, sound, and in its order.
    """
    view = memoryview(content)
    buffer = pa.py_buffer(view)
    if buffer.address & 7:  # Arrow wants them aligned
        view = memoryview(bytes(view))
        buffer = pa.py_buffer(view)
    position, end = 0, len(view)
    first = True
    while position < end:
        fields = verify_frame(view, position, end, seed)
        next_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
        if next_offset <= offset or (not first and fields[BASE_OFFSET] < offset):
            raise FrameDamaged("a frame is not where it belongs", offset=offset)
        yield tuple.__new__(Located, (fields, buffer, position))
        first, offset, position = False, next_offset, position + fields[LENGTH]
