"""A schema: the payload columns of a log, and the columns of a frame around them.

A raw log has one payload column, `value: binary`. In a typed log the payload is the user's; there the columns that
Headwater adds (offset, timestamp, key, headers) carry a leading underscore so that a user's `timestamp` can stay.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any

import pyarrow as pa

from headwater.core.errors import SchemaError

TIMESTAMP = pa.timestamp("ns", "UTC")
KEY = pa.binary()
HEADERS = pa.map_(pa.string(), pa.binary())
OFFSET = pa.int64()

_RESERVED = frozenset({"_offset", "_timestamp", "_key", "_headers", "_partition", "_topic"})


class Schema:
    """An immutable payload schema of plain Arrow types, named by a hash of its content.

    Two schemas are equal when their columns have the same names, types and nullability in the same order. Metadata is
    dropped: it would give two names to one shape.
    """

    def __init__(self, payload: pa.Schema) -> None:
        if not isinstance(payload, pa.Schema):
            raise SchemaError(f"a schema is a pyarrow.Schema, not {type(payload).__name__}")
        names = payload.names
        if not names:
            raise SchemaError("a schema has at least one column")
        for name in names:
            if not name or names.count(name) > 1 or name in _RESERVED:
                why = "is reserved" if name in _RESERVED else "must be unique and not empty"
                raise SchemaError(f"column name {name!r} {why}")
        self.payload: pa.Schema = pa.schema(
            [pa.field(field.name, _plain(field.type, field.name), field.nullable) for field in payload]
        )
        self._frames: dict[tuple[bool, bool, bool], pa.Schema] = {}

    @cached_property
    def id(self) -> int:
        """64 bits of BLAKE2b over the columns' names, types and nullability, as compact JSON."""
        columns = [_canonical(field) for field in self.payload]
        content = json.dumps(columns, ensure_ascii=True, separators=(",", ":")).encode()
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")

    @cached_property
    def raw(self) -> bool:
        """Return whether this is the schema of raw logs."""
        return bool(self.payload.equals(_RAW_PAYLOAD))

    def system(self, name: str) -> str:
        """Return the name that the system column `name` (offset, timestamp, key, headers) has beside this payload."""
        return name if self.raw else "_" + name

    def frame(self, *, offsets: bool, keys: bool, headers: bool) -> pa.Schema:
        """The columns of a frame that holds these optional system columns."""
        wanted = (offsets, keys, headers)
        schema = self._frames.get(wanted)
        if schema is None:
            fields = [pa.field(self.system("timestamp"), TIMESTAMP, nullable=False)]
            if offsets:
                fields.insert(0, pa.field(self.system("offset"), OFFSET, nullable=False))
            if keys:
                fields.append(pa.field(self.system("key"), KEY))
            if headers:
                fields.append(pa.field(self.system("headers"), HEADERS))
            schema = self._frames[wanted] = pa.schema(fields + list(self.payload))
        return schema

    @cached_property
    def full(self) -> pa.Schema:
        """All that a reader can ask for: every system column, then the payload."""
        return self.frame(offsets=True, keys=True, headers=True)

    def project(self, columns: list[str] | None) -> pa.Schema:
        """The part of `full` with these columns, in this order; an unknown name is an error that lists the known."""
        if columns is None:
            return self.full
        unknown = [name for name in columns if name not in self.full.names]
        if unknown or not columns or len(set(columns)) != len(columns):
            problem = f"unknown columns {unknown}" if unknown else "columns must be given, each once"
            raise SchemaError(f"{problem}; there are {', '.join(self.full.names)}")
        return pa.schema([self.full.field(name) for name in columns])

    def serialize(self) -> bytes:
        """The payload schema as an Arrow IPC stream without batches."""
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, self.payload).close()
        content: bytes = sink.getvalue().to_pybytes()
        return content

    @classmethod
    def deserialize(cls, content: bytes) -> Schema:
        """The reverse of `serialize`."""
        try:
            return cls(pa.ipc.open_stream(pa.py_buffer(content)).schema)
        except (pa.ArrowException, OSError) as error:
            raise SchemaError(f"not an Arrow schema: {error}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and bool(self.payload.equals(other.payload))

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Schema({', '.join(f'{field.name}: {field.type}' for field in self.payload)})"


def _plain(kind: Any, column: str) -> Any:
    """`kind` with dictionaries and views replaced by what they stand for; other indirections are refused.

    A frame must be readable on its own, with nothing but its schema.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type, column)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_map(kind):
        item = kind.item_field
        return pa.map_(_plain(kind.key_type, column), item.with_type(_plain(item.type, column)).remove_metadata())
    if types.is_struct(kind):
        return pa.struct(
            [
                kind.field(i).with_type(_plain(kind.field(i).type, column)).remove_metadata()
                for i in range(kind.num_fields)
            ]
        )
    for is_list, make in ((types.is_list, pa.list_), (types.is_large_list, pa.large_list)):
        if is_list(kind):
            return make(kind.value_field.with_type(_plain(kind.value_type, column)).remove_metadata())
    if types.is_fixed_size_list(kind):
        value = kind.value_field.with_type(_plain(kind.value_type, column)).remove_metadata()
        return pa.list_(value, kind.list_size)
    if types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
        raise SchemaError(f"column {column!r} has type {kind}, which cannot be stored: use a plain Arrow type")
    return kind


def _canonical(field: Any) -> list[Any]:
    """A field as [name, type, nullable, children], so that no two schemas read alike whatever their names contain."""
    kind = field.type
    children = [_canonical(kind.field(number)) for number in range(kind.num_fields)]
    name = str(kind).partition("<")[0] if children else str(kind)
    if pa.types.is_fixed_size_list(kind):
        name += f"[{kind.list_size}]"
    if pa.types.is_map(kind) and kind.keys_sorted:
        name += "[sorted]"
    return [field.name, name, field.nullable, children]


_RAW_PAYLOAD = pa.schema([pa.field("value", pa.binary())])
RAW = Schema(_RAW_PAYLOAD)
