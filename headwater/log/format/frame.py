"""A frame: a batch of records, the unit of checksum, atomicity, compression and copying.

A frame is a fixed header of 112 bytes and one Arrow IPC record batch. The header has two parts. The *stamp* is written
by the partition's owner at append and protected by its own checksum. The *body* (the rest of the header and the Arrow
message) is fixed by the producer and protected by the body checksum, which the stamp checksum covers in turn. So an
owner can give a frame its offsets without touching, or hashing, the records, and no bit can change unseen.

`docs/format.md` specifies every byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from crc32c import crc32c

from headwater.core.config import Compression
from headwater.core.errors import FrameDamaged, SchemaError
from headwater.core.record import NO_HEADERS, Record
from headwater.core.schema import OFFSET, Schema

MAGIC: Final = b"HWF1"

_STAMP = struct.Struct("<4sIqqIIII")  # all of the stamp but its own checksum
BODY = struct.Struct("<IQIIqq16sqII")  # the producer's part of the header
_HEADER = struct.Struct("<4sIqqIIIIIIQIIqq16sqII")
STAMP_BYTES: Final = _STAMP.size
BODY_START: Final = STAMP_BYTES + 4
HEADER_BYTES: Final = _HEADER.size
MIN_FRAME_BYTES: Final = HEADER_BYTES + 16
MAX_FRAME_BYTES: Final = 1 << 30
"""The format's own limit; configurations set a lower one."""

# Attribute bits.
CODEC_MASK: Final = 0b11
CONTROL: Final = 1 << 2
HAS_KEYS: Final = 1 << 3
HAS_HEADERS: Final = 1 << 4
EXPLICIT_OFFSETS: Final = 1 << 5
WRITER: Final = 1 << 6
ALL_ATTRIBUTES: Final = (1 << 7) - 1
CODECS: Final[dict[Compression, int]] = {"none": 0, "zstd": 1, "lz4": 2}
_CODEC_NAMES: Final = {number: name for name, number in CODECS.items()}

# Group bits: an append of several frames is visible, and recovered, as a whole or not at all.
GROUP_FIRST: Final = 1
GROUP_LAST: Final = 2
GROUP_ONLY: Final = GROUP_FIRST | GROUP_LAST
AFTER_GAP: Final = 4
"""The offsets before the frame are left out: they had been removed by compaction where it was copied from."""
ALL_GROUP_BITS: Final = GROUP_ONLY | AFTER_GAP

NO_PRODUCER: Final = bytes(16)
MAX_SEQUENCE: Final = 1 << 62


class Identity(NamedTuple):
    """The producer of a frame, by which a retry is recognised.

    An idempotent producer numbers its records per partition from 0; `forever` marks the writer of atomic groups
    (transactions, Spark's sink), whose one sequence number per group is remembered for ever.
    """

    producer_id: bytes
    epoch: int
    sequence: int
    forever: bool = False


ANONYMOUS: Final = Identity(NO_PRODUCER, 0, -1)
UNSIGNED: Final = Identity(NO_PRODUCER, 0, -2)
"""The producer is not known yet: the frame is checksummed when it is `signed`, and cannot be written before."""


class FrameHeader(NamedTuple):
    """The header of a stored frame, in the order of its bytes."""

    magic: bytes
    length: int
    base_offset: int
    durable_end: int
    leader_epoch: int
    previous: int
    group: int
    body_crc: int
    stamp_crc: int
    attributes: int
    schema_id: int
    record_count: int
    last_offset_delta: int
    min_timestamp: int
    max_timestamp: int
    producer_id: bytes
    base_sequence: int
    producer_epoch: int
    reserved: int

    @property
    def next_offset(self) -> int:
        """The offset after this frame's last one."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of an idempotent producer's last record in this frame."""
        return self.base_sequence + self.record_count - 1


