"""Encoding: records become one frame, where they are produced, before any lock is taken."""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from crc32c import crc32c

import headwater.core.compute as pc
from headwater.core.config import Compression
from headwater.core.errors import InvalidRecord
from headwater.core.schema import HEADERS, KEY, RAW, TIMESTAMP, Schema
from headwater.log.format.frame import (
    ANONYMOUS,
    BODY,
    CODECS,
    EXPLICIT_OFFSETS,
    HAS_HEADERS,
    HAS_KEYS,
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_SEQUENCE,
    NO_PRODUCER,
    UNSIGNED,
    WRITER,
    Frame,
    Identity,
    StoredFrame,
    frame_schema,
)
from headwater.log.format.plain import FEW, plain_message

DEFAULT_THRESHOLD: Final = 512
"""Frames smaller than this are stored as they are: compression would make most of them larger."""


def encode(
    values: Sequence[bytes | None] | pa.Array,
    *,
    keys: Sequence[bytes | None] | pa.Array | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | pa.Array | None = None,
    timestamps: int | Sequence[int] | pa.Array | None = None,
    compression: Compression = "none",
    threshold: int = DEFAULT_THRESHOLD,
    identity: Identity | None = None,
) -> Frame:
    """One frame of raw records, from columns of equal length. Without timestamps the records are stamped now."""
    if compression == "none" and headers is None:
        frame = _encode_plain(values, keys, timestamps, identity)
        if frame is not None:
            return frame
    payload = [_column(values, RAW.payload.field(0).type, "values")]
    return _encode(RAW, payload, keys, headers, timestamps, None, compression, threshold, identity)


def _encode_plain(values: Any, keys: Any, timestamps: Any, identity: Identity | None) -> Frame | None:
    """One frame of records that need nothing special, or None."""
    if not isinstance(values, list) or not values or not (keys is None or isinstance(keys, list)):
        return None
    count = len(values)
    times = _packed_times(time.time_ns() if timestamps is None else timestamps, count)
    if times is None:
        return None
    content, first, last = times
    message = plain_message([values] if keys is None else [keys, values], content)
    if message is None:
        return None
    attributes = 0 if keys is None else HAS_KEYS
    return _sign(RAW, pa.py_buffer(message), attributes, count, count - 1, first, last, identity)


def _packed_times(timestamps: Any, count: int) -> tuple[bytes | pa.Buffer, int, int] | None:
    """The content of the timestamp column, the least and the greatest; None for what needs a closer look."""
    try:
        if type(timestamps) is int:
            return timestamps.to_bytes(8, "little", signed=True) * count, timestamps, timestamps
        if type(timestamps) is list and len(timestamps) == count:
            content = struct.pack(f"<{count}q", *timestamps)
            if count <= FEW:
                return content, min(timestamps), max(timestamps)
            return content, *_span(pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(content)]))
        if isinstance(timestamps, pa.Int64Array) and len(timestamps) == count and not timestamps.null_count:
            return timestamps.buffers()[1].slice(8 * timestamps.offset, 8 * count), *_span(timestamps)
    except (OverflowError, struct.error):
        return None
    return None


def _span(numbers: pa.Array) -> tuple[int, int]:
    """The least and the greatest."""
    bounds = pc.min_max(numbers)
    return bounds["min"].as_py(), bounds["max"].as_py()


