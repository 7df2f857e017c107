"""Frames from outside: checked once, where they enter, before pyarrow touches a value.

A checksum says that bytes arrived as they were sent, not that they are sane: a well-checksummed hostile batch can make
pyarrow read beyond its buffers, and a few kilobytes can decompress to gigabytes. So a frame from the network, a backup
or an unknown file passes `admit` first. Frames that pass can be read like the log's own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.errors import FrameDamaged, UntrustedFrame
from headwater.core.schema import Schema
from headwater.log.format.frame import (
    CODEC_MASK,
    CONTROL,
    EXPLICIT_OFFSETS,
    HAS_KEYS,
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_SEQUENCE,
    MIN_FRAME_BYTES,
    NO_PRODUCER,
    WRITER,
    FrameHeader,
    StoredFrame,
    frame_schema,
    read_header,
)
from headwater.log.format.plain import Plain, plain_content
from headwater.log.format.verify import verify_body

_RECORD_BATCH: Final = 3
_CONTINUATION: Final = 0xFFFFFFFF
_FEW: Final = 48
"""Up to so many numbers Python compares faster than it calls pyarrow."""
_KEYLESS: Final = "every record needs a key here"
_UINT16 = struct.Struct("<H")
_INT32 = struct.Struct("<i")
_UINT32 = struct.Struct("<I")
_INT64 = struct.Struct("<q")
_BUFFER = struct.Struct("<qq")


def admit(
    data: pa.Buffer,
    schema: Schema,
    *,
    max_decoded_bytes: int = MAX_FRAME_BYTES,
    latest_timestamp: int | None = None,
    explicit_offsets: bool = False,
    keys_required: bool = False,
    look: Callable[[pa.RecordBatch | Plain], None] = lambda _: None,
) -> StoredFrame:
    """The frame in these bytes, proved sane; raises UntrustedFrame, which says what is wrong.

    The stamp is not looked at: whoever takes the frame in stamps it anew. `latest_timestamp` bounds how far in the
    future records may lie; `explicit_offsets` allows what only compaction writes. `look` is shown the records, which
    are decoded by then, and may raise what else is wrong with them. A few plain records are proved without pyarrow,
    which takes a third of the time.
    """
    view = memoryview(data)
    header = _admit_header(view, schema, explicit_offsets)
    frame = StoredFrame(header, data, schema)
    plain = _plain(view, header, schema) if len(view) <= max_decoded_bytes else None
    if plain is not None:
        _admit_times(header, (min(plain.times), max(plain.times)), latest_timestamp)
        if keys_required and not header.attributes & HAS_KEYS:
            raise UntrustedFrame(_KEYLESS)
        look(plain)
        return frame
    decoded = decoded_bytes(view[HEADER_BYTES:], bool(header.attributes & CODEC_MASK))
    if decoded > max_decoded_bytes:
        raise UntrustedFrame(f"a frame would decode to {decoded} bytes, over the limit of {max_decoded_bytes}")
    try:
        batch = pa.ipc.read_record_batch(frame.message, frame_schema(schema, header.attributes))
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UntrustedFrame(f"a frame does not hold what its schema says: {error}") from error
    _admit_rows(frame, batch, latest_timestamp, keys_required)
    look(batch)
    return frame


def _admit_header(view: memoryview, schema: Schema, explicit_offsets: bool) -> FrameHeader:
    if not MIN_FRAME_BYTES <= len(view) <= MAX_FRAME_BYTES or len(view) % 8:
        raise UntrustedFrame(f"{len(view)} bytes cannot be a frame")
    try:
        header = read_header(view)
    except FrameDamaged as error:
        raise UntrustedFrame(error.reason) from None
    if header.length != len(view):
        raise UntrustedFrame(f"a frame says it has {header.length} bytes, and {len(view)} came")
    try:
        verify_body(view, 0, header)
    except FrameDamaged as error:
        raise UntrustedFrame(error.reason) from None
    if header.attributes & CODEC_MASK == CODEC_MASK:
        raise UntrustedFrame("a frame uses features that this version does not know")
    if header.attributes & CONTROL or (header.attributes & EXPLICIT_OFFSETS and not explicit_offsets):
        raise UntrustedFrame("a frame is of a kind that is not accepted from outside")
    if header.schema_id != schema.id:
        raise UntrustedFrame(f"a frame has schema {header.schema_id:016x}, not {schema.id:016x}")
    if not _identified(header):
        raise UntrustedFrame("a frame contradicts itself about who produced it")
    if header.last_offset_delta < header.record_count - 1:
        raise UntrustedFrame("a frame contradicts itself about how many records it has")
    if header.last_offset_delta != header.record_count - 1 and not header.attributes & EXPLICIT_OFFSETS:
        raise UntrustedFrame("a frame leaves out offsets")
    return header


def _identified(header: FrameHeader) -> bool:
    """Return True if the frame names no producer, or one with a possible sequence."""
    if header.producer_id == NO_PRODUCER:
        return (header.base_sequence, header.producer_epoch, header.attributes & WRITER) == (-1, 0, 0)
    return 0 <= header.base_sequence <= MAX_SEQUENCE


def _plain(view: memoryview, header: FrameHeader, schema: Schema) -> Plain | None:
    if not schema.raw or header.attributes & ~WRITER not in (0, HAS_KEYS):
        return None
    return plain_content(view[HEADER_BYTES:], header.record_count, 2 if header.attributes & HAS_KEYS else 1)


def _admit_times(header: FrameHeader, span: tuple[int, int], latest_timestamp: int | None) -> None:
    if span != (header.min_timestamp, header.max_timestamp):
        raise UntrustedFrame("the timestamps of a frame are not those of its records")
    if latest_timestamp is not None and header.max_timestamp > latest_timestamp:
        raise UntrustedFrame("a frame has records from the future")


def _admit_rows(frame: StoredFrame, batch: pa.RecordBatch, latest_timestamp: int | None, keys_required: bool) -> None:
    header, schema = frame.header, frame.schema
    if batch.num_rows != header.record_count:
        raise UntrustedFrame(f"a frame says it has {header.record_count} records and has {batch.num_rows}")
    columns = batch.columns
    for number, column in enumerate(columns):
        if column.null_count and not batch.schema.field(number).nullable:
            raise UntrustedFrame(f"column {batch.schema.field(number).name!r} must not be null")
    times = columns[1 if header.attributes & EXPLICIT_OFFSETS else 0].view(pa.int64())
    _admit_times(header, _span(times), latest_timestamp)
    if keys_required and (not header.attributes & HAS_KEYS or batch.column(schema.system("key")).null_count):
        raise UntrustedFrame(_KEYLESS)
    if header.attributes & EXPLICIT_OFFSETS:
        offsets = batch.column(0)
        rising = len(offsets) < 2 or pc.all(pc.greater(offsets.slice(1), offsets.slice(0, len(offsets) - 1))).as_py()
        if not rising or (offsets[0].as_py(), offsets[-1].as_py()) != (header.base_offset, header.next_offset - 1):
            raise UntrustedFrame("the offsets of a frame do not rise from its first to its last")


def _span(numbers: pa.Array) -> tuple[int, int]:
    """The least and the greatest."""
    if len(numbers) <= _FEW:
        listed: list[int] = numbers.to_pylist()
        return min(listed), max(listed)
    bounds = pc.min_max(numbers)
    return bounds["min"].as_py(), bounds["max"].as_py()


def decoded_bytes(message: memoryview, compressed: bool) -> int:
    """Return the memory that the buffers of an Arrow record-batch message take once they are decompressed.

    This reads just enough of the message's metadata (a flatbuffer) and trusts nothing in it.
    """
    try:
        continuation, size = _UINT32.unpack_from(message)[0], _INT32.unpack_from(message, 4)[0]
        if continuation != _CONTINUATION or not 0 < size <= len(message) - 8:
            raise UntrustedFrame("a frame holds no Arrow message")
        metadata, body = message[8 : 8 + size], message[8 + size :]
        table = _UINT32.unpack_from(metadata)[0]
        kind = _field(metadata, table, 1)
        batch = _field(metadata, table, 2)
        length = _field(metadata, table, 3)
        if kind is None or metadata[kind] != _RECORD_BATCH or batch is None:
            raise UntrustedFrame("a frame holds no Arrow record batch")
        if length is None or _INT64.unpack_from(metadata, length)[0] != len(body):
            raise UntrustedFrame("an Arrow message is not as long as it says")
        batch += _UINT32.unpack_from(metadata, batch)[0]
        if (_field(metadata, batch, 3) is not None) != compressed:
            raise UntrustedFrame("a frame contradicts itself about being compressed")
        return _buffers_bytes(metadata, _field(metadata, batch, 2), body, compressed)
    except (struct.error, IndexError) as error:
        raise UntrustedFrame(f"an Arrow message is malformed: {error}") from error


def _buffers_bytes(metadata: memoryview, vector: int | None, body: memoryview, compressed: bool) -> int:
    if vector is None:
        return 0
    vector += _UINT32.unpack_from(metadata, vector)[0]
    count = _UINT32.unpack_from(metadata, vector)[0]
    if vector + 4 + count * _BUFFER.size > len(metadata):
        raise UntrustedFrame("an Arrow message names more buffers than it has")
    total = 0
    for number in range(count):
        offset, length = _BUFFER.unpack_from(metadata, vector + 4 + number * _BUFFER.size)
        if offset < 0 or length < 0 or offset + length > len(body):
            raise UntrustedFrame("an Arrow message has a buffer outside itself")
        if compressed and length:
            # Each compressed buffer begins with its decompressed length; -1 says that it was left as it is.
            stated = _INT64.unpack_from(body, offset)[0]
            if stated < -1:
                raise UntrustedFrame("an Arrow message has a buffer of a negative length")
            length = length - 8 if stated == -1 else stated
        total += length
    return total


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Return the position of field `number` of the flatbuffer table at `table`; None when it has its default."""
    vtable = table - _INT32.unpack_from(data, table)[0]
    if not 0 <= vtable <= len(data) - 4:
        raise UntrustedFrame("an Arrow message is malformed")
    entry = 4 + 2 * number
    if entry + 2 > _UINT16.unpack_from(data, vtable)[0]:
        return None
    offset: int = _UINT16.unpack_from(data, vtable + entry)[0]
    return table + offset if offset else None