class Frame(NamedTuple):
    """An encoded frame that has no place in a log yet. Immutable, and cheap to append to any partition."""

    body: bytes
    message: pa.Buffer
    body_crc: int | None
    """None until the frame is signed: it has no stamp before."""
    attributes: int
    record_count: int
    last_offset_delta: int
    min_timestamp: int
    max_timestamp: int
    schema: Schema
    identity: Identity | None
    encoded_bytes: int = 0
    """The size of the message before it was compressed, or was found too small for that; 0 for all other frames."""
    compression_ns: int = 0
    """The time that compressing it took."""

    @property
    def length(self) -> int:
        """The frame's size on disk."""
        return HEADER_BYTES + int(self.message.size)

    def stamp(
        self, base_offset: int, *, durable_end: int, leader_epoch: int, previous: int, group: int, seed: int
    ) -> tuple[bytes, int]:
        """The whole header for this place in a log, and the stamp checksum that the next frame refers to."""
        head = _STAMP.pack(MAGIC, self.length, base_offset, durable_end, leader_epoch, previous, group, self.body_crc)
        checksum: int = crc32c(head, seed)
        return head + checksum.to_bytes(4, "little") + self.body, checksum

    def pieces(self) -> tuple[bytes, memoryview]:
        """Return the header and the Arrow message for sending. The log that takes the frame in stamps it anew."""
        head, _ = self.stamp(0, durable_end=0, leader_epoch=0, previous=0, group=GROUP_ONLY, seed=0)
        return head, memoryview(self.message)

    def packed(self) -> bytes:
        """Return the same as `pieces`, joined."""
        return b"".join(self.pieces())


# Decoding.


def read_header(view: memoryview, position: int = 0) -> FrameHeader:
    """The header at `position`, of which only the magic bytes are checked."""
    if len(view) - position < HEADER_BYTES:
        raise FrameDamaged("the header of a frame is cut short")
    header = tuple.__new__(FrameHeader, _HEADER.unpack_from(view, position))
    if header.magic != MAGIC:
        raise FrameDamaged("no frame begins here")
    return header


Fields = tuple[Any, ...]
"""A FrameHeader without its names, which cost a scan of small frames more time than the checks of a header do."""

LENGTH: Final = 1
BASE_OFFSET: Final = 2
PREVIOUS: Final = 5
GROUP: Final = 6
BODY_CRC: Final = 7
STAMP_CRC: Final = 8
ATTRIBUTES: Final = 9
SCHEMA_ID: Final = 10
RECORD_COUNT: Final = 11
LAST_OFFSET_DELTA: Final = 12
RESERVED: Final = 18

unpack_fields = _HEADER.unpack_from


def frame_schema(schema: Schema, attributes: int) -> pa.Schema:
    """The columns of a frame with these attributes."""
    return schema.frame(
        offsets=bool(attributes & EXPLICIT_OFFSETS),
        keys=bool(attributes & HAS_KEYS),
        headers=bool(attributes & HAS_HEADERS),
    )


def identity_of(header: FrameHeader) -> Identity | None:
    """Return the producer of a stored frame; None when that was not recorded."""
    if header.producer_id == NO_PRODUCER:
        return None
    forever = bool(header.attributes & WRITER)
    return Identity(header.producer_id, header.producer_epoch, header.base_sequence, forever)