def encode_batch(
    batch: pa.RecordBatch,
    schema: Schema,
    *,
    keys: Sequence[bytes | None] | pa.Array | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | pa.Array | None = None,
    timestamps: int | Sequence[int] | pa.Array | None = None,
    offsets: pa.Array | None = None,
    compression: Compression = "none",
    threshold: int = DEFAULT_THRESHOLD,
    identity: Identity | None = None,
) -> Frame:
    """One frame of a typed batch, whose columns must be those of `schema` (dictionaries are decoded).

    `offsets` gives each record its own offset: for compaction, which removes records from between others.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidRecord(f"a typed frame is made of a pyarrow.RecordBatch, not of {type(batch).__name__}")
    if batch.schema.names != schema.payload.names:
        missing = [name for name in schema.payload.names if name not in batch.schema.names]
        extra = [name for name in batch.schema.names if name not in schema.payload.names]
        raise InvalidRecord(f"columns do not fit the schema: missing {missing}, unknown {extra}, or in another order")
    payload = []
    for field, column in zip(schema.payload, batch.columns, strict=True):
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise InvalidRecord(f"column {field.name!r} is {column.type}, not {field.type}: {error}") from error
        if column.null_count and not field.nullable:
            raise InvalidRecord(f"column {field.name!r} must not be null")
        payload.append(column)
    return _encode(schema, payload, keys, headers, timestamps, offsets, compression, threshold, identity)


def _encode(
    schema: Schema,
    payload: list[pa.Array],
    keys: Any,
    headers: Any,
    timestamps: Any,
    offsets: pa.Array | None,
    compression: Compression,
    threshold: int,
    identity: Identity | None,
) -> Frame:
    count = len(payload[0])
    if count == 0:
        raise InvalidRecord("a frame has at least one record")
    columns, first, last = _timestamps(timestamps, count)
    attributes = 0
    delta = count - 1
    if offsets is not None:
        columns.insert(0, offsets)
        attributes |= EXPLICIT_OFFSETS
        delta = offsets[-1].as_py() - offsets[0].as_py()
    if keys is not None:
        column = _column(keys, KEY, "keys")
        if column.null_count < len(column):
            columns.append(column)
            attributes |= HAS_KEYS
    if headers is not None:
        column = _headers(headers)
        if column.null_count < len(column):
            columns.append(column)
            attributes |= HAS_HEADERS
    columns += payload
    for column in columns:
        if len(column) != count:
            raise InvalidRecord(f"columns have different lengths: {len(column)} and {count}")
    batch = pa.RecordBatch.from_arrays(columns, schema=frame_schema(schema, attributes))
    return _seal(schema, batch, attributes, delta, first, last, compression, threshold, identity)


def reencode(schema: Schema, batch: pa.RecordBatch, *, compression: Compression = "none") -> Frame:
    """One frame of rows that were stored before: `batch` has the columns of `schema.full`, offsets included."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return encode_batch(
        batch.select(schema.payload.names),
        schema,
        keys=columns[schema.system("key")],
        headers=columns[schema.system("headers")],
        timestamps=columns[schema.system("timestamp")],
        offsets=columns[schema.system("offset")],
        compression=compression,
    )


def select(frame: StoredFrame, mask: pa.Array, *, compress: bool = False) -> tuple[Frame, int]:
    """Return the records of a stored frame for which `mask` is true, at least one, and the offset of the first.

    With `compress` they are compressed as the stored ones are.
    """
    stored = frame.batch()
    offsets = frame.offsets(stored).filter(mask)
    attributes = frame.header.attributes & (HAS_KEYS | HAS_HEADERS) | EXPLICIT_OFFSETS
    columns = stored.filter(mask).columns
    if not frame.header.attributes & EXPLICIT_OFFSETS:
        columns.insert(0, offsets)
    batch = pa.RecordBatch.from_arrays(columns, schema=frame_schema(frame.schema, attributes))
    base: int = offsets[0].as_py()
    delta = offsets[-1].as_py() - base
    first, last = _span(batch.column(1).view(pa.int64()))
    compression = frame.compression if compress else "none"
    sealed = _seal(frame.schema, batch, attributes, delta, first, last, compression, DEFAULT_THRESHOLD, None)
    return sealed, base


def _seal(
    schema: Schema,
    batch: pa.RecordBatch,
    attributes: int,
    delta: int,
    first: int,
    last: int,
    compression: Compression,
    threshold: int,
    identity: Identity | None,
) -> Frame:
    """Serialise, and compress where it pays."""
    if compression not in CODECS:
        raise InvalidRecord(f"compression must be one of {', '.join(CODECS)}, not {compression!r}")
    if compression != "none" and batch.nbytes >= threshold:
        started = time.perf_counter_ns()
        message = _compressed(batch, compression)
        took = time.perf_counter_ns() - started
        attributes |= CODECS[compression]
        frame = _sign(schema, message, attributes, batch.num_rows, delta, first, last, identity)
        return frame._replace(encoded_bytes=batch.nbytes, compression_ns=took)
    message = batch.serialize()
    frame = _sign(schema, message, attributes, batch.num_rows, delta, first, last, identity)
    return frame if compression == "none" else frame._replace(encoded_bytes=message.size)


