"""Columns: how the records of a topic look to Spark.

A raw topic has the columns of Spark's Kafka source. A typed topic has its own, and those that Headwater adds, with an
underscore before them. Values are passed on as they are stored; only what Spark has no type for is converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from headwater.core.errors import SchemaError
from headwater.core.schema import HEADERS, KEY, OFFSET, TIMESTAMP, Schema

_INT: Final = pa.int32()
_KAFKA_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_KAFKA_ORDER: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_ALWAYS: Final = ("topic", "partition", "offset", "timestamp", "timestampType")
"""The columns that every record has."""
_CREATE_TIME: Final = 0
"""As Kafka calls it when a record's timestamp is the producer's."""

_ENOUGH: Final = 1024 * 1024
"""Batches of so many bytes are passed on as they are; smaller ones are put together, which is a copy."""
_TOO_MUCH: Final = 16 * 1024 * 1024
"""Larger batches are passed on in parts, so that neither side holds much more than that."""

_NARROW: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
"""Types that Spark does not have, and the next ones that hold all of their values."""


def available(schema: Schema) -> dict[str, Any]:
    """Every column that can be asked for, with its Arrow type in the log."""
    system: dict[str, Any] = {
        "key": KEY,
        "topic": pa.string(),
        "partition": _INT,
        "offset": OFFSET,
        "timestamp": TIMESTAMP,
        "headers": HEADERS,
    }
    if schema.raw:
        return {"value": pa.binary(), **system, "timestampType": _INT}
    return {field.name: field.type for field in schema.payload} | {f"_{name}": kind for name, kind in system.items()}


def usual(schema: Schema, *, headers: bool, several: bool) -> tuple[str, ...]:
    """The columns that are read when none are named."""
    if schema.raw:
        return (*_KAFKA_ORDER, "headers") if headers else _KAFKA_ORDER
    added = ["_offset", "_partition", "_timestamp", "_key"]
    return (*schema.payload.names, *added, *["_headers"] * headers, *["_topic"] * several)


def spark_schema(schema: Schema, names: Sequence[str]) -> StructType:
    """Return these columns as Spark sees them.

    Columns that every record has are declared not null, which saves Spark a test for each of them in each row. Others
    may be null: a delete marker (tombstone) has only a key.
    """
    known = available(schema)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SchemaError(f"unknown columns {', '.join(unknown)}; there are {', '.join(known)}")
    prefix = "" if schema.raw else "_"
    always = {f"{prefix}{name}" for name in _ALWAYS}
    return StructType([StructField(name, _spark_type(name, known[name]), name not in always) for name in names])


def _spark_type(name: str, kind: Any) -> Any:
    if kind == HEADERS and name in ("headers", "_headers"):
        return from_arrow_type(_KAFKA_HEADERS)
    try:
        return from_arrow_type(_spark_arrow(kind))
    except (PySparkTypeError, SchemaError) as error:
        raise SchemaError(
            f"column {name!r} is {kind}, which Spark has no type for: leave it out with the option columns"
        ) from error


def _spark_arrow(kind: Any) -> Any:
    """The Arrow type next to `kind` that Spark has a type for."""
    types = pa.types
    if kind in _NARROW:
        return _NARROW[kind]
    if types.is_time(kind):
        return pa.time64("ns")
    if types.is_decimal(kind) and (kind.precision > 38 or not 0 <= kind.scale <= kind.precision):
        raise SchemaError(f"{kind} has more digits than Spark keeps")
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_spark_arrow(kind.value_type)))
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([field.with_type(_spark_arrow(field.type)) for field in fields])
    if types.is_map(kind):
        return pa.map_(_spark_arrow(kind.key_type), kind.item_field.with_type(_spark_arrow(kind.item_type)))
    return kind


def check(schema: Schema, topic: str, wanted: StructType) -> None:
    """Raise SchemaError unless a topic can be read as `wanted`."""
    known = available(schema)
    for field in wanted.fields:
        if field.name not in known:
            raise SchemaError(f"topic {topic!r} has no column {field.name!r}; there are {', '.join(known)}")
        actual = _spark_type(field.name, known[field.name]).simpleString()
        if actual != field.dataType.simpleString():
            raise SchemaError(
                f"column {field.name!r} of topic {topic!r} is {actual}, not {field.dataType.simpleString()}: "
                f"read it as it is and cast it"
            )


class Conversion:
    """Makes batches for Spark of the batches of one partition."""

    def __init__(self, schema: Schema, wanted: StructType, topic: str, partition: int) -> None:
        self._schema: pa.Schema = to_arrow_schema(wanted, timezone="UTC")
        prefix = "" if schema.raw else "_"
        self._constants: dict[str, Any] = {
            f"{prefix}topic": pa.scalar(topic, pa.string()),
            f"{prefix}partition": pa.scalar(partition, _INT),
        }
        if schema.raw:
            self._constants["timestampType"] = pa.scalar(_CREATE_TIME, _INT)
        self._repeated: dict[str, pa.Array] = {}
        self.columns = [name for name in wanted.names if name not in self._constants] or [schema.system("offset")]
        """The columns to read from the log. The others are not decoded."""

    def batches(self, stored: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The records as Spark takes them, in batches that are worth a trip to the JVM."""
        for batch in _sized(stored):
            arrays = [self._array(field, batch) for field in self._schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: Any, batch: pa.RecordBatch) -> pa.Array:
        constant = self._constants.get(field.name)
        if constant is not None:
            return self._repeat(field.name, constant, batch.num_rows)
        array = batch.column(field.name)
        if array.null_count and not field.nullable:
            raise SchemaError(f"column {field.name!r} was declared not null, and has nulls")
        # Unsafe, as times lose their nanoseconds; everything else becomes a type that holds all of its values.
        return array if array.type == field.type else array.cast(field.type, safe=False)

    def _repeat(self, name: str, value: Any, count: int) -> pa.Array:
        """One value in every row: a view of a column that was made before, if that is long enough."""
        repeated = self._repeated.get(name)
        if repeated is None or len(repeated) < count:
            repeated = self._repeated[name] = pa.repeat(value, count)
        return repeated.slice(0, count)


def _sized(stored: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same records in batches that are neither small nor huge."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in stored:
        if not batch.num_rows:
            continue
        gathered.append(batch)
        size += batch.nbytes
        if size >= _ENOUGH:
            yield from _parts(gathered, size)
            gathered, size = [], 0
    if gathered:
        yield from _parts(gathered, size)


def _parts(gathered: list[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    batch = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
    rows = max(1, batch.num_rows * _TOO_MUCH // max(size, _TOO_MUCH))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)
