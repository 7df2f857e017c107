"""A scan gives the rows of the data source, by another way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import headwater as hw
from headwater.core.errors import InvalidConfiguration, UnknownTopic
from headwater.spark import ranges
from headwater.spark.options import SourceOptions
from headwater.spark.ranges import OffsetRange, split


@pytest.fixture
def store(tmp_path: Path) -> Iterator[hw.Store]:
    with hw.open(tmp_path / "events") as store:
        store.create_topic("orders", partitions=3)
        with store.producer("orders") as out:
            for number in range(3000):
                headers = {"trace": b"%d" % number} if number % 7 == 0 else None
                out.send(b"value-%d" % number, key=b"%d" % (number % 10), headers=headers, timestamp=number * 1_000_000)
                if number % 500 == 499:
                    out.flush()
        schema = pa.schema({"price": pa.float64(), "symbol": pa.string(), "at": pa.timestamp("us")})
        store.create_topic("ticks", schema=schema)
        with store.producer("ticks") as out:
            out.send_batch([{"price": 1.5, "symbol": "A", "at": None}, {"price": None, "symbol": None, "at": None}])
        store.create_topic("empty")
        yield store


def rows(frame: DataFrame) -> list[Any]:
    return sorted(frame.collect(), key=repr)


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "orders"},
        {"topic": "orders", "includeHeaders": True},
        {"topic": "orders", "columns": "offset,key", "minPartitions": 7},
        {"topic": "orders", "startingOffsets": '{"orders": {"0": 10}}', "endingOffsets": '{"orders": {"1": 20}}'},
        {"topics": "orders,empty", "partitions": "0"},
        {"topic": "ticks"},
        {"topic": "ticks", "columns": "symbol,_offset"},
        {"topic": "empty"},
    ],
    ids=str,
)
def test_it_has_the_rows_and_the_columns_of_the_source(
    spark: SparkSession, store: hw.Store, options: dict[str, Any]
) -> None:
    source = spark.read.format("headwater").options(store=str(store), **options).load()
    scan = hw.spark.scan(spark, store=store, **options)
    assert scan.schema == source.schema
    assert rows(scan) == rows(source)


def test_it_has_what_was_there_however_often_it_is_evaluated(spark: SparkSession, store: hw.Store) -> None:
    scan = hw.spark.scan(spark, store=store, topic="orders", columns="partition,offset")
    with store.producer("orders") as out:
        out.send(b"later")
    assert scan.count() == scan.count() == 3000
    assert hw.spark.scan(spark, store=store, topic="orders").count() == 3001
    counts = {row["partition"]: row["count"] for row in scan.groupBy("partition").count().collect()}
    assert sum(counts.values()) == 3000
    assert counts.keys() <= {0, 1, 2}


def test_what_is_wrong_is_said_at_once(spark: SparkSession, store: hw.Store) -> None:
    with pytest.raises(UnknownTopic):
        hw.spark.scan(spark, store=store, topic="none")
    with pytest.raises(InvalidConfiguration, match="topik"):
        hw.spark.scan(spark, store=store, topik="orders")


def test_damage_fails_the_query_and_is_named(spark: SparkSession, store: hw.Store) -> None:
    scan = hw.spark.scan(spark, store=store, topic="orders")
    file = min((Path(str(store)) / "orders" / "1").glob("*.log"))
    content = bytearray(file.read_bytes())
    content[content.index(b"value-")] ^= 1
    file.write_bytes(content)
    with pytest.raises(Exception, match=r"RangeUnreadable: orders/1: .* does not match its checksum"):
        scan.count()


@pytest.mark.parametrize(
    ("options", "at_once", "tasks"),
    [
        ({}, None, 12),  # a million records each
        ({}, 100, 12),  # no smaller ones
        ({}, 6, 6),
        ({}, 1, 4),  # four millions at most
        ({"maxRecordsPerPartition": "500000"}, 1, 24),
        ({"minPartitions": "30"}, 1, 30),
    ],
)
def test_there_are_as_many_tasks_as_run_at_once_unless_they_become_huge(
    options: dict[str, str], at_once: int | None, tasks: int
) -> None:
    chosen = SourceOptions.parse({"store": "events", "topic": "orders", **options})
    halves = [OffsetRange("orders", "", number, 0, 6_000_000) for number in range(2)]
    parts = split(halves, chosen, at_once)
    assert len(parts) == tasks
    assert sum(part.size for part in parts) == 12_000_000


def test_a_scan_knows_how_many_run_at_once(
    spark: SparkSession, store: hw.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "MOST_RECORDS", 100)
    partitions = sum(1 for bounds in store.topic("orders").bounds().values() if bounds.end)
    assert spark.sparkContext.defaultParallelism <= partitions
    assert hw.spark.scan(spark, store=store, topic="orders").rdd.getNumPartitions() < 2 * partitions