class StoredFrame(NamedTuple):
    """A verified frame as it lies in a log: its header, and where its bytes are, in a buffer that keeps them alive."""

    header: FrameHeader
    buffer: pa.Buffer
    schema: Schema
    start: int = 0

    @property
    def data(self) -> pa.Buffer:
        """The whole frame, without copying."""
        return self.buffer.slice(self.start, self.header.length)

    @property
    def message(self) -> pa.Buffer:
        """The Arrow message, without copying."""
        return self.buffer.slice(self.start + HEADER_BYTES, self.header.length - HEADER_BYTES)

    def batch(self) -> pa.RecordBatch:
        """The frame's own columns as views on its bytes (decompressed ones are new)."""
        columns = frame_schema(self.schema, self.header.attributes)
        try:
            return pa.ipc.read_record_batch(self.message, columns)
        except (pa.ArrowException, OSError) as error:
            raise FrameDamaged(f"a frame is not decodable: {error}", offset=self.header.base_offset) from error

    @property
    def compression(self) -> Compression:
        """The compression of the frame."""
        return _CODEC_NAMES[self.header.attributes & CODEC_MASK]

    def unstamped(self) -> Frame:
        """The same frame without its place in a log: the bytes are shared."""
        header = self.header
        body = self.data.slice(BODY_START, HEADER_BYTES - BODY_START).to_pybytes()
        return Frame(
            body,
            self.message,
            header.body_crc,
            header.attributes,
            header.record_count,
            header.last_offset_delta,
            header.min_timestamp,
            header.max_timestamp,
            self.schema,
            identity_of(header),
        )

    def offsets(self, batch: pa.RecordBatch) -> pa.Array:
        """The offset of each record of `batch`, which is this frame's."""
        header = self.header
        if header.attributes & EXPLICIT_OFFSETS:
            return batch.column(0)
        return pa.arange(header.base_offset, header.next_offset)

    def records(self, start: int = 0, end: int | None = None) -> list[Record]:
        """The records with `start` <= offset < `end`, as Python objects."""
        return list(map(tuple.__new__, repeat(Record), zip(*self.columns(start, end), strict=False)))

    def columns(self, start: int = 0, end: int | None = None) -> tuple[Iterable[Any], ...]:
        """The same as columns: offsets, timestamps, keys, values and headers. A repeated value may repeat for ever."""
        header = self.header
        if header.attributes & CONTROL:
            return _NOTHING
        batch = self.batch()
        offsets: Any = range(header.base_offset, header.next_offset)
        column = 0
        if header.attributes & EXPLICIT_OFFSETS:
            offsets = batch.column(0).to_pylist()
            column = 1
        if start > header.base_offset or (end is not None and end < header.next_offset):
            kept = [i for i, offset in enumerate(offsets) if start <= offset and (end is None or offset < end)]
            if not kept:
                return _NOTHING
            offsets = offsets[kept[0] : kept[-1] + 1]
            batch = batch.slice(kept[0], len(offsets))
        timestamps = batch.column(column).view(OFFSET).to_pylist()
        column += 1
        keys: Any = repeat(None)
        if header.attributes & HAS_KEYS:
            keys = batch.column(column).to_pylist()
            column += 1
        headers: Any = repeat(NO_HEADERS)
        if header.attributes & HAS_HEADERS:
            headers = [dict(pairs) if pairs else NO_HEADERS for pairs in batch.column(column).to_pylist()]
            column += 1
        values = batch.column(column).to_pylist() if self.schema.raw else _rows(batch, column)
        return offsets, timestamps, keys, values, headers


_NOTHING: Final[tuple[Iterable[Any], ...]] = ((),) * 5


SchemaOf = Callable[[int], Schema]
"""Finds a schema by its id."""

Taken = TypeVar("Taken")
Take = Callable[[Fields, pa.Buffer, int], Taken | None]
"""Makes something of a verified frame: of its header's fields, the buffer that it is in and its position there."""


def stored_frame(fields: Fields, buffer: pa.Buffer, position: int, schema_of: SchemaOf) -> StoredFrame:
    """Return the frame with its header and schema. Without the constructors of named tuples it takes half the time."""
    header = tuple.__new__(FrameHeader, fields)
    return tuple.__new__(StoredFrame, (header, buffer, schema_of(fields[SCHEMA_ID]), position))


def _rows(batch: pa.RecordBatch, first: int) -> list[dict[str, Any] | None]:
    """Typed rows as dicts; a row whose every column is null is a delete marker."""
    names = batch.schema.names[first:]
    columns = [_python(name, column) for name, column in zip(names, batch.columns[first:], strict=True)]
    rows = zip(*columns, strict=True)
    return [dict(zip(names, row, strict=True)) if any(value is not None for value in row) else None for row in rows]


def _python(name: str, column: pa.Array) -> list[Any]:
    """The column's values as Python's own, with times of nanoseconds as integers: its types end at microseconds."""
    kind = _countable(column.type)
    try:
        values: list[Any] = (column if kind == column.type else column.cast(kind)).to_pylist()
    except (ValueError, OverflowError) as error:
        raise SchemaError(
            f"column {name!r} has a value that Python cannot hold ({error}): read it by scan()"
        ) from error
    return values


@lru_cache(maxsize=1024)
def _countable(kind: Any) -> Any:
    types = pa.types
    if types.is_temporal(kind) and getattr(kind, "unit", None) == "ns":
        return pa.int64()
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([field.with_type(_countable(field.type)) for field in fields])
    if types.is_map(kind):
        return pa.map_(_countable(kind.key_type), kind.item_field.with_type(_countable(kind.item_type)))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        value = kind.value_field.with_type(_countable(kind.value_type))
        if types.is_fixed_size_list(kind):
            return pa.list_(value, kind.list_size)
        return pa.list_(value) if types.is_list(kind) else pa.large_list(value)
    return kind