def _sign(
    schema: Schema,
    message: pa.Buffer,
    attributes: int,
    count: int,
    delta: int,
    first: int,
    last: int,
    identity: Identity | None,
) -> Frame:
    """Checksum the message and all that the producer says of it, unless it is to be signed later."""
    if HEADER_BYTES + message.size > MAX_FRAME_BYTES:
        raise InvalidRecord(
            f"a frame of {message.size} bytes is over the limit of {MAX_FRAME_BYTES}: send fewer records"
        )
    if identity is UNSIGNED:
        return Frame(b"", message, None, attributes, count, delta, first, last, schema, identity)
    producer_id, epoch, sequence, forever = ANONYMOUS if identity is None else _checked(identity)
    attributes |= WRITER if forever else 0
    body = BODY.pack(attributes, schema.id, count, delta, first, last, producer_id, sequence, epoch, 0)
    checksum = crc32c(message, crc32c(body))
    return Frame(body, message, checksum, attributes, count, delta, first, last, schema, identity)


def signed(frame: Frame, identity: Identity) -> Frame:
    """The same records, as those of this producer: for frames that were made before it was known."""
    again = _sign(
        frame.schema,
        frame.message,
        frame.attributes,
        frame.record_count,
        frame.last_offset_delta,
        frame.min_timestamp,
        frame.max_timestamp,
        identity,
    )
    if frame.encoded_bytes:
        again = again._replace(encoded_bytes=frame.encoded_bytes, compression_ns=frame.compression_ns)
    return again


def _checked(identity: Identity) -> Identity:
    producer_id: Any
    producer_id, epoch, sequence, _ = identity
    named = isinstance(producer_id, bytes) and len(producer_id) == 16 and producer_id != NO_PRODUCER
    if not named or not 0 <= epoch < 1 << 32 or not 0 <= sequence <= MAX_SEQUENCE:
        raise InvalidRecord(f"not a producer's identity (16 bytes, epoch, sequence): {identity}")
    return identity


def _column(values: Any, kind: Any, name: str) -> pa.Array:
    if isinstance(values, pa.Array) and values.type == kind:
        return values
    try:
        column = pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRecord(f"{name} must be {kind}: {error}") from error
    if isinstance(column, pa.ChunkedArray):
        raise InvalidRecord(f"{name} are over 2 GiB together: send fewer records at a time")
    return column


def _headers(headers: Any) -> pa.Array:
    if isinstance(headers, pa.Array):
        return _column(headers, HEADERS, "headers")
    try:
        pairs = [list(mapping.items()) if mapping else None for mapping in headers]
    except (AttributeError, TypeError) as error:
        raise InvalidRecord("headers must be mappings of str to bytes, one for each record") from error
    return _column(pairs, HEADERS, "headers")


def _timestamps(timestamps: Any, count: int) -> tuple[list[pa.Array], int, int]:
    """The timestamp column (in a list of its own), the least and the greatest timestamp."""
    if timestamps is None:
        timestamps = time.time_ns()
    try:
        if isinstance(timestamps, int):
            return [_timestamp_column(array("q", (timestamps,)) * count)], timestamps, timestamps
        if isinstance(timestamps, pa.Array):
            column = timestamps.cast(TIMESTAMP)
        else:
            column = _timestamp_column(array("q", timestamps))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InvalidRecord(f"timestamps must be 64-bit nanoseconds: {error}") from error
    if column.null_count:
        raise InvalidRecord("timestamps must not be null")
    if len(column) != count:
        raise InvalidRecord(f"columns have different lengths: {len(column)} and {count}")
    return [column], *_span(column.view(pa.int64()))


def _timestamp_column(numbers: array[int]) -> pa.Array:
    return pa.Array.from_buffers(TIMESTAMP, len(numbers), [None, pa.py_buffer(numbers)])


def _compressed(batch: pa.RecordBatch, codec: Compression) -> pa.Buffer:
    """The batch as a compressed message. pyarrow compresses only in streams, so the stream's schema is cut off."""
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, batch.schema, options=options).write_batch(batch)
    return sink.getvalue().slice(batch.schema.serialize().size)
