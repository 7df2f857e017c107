"""The layout of rows to write: which column is what, checked before anything is written.

For a raw topic the columns are those of Spark's Kafka sink. A typed topic takes its own columns, and with an underscore
before them those that Headwater adds.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import StructType

from headwater.core.errors import SchemaError
from headwater.core.schema import RAW, Schema
from headwater.spark.columns import spark_schema

_TEXT: Final = ("binary", "string")
_SYSTEM: Final = {
    "key": _TEXT,
    "timestamp": ("timestamp",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
}
_READ_ONLY: Final = ("offset", "timestampType")
"""Columns of the source that nobody can write: they are passed over, so that what was read can be written."""


def prefix(schema: Schema) -> str:
    """Return the prefix of the names of Headwater's own columns beside those of this schema."""
    return "" if schema.raw else "_"


def check_layout(rows: StructType, schema: Schema, topic: str) -> None:
    """Raise SchemaError unless rows with these columns can be written to the topic."""
    before = prefix(schema)
    expected: dict[str, tuple[str, ...]] = {before + name: kinds for name, kinds in _SYSTEM.items()}
    if schema.raw:
        expected["value"] = _TEXT
    for name in schema.payload.names if not schema.raw else ():
        if name in rows.names:
            expected[name] = (spark_schema(schema, [name])[name].dataType.simpleString(),)
    for field in rows.fields:
        if field.name in [before + name for name in _READ_ONLY]:
            continue
        if rows.names.count(field.name) > 1:
            raise SchemaError(f"the rows have two columns {field.name!r}")
        kinds = expected.get(field.name)
        if kinds is None:
            known = dict.fromkeys([*schema.payload.names, *expected])
            raise SchemaError(f"topic {topic!r} takes no column {field.name!r}; it takes {', '.join(known)}")
        kind = field.dataType.simpleString()
        if kind not in kinds:
            raise SchemaError(
                f"column {field.name!r} for topic {topic!r} is {kind}, and must be {' or '.join(kinds)}: cast it"
            )
    required = ["value"] if schema.raw else [field.name for field in schema.payload if not field.nullable]
    missing = [name for name in required if name not in rows.names]
    if missing:
        raise SchemaError(f"topic {topic!r} needs the column {missing[0]!r}; there are {', '.join(rows.names)}")


def topic_column(rows: StructType) -> str:
    """The column that says which topic a row is for, when no option does. Raises SchemaError when there is none."""
    for name in ("_topic", "topic"):
        if name in rows.names:
            kind = rows[name].dataType.simpleString()
            if kind != "string":
                raise SchemaError(f"column {name!r} names the topic of a row: it must be string, not {kind}")
            if name == "topic":
                check_layout(rows, RAW, "by the column topic")
            return name
    raise SchemaError(
        "no topic is named: give the option topic, or give the rows a column topic (for typed topics: _topic); "
        f"there are {', '.join(rows.names)}"
    )
