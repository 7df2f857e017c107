"""Typed input: rows and tables as batches of a topic's schema, with errors that name the columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.config import TopicConfig
from headwater.core.errors import InvalidRecord
from headwater.core.limits import check_sizes
from headwater.core.schema import Schema

_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1000}
"""The microseconds in a unit of a time, if it is coarser than Python's."""


def check_row(row: Any, schema: Schema) -> dict[str, Any]:
    """The row as a dict of all the schema's columns; raises InvalidRecord, which names the columns that do not fit."""
    if not isinstance(row, Mapping):
        raise InvalidRecord(f"a record of this topic is a dict of columns, not {type(row).__name__}")
    unknown = [name for name in row if name not in schema.payload.names]
    if unknown:
        raise InvalidRecord(f"unknown columns {unknown}; there are {', '.join(schema.payload.names)}")
    checked: dict[str, Any] = {}
    for field in schema.payload:
        value = row.get(field.name)
        if value is None and not field.nullable:
            raise InvalidRecord(f"column {field.name!r} is missing, and must not be null")
        try:
            pa.scalar(value, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidRecord(f"column {field.name!r} must be {field.type}: {error}") from error
        if _loses_something(value, field.type):
            raise InvalidRecord(f"column {field.name!r} must be {field.type}, and {value!r:.60} would be cut to fit")
        checked[field.name] = value
    return checked


def _loses_something(value: Any, kind: Any) -> bool:
    """Return whether Arrow, which takes the value, would cut off a fraction or a time of day."""
    types = pa.types
    if value is None or isinstance(value, int | str | bytes):
        return False
    if isinstance(value, float | Decimal):
        return types.is_integer(kind) and value != int(value)
    if isinstance(value, date | time | timedelta):
        if types.is_date(kind):
            return isinstance(value, datetime) and value.time() != time.min
        rest = value.microseconds if isinstance(value, timedelta) else getattr(value, "microsecond", 0)
        return bool(rest % _MICROSECONDS.get(getattr(kind, "unit", ""), 1))
    if types.is_struct(kind) and isinstance(value, Mapping):
        return any(_loses_something(value.get(field.name), field.type) for field in kind)
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return any(_loses_something(k, kind.key_type) or _loses_something(v, kind.item_type) for k, v in pairs)
    if types.is_nested(kind) and isinstance(value, Sequence):
        return any(_loses_something(item, kind.value_type) for item in value)
    return False


def check_marker(schema: Schema) -> None:
    """Raise unless the topic can have delete markers, which are null in every column."""
    required = [field.name for field in schema.payload if not field.nullable]
    if required:
        raise InvalidRecord(f"a delete marker (a value of None) is null in every column, and {required} must not be")


def size_of(value: Any) -> int:
    """About how many bytes a value takes."""
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(size_of(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(size_of(item) for item in value)
    return 8


def rows_to_batch(rows: Sequence[dict[str, Any] | None], schema: Schema) -> pa.RecordBatch:
    """Checked rows, None being a delete marker, as one batch. Columns added since they were checked are null."""
    columns = [
        pa.array([None if row is None else row.get(field.name) for row in rows], field.type) for field in schema.payload
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema.payload)


def to_batches(data: Any, schema: Schema) -> list[pa.RecordBatch]:
    """A RecordBatch, a Table, a pandas or Polars frame, or rows, as batches of the schema."""
    if isinstance(data, pa.RecordBatch):
        table = pa.table(data)
    elif isinstance(data, list):
        table = pa.table(rows_to_batch([check_row(row, schema) for row in data], schema))
    else:
        try:
            table = data if isinstance(data, pa.Table) else pa.table(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidRecord(f"{type(data).__name__} is no table: pass Arrow, pandas or Polars data") from error
    if len(set(table.column_names)) < table.num_columns:
        raise InvalidRecord(f"columns must have different names, not {table.column_names}")
    unknown = [name for name in table.column_names if name not in schema.payload.names]
    missing = [field.name for field in schema.payload if field.name not in table.column_names and not field.nullable]
    if unknown or missing:
        raise InvalidRecord(f"columns do not fit: unknown {unknown}, missing {missing}")
    columns = []
    for field in schema.payload:
        if field.name not in table.column_names:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            continue
        column = table.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise InvalidRecord(f"column {field.name!r} is {column.type}, not {field.type}: {error}") from error
        if column.null_count and not field.nullable:
            raise InvalidRecord(f"column {field.name!r} must not be null")
    return list(pa.table(columns, schema=schema.payload).combine_chunks().to_batches())


def raw_values(data: Any) -> Any:
    """Values of a raw topic, a sequence of bytes or an Arrow array, as a table; other data as it is."""
    if isinstance(data, pa.RecordBatch | pa.Table):
        return data
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return pa.table({"value": data})
    values = list(data)
    if not set(map(type, values)) <= {bytes, type(None)}:  # one look at each, without a loop in Python
        for number, value in enumerate(values):
            if not isinstance(value, bytes | None):
                raise InvalidRecord(f"record {number}: a value is bytes, not {type(value).__name__}")
    return pa.table({"value": pa.array(values, pa.binary())})


def check_batches(
    batches: list[pa.RecordBatch], keys: list[Any] | None, timestamps: Any, schema: Schema, limits: TopicConfig
) -> None:
    """Raise InvalidRecord for what does not fit together or is over a limit."""
    count = sum(batch.num_rows for batch in batches)
    for name, column in (("keys", keys), ("timestamps", timestamps)):
        if column is not None and not isinstance(column, int) and len(column) != count:
            raise InvalidRecord(f"{len(column)} {name} for {count} records")
    check_sizes(limits, value=max((largest_value(batch) for batch in batches), default=0))
    start = 0
    for batch in batches:
        for row in markers(batch) if schema.raw else ():
            if keys is None or keys[start + row] is None:
                raise InvalidRecord(f"record {start + row}: a delete marker (a value of None) needs a key")
        start += batch.num_rows


def markers(batch: pa.RecordBatch) -> list[int]:
    """The rows that are null in their first column: in a raw topic, delete markers."""
    column = batch.column(0)
    if not column.null_count:
        return []
    rows: list[int] = pc.indices_nonzero(pc.is_null(column)).to_pylist()
    return rows


def largest_value(batch: pa.RecordBatch) -> int:
    """The length of the longest text or binary in any column."""
    longest = 0
    for column in batch.columns:
        kind = column.type
        if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_binary(kind):
            longest = max(longest, pc.max(pc.binary_length(column)).as_py() or 0)
    return longest


def pieces(batch: pa.RecordBatch, size: int) -> Iterator[tuple[int, int]]:
    """The batch in parts of about `size` bytes, each as its first row and its number of rows; none is much larger
    unless one row is."""
    rows = max(1, int(batch.num_rows * size / max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, rows):
        yield from _halves(batch, start, min(rows, batch.num_rows - start), 2 * size)


def _halves(batch: pa.RecordBatch, start: int, count: int, most: int) -> Iterator[tuple[int, int]]:
    if count == 1 or batch.slice(start, count).nbytes <= most:
        yield start, count
        return
    half = count // 2
    yield from _halves(batch, start, half, most)
    yield from _halves(batch, start + half, count - half, most)
