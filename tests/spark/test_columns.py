"""Batches for Spark: only what is wanted, large enough to be worth a trip, and not copied without need."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import headwater as hw
from headwater.core.schema import RAW, Schema
from headwater.spark.columns import Conversion, spark_schema, usual

KAFKA = spark_schema(RAW, usual(RAW, headers=False, several=False))


def stored(rows: int, size: int, first: int = 0) -> pa.RecordBatch:
    """A batch of a raw log as a scan gives it, with values of so many bytes."""
    columns = {
        "key": pa.array([None] * rows, pa.binary()),
        "value": pa.array([bytes(size)] * rows, pa.binary()),
        "offset": pa.array(range(first, first + rows), pa.int64()),
        "timestamp": pa.array([1_234_567] * rows, pa.timestamp("ns", "UTC")),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("wanted", "read"),
    [
        (["value"], ["value"]),
        (["topic", "offset", "partition", "timestampType"], ["offset"]),
        (["topic", "partition"], ["offset"]),  # something has to say how many rows there are
        (["headers", "key"], ["headers", "key"]),
    ],
)
def test_nothing_is_read_that_is_not_wanted(wanted: list[str], read: list[str]) -> None:
    assert Conversion(RAW, spark_schema(RAW, wanted), "orders", 0).columns == read


def test_a_large_batch_is_not_copied() -> None:
    batch = stored(2000, 1000)
    [made] = Conversion(RAW, KAFKA, "orders", 3).batches([batch])
    for column in ("value", "offset"):
        assert [buffer and buffer.address for buffer in made.column(column).buffers()] == [
            buffer and buffer.address for buffer in batch.column(column).buffers()
        ]
    assert made.column("timestamp").cast(pa.int64()).to_pylist() == [1234] * 2000
    assert set(zip(made.column("topic").to_pylist(), made.column("partition").to_pylist(), strict=True)) == {
        ("orders", 3)
    }


def test_small_batches_are_put_together_and_huge_ones_divided() -> None:
    small = [stored(10, 1000, first) for first in range(0, 5000, 10)]
    huge = stored(50_000, 1000, 5000)
    made = list(Conversion(RAW, KAFKA, "orders", 0).batches([*small, huge, stored(1, 1, 55_000)]))
    assert pa.Table.from_batches(made).column("offset").to_pylist() == list(range(55_001))
    assert all(batch.column("value").nbytes <= 17 * 1024 * 1024 for batch in made)
    assert all(batch.nbytes >= 1024 * 1024 for batch in made[:-1])
    assert len(made) < 15


def test_empty_batches_are_left_out() -> None:
    assert list(Conversion(RAW, KAFKA, "orders", 0).batches([stored(0, 1), stored(0, 1)])) == []


def test_nulls_where_none_were_declared_are_refused() -> None:
    wanted = StructType().add("key", "binary", nullable=False)
    with pytest.raises(hw.SchemaError, match="column 'key' was declared not null, and has nulls"):
        list(Conversion(RAW, wanted, "orders", 0).batches([stored(5, 1)]))


def test_a_map_of_users_stays_a_map() -> None:
    schema = Schema(pa.schema([("tags", pa.map_(pa.string(), pa.binary()))]))
    assert spark_schema(schema, ["tags", "_headers"]).simpleString() == (
        "struct<tags:map<string,binary>,_headers:array<struct<key:string,value:binary>>>"
    )
