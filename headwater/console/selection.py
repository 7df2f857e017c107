"""A selection: the records of a topic that are wanted, by key, by text and by a filter; asked of whole batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.errors import InvalidConfiguration
from headwater.core.filter import Filter
from headwater.core.schema import Schema

_LONGEST: Final = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """A record, ready to be shown."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: Any
    headers: list[tuple[str, bytes | None]]


class Selection:
    """Chooses records of a topic of one schema. Without any condition it chooses all."""

    def __init__(self, schema: Schema, *, key: str = "", text: str = "", where: str = "") -> None:
        """Raises InvalidConfiguration, or InvalidFilter for a wrong `where`."""
        if max(len(key), len(text)) > _LONGEST:
            raise InvalidConfiguration(f"the text to search for can have at most {_LONGEST} characters")
        self._schema = schema
        self._key = key.encode()
        self._text = text
        self._filter = Filter.parse(where).bind(schema) if where.strip() else None

    @property
    def all(self) -> bool:
        """True if every record is wanted."""
        return not self._key and not self._text and self._filter is None

    def of(self, batch: pa.RecordBatch, partition: int) -> pa.RecordBatch:
        """The records of a batch that are wanted."""
        if self.all or not batch.num_rows:
            return batch
        if self._key:
            batch = batch.filter(pc.match_substring(batch.column(self._schema.system("key")), self._key))
        if self._text:
            batch = batch.filter(self._with_text(batch))
        return batch if self._filter is None else batch.filter(self._filter.matches(batch, partition))

    def _with_text(self, batch: pa.RecordBatch) -> pa.Array:
        matches = None
        for name in self._schema.payload.names:
            column = _searchable(batch.column(name))
            if column is not None:
                mask = pc.fill_null(pc.match_substring(column, self._text, ignore_case=True), False)
                matches = mask if matches is None else pc.or_(matches, mask)
        return pa.array([False] * batch.num_rows) if matches is None else matches

    def rows(self, batch: pa.RecordBatch, partition: int) -> list[Row]:
        """The records of a batch, as Python objects."""
        schema = self._schema
        offsets = batch.column(schema.system("offset")).to_pylist()
        times = batch.column(schema.system("timestamp")).view(pa.int64()).to_pylist()
        keys = batch.column(schema.system("key")).to_pylist()
        headers = batch.column(schema.system("headers")).to_pylist()
        values = batch.column("value").to_pylist() if schema.raw else _values(batch, schema)
        return [
            Row(partition, offset, time, key, value, header or [])
            for offset, time, key, value, header in zip(offsets, times, keys, values, headers, strict=True)
        ]


def _values(batch: pa.RecordBatch, schema: Schema) -> list[dict[str, Any] | None]:
    """Typed rows; one whose every column is null is a delete marker."""
    names = schema.payload.names
    columns = [_python(batch.column(name)) for name in names]
    rows = zip(*columns, strict=True)
    return [dict(zip(names, row, strict=True)) if any(value is not None for value in row) else None for row in rows]


def _python(column: pa.Array) -> list[Any]:
    """Values as Python's own; those that Python cannot hold, such as times of nanoseconds, as text."""
    if pa.types.is_temporal(column.type):
        return pc.cast(column, pa.string()).to_pylist()  # type: ignore[no-any-return]
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        return [str(value) for value in column]


def _searchable(column: pa.Array) -> pa.Array | None:
    """A column as text; None for one that has none, such as a list."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _binary(column):
        return column
    if pa.types.is_nested(kind):
        return None
    try:
        return pc.cast(column, pa.string())
    except pa.ArrowException:
        return None


def _binary(column: pa.Array) -> bool:
    return bool(pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type))
