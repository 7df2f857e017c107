"""Hypothesis strategies: any records, any schema that can be stored, any data that fits it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from headwater import Schema
from headwater.core.config import Compression
from headwater.log import Frame, Identity, StoredFrame, encode
from headwater.log.format.frame import GROUP_ONLY, FrameHeader
from headwater.log.format.verify import verify_frame

INT64: Final = (-(1 << 63), (1 << 63) - 1)
DAY_MS: Final = 24 * 60 * 60 * 1000
_WIDE: Final = Context(prec=100)

compressions: st.SearchStrategy[Compression] = st.sampled_from(("none", "zstd", "lz4"))
timestamps = st.integers(0, 100) | st.integers(*INT64) | st.sampled_from(INT64)
payloads = st.none() | st.binary(max_size=40) | st.sampled_from((b"HWF1", b"\0" * 200))
headers = st.none() | st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3)
producer_ids = st.binary(min_size=16, max_size=16).filter(any)


class Columns(NamedTuple):
    """Records before they are encoded, by column."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[Mapping[str, bytes] | None] | None
    timestamps: list[int]

    def encode(self, compression: Compression = "none", identity: Identity | None = None) -> Frame:
        """One frame of them, compressed whatever its size."""
        return encode(
            self.values,
            keys=self.keys,
            headers=self.headers,
            timestamps=self.timestamps,
            compression=compression,
            threshold=0,
            identity=identity,
        )


@st.composite
def columns(draw: st.DrawFn, *, max_records: int = 12) -> Columns:
    """Raw records: with and without keys and headers, nulls and empty ones among them."""
    count = draw(st.integers(1, max_records))

    def column(item: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(item, min_size=count, max_size=count))

    keys = column(payloads) if draw(st.booleans()) else None
    mappings = column(headers) if draw(st.booleans()) else None
    return Columns(column(payloads), keys, mappings, column(timestamps))


# Arrow types and values of them.

_UNITS: Final = ("s", "ms", "us", "ns")
_INTEGERS: Final = {
    pa.int8(): (-(1 << 7), (1 << 7) - 1),
    pa.int16(): (-(1 << 15), (1 << 15) - 1),
    pa.int32(): (-(1 << 31), (1 << 31) - 1),
    pa.int64(): INT64,
    pa.uint8(): (0, (1 << 8) - 1),
    pa.uint16(): (0, (1 << 16) - 1),
    pa.uint32(): (0, (1 << 32) - 1),
    pa.uint64(): (0, (1 << 64) - 1),
    pa.date32(): (-(1 << 31), (1 << 31) - 1),
    pa.time32("s"): (0, DAY_MS // 1000 - 1),
    pa.time32("ms"): (0, DAY_MS - 1),
    pa.time64("us"): (0, DAY_MS * 1000 - 1),
    pa.time64("ns"): (0, DAY_MS * 1_000_000 - 1),
    **{pa.duration(unit): INT64 for unit in _UNITS},
    **{pa.timestamp(unit, zone): INT64 for unit in _UNITS for zone in (None, "UTC", "Europe/Berlin")},
}
_DECIMALS: Final = (
    pa.decimal32(7, 2),
    pa.decimal64(18, 0),
    pa.decimal128(38, 10),
    pa.decimal128(5, -2),
    pa.decimal256(76, 38),
)
_OTHERS: Final[dict[Any, st.SearchStrategy[Any]]] = {
    pa.bool_(): st.booleans(),
    pa.float16(): st.floats(width=16, allow_nan=False),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=8),
    pa.large_string(): st.text(max_size=8),
    pa.binary(): st.binary(max_size=8),
    pa.large_binary(): st.binary(max_size=8),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.date64(): st.integers(-100_000, 100_000).map(lambda day: day * DAY_MS),
    pa.month_day_nano_interval(): st.tuples(
        st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 31), (1 << 31) - 1), st.integers(*INT64)
    ),
    pa.null(): st.none(),
}
leaf_types: st.SearchStrategy[Any] = st.sampled_from([*_INTEGERS, *_DECIMALS, *_OTHERS])
_key_types: st.SearchStrategy[Any] = st.sampled_from([pa.string(), pa.binary(), pa.int32(), pa.date32()])
_names = st.text(min_size=1, max_size=6).filter(lambda name: not name.startswith("_"))


def _structs(kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    field = st.tuples(_names, kinds)
    return st.lists(field, min_size=1, max_size=3, unique_by=lambda pair: pair[0]).map(pa.struct)


def _nested(kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        kinds.map(pa.list_),
        kinds.map(pa.large_list),
        st.builds(pa.list_, kinds, st.integers(1, 3)),
        _structs(kinds),
        st.builds(pa.map_, _key_types, kinds),
    )


arrow_types = st.recursive(leaf_types, _nested, max_leaves=4)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """A schema of one to four columns of any types that can be stored."""
    names = draw(st.lists(_names, min_size=1, max_size=4, unique=True))
    fields = []
    for name in names:
        kind = draw(arrow_types)
        fields.append(pa.field(name, kind, nullable=pa.types.is_null(kind) or draw(st.booleans())))
    return Schema(pa.schema(fields))


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of this type as pyarrow takes them, nulls left out at the top and possible below."""
    types = pa.types
    if kind in _INTEGERS:
        return st.integers(*_INTEGERS[kind])
    if kind in _OTHERS:
        return _OTHERS[kind]
    if types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-kind.scale, _WIDE))
    if types.is_map(kind):
        return st.lists(st.tuples(values_of(kind.key_type), _or_none(kind.item_type)), max_size=3)
    if types.is_struct(kind):
        return st.fixed_dictionaries({field.name: _or_none(field.type) for field in kind})
    if types.is_fixed_size_list(kind):
        return st.lists(_or_none(kind.value_type), min_size=kind.list_size, max_size=kind.list_size)
    return st.lists(_or_none(kind.value_type), max_size=3)


def _or_none(kind: Any) -> st.SearchStrategy[Any]:
    return st.none() | values_of(kind)


@st.composite
def batches(draw: st.DrawFn, schema: Schema, *, max_records: int = 6) -> pa.RecordBatch:
    """Data that fits the schema."""
    count = draw(st.integers(1, max_records))
    arrays = []
    for field in schema.payload:
        item = _or_none(field.type) if field.nullable else values_of(field.type)
        arrays.append(pa.array(draw(st.lists(item, min_size=count, max_size=count)), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema.payload)


def stored(frame: Frame, base_offset: int = 0, *, seed: int = 7) -> StoredFrame:
    """The frame as a log would hold it at `base_offset`, verified as a reader would."""
    head, _ = frame.stamp(base_offset, durable_end=0, leader_epoch=0, previous=0, group=GROUP_ONLY, seed=seed)
    data = pa.py_buffer(head + frame.message.to_pybytes())
    header = FrameHeader(*verify_frame(memoryview(data), 0, data.size, seed))
    return StoredFrame(header, data, frame.schema)
