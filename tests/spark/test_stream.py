"""Streams through Spark: every record once, in batches as large as wanted, from a checkpoint on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headwater as hw
from tests.spark.conftest import BOTH_STORES

pytestmark = BOTH_STORES
Checkpoint = Callable[[], str]


def stream(spark: SparkSession, store: hw.Store, **options: Any) -> DataFrame:
    reader = spark.readStream.format("headwater").option("store", str(store))
    return reader.options(**{"startingOffsets": "earliest"} | options).load()


def to_parquet(frame: DataFrame, path: str, *, available_now: bool = True) -> StreamingQuery:
    """Write a stream to files, up to what is there now, or on and on. The checkpoint is beside them."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", path + "-state")
    writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
    return writer.start(path)


def finish(query: StreamingQuery) -> list[int]:
    """Wait for the end; how many records each batch had."""
    assert query.awaitTermination(900), "the query hangs"
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def values(spark: SparkSession, path: str) -> list[str]:
    return sorted(row.value.decode() for row in spark.read.parquet(path).select("value").collect())


def send(store: hw.Store, topic: str, first: int, last: int) -> list[str]:
    """Send numbers as records, some with a key."""
    with store.producer(topic, batch_records=7) as out:
        for number in range(first, last):
            out.send(f"{number:04d}".encode(), key=str(number).encode() if number % 3 else None)
    return [f"{number:04d}" for number in range(first, last)]


def test_available_now_reads_everything_once_in_limited_batches_and_goes_on_from_its_checkpoint(
    spark: SparkSession, store: hw.Store, checkpoint: Checkpoint
) -> None:
    topic = store.create_topic("orders", partitions=2)
    sent = send(store, "orders", 0, 50)
    path = checkpoint()
    frame = stream(spark, store, topic="orders", maxOffsetsPerTrigger=20, group="spark")
    query = to_parquet(frame, path)
    assert finish(query) == [20, 20, 10]
    assert values(spark, path) == sent
    [source] = query.recentProgress[-1]["sources"]
    ends = {str(number): bounds.end for number, bounds in topic.bounds().items()}
    assert {
        number: end for number, end in json.loads(source["latestOffset"])["orders"].items() if number != "id"
    } == ends
    positions = store.group("spark").committed()
    assert {str(number): positions[topic.info.uuid, number].offset for number in (0, 1)} == ends  # no lag is left

    sent += send(store, "orders", 50, 65)
    assert finish(to_parquet(frame, path)) == [15]
    assert finish(to_parquet(frame, path)) == []
    assert values(spark, path) == sent


def test_a_running_query_sees_new_records_partitions_and_topics(
    spark: SparkSession, store: hw.Store, checkpoint: Checkpoint
) -> None:
    store.create_topic("orders.eu")
    path = checkpoint()
    query = to_parquet(stream(spark, store, topicPattern="orders.*"), path, available_now=False)
    try:
        sent = send(store, "orders.eu", 0, 5)
        query.processAllAvailable()
        store.alter_topic("orders.eu", partitions=3)
        store.create_topic("orders.us")
        sent += send(store, "orders.eu", 5, 25) + send(store, "orders.us", 25, 30)
        query.processAllAvailable()
        assert values(spark, path) == sent
    finally:
        query.stop()


def test_a_batch_that_fails_is_done_again_and_the_group_does_not_pass_it(
    spark: SparkSession, store: hw.Store, checkpoint: Checkpoint
) -> None:
    topic = store.create_topic("orders")
    sent = send(store, "orders", 0, 30)
    path = checkpoint()
    frame = stream(spark, store, topic="orders", maxOffsetsPerTrigger=10, group="spark")
    failing = frame.selectExpr("if(offset = 15, raise_error('not today'), value) as value")
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="not today"):
            finish(to_parquet(failing, path))
        assert store.group("spark").committed()[topic.info.uuid, 0].offset == 10
    finish(to_parquet(frame.select("value"), path))
    assert values(spark, path) == sent
    assert store.group("spark").committed()[topic.info.uuid, 0].offset == 30


def test_lost_records_end_a_query_or_are_passed_over(
    spark: SparkSession, store: hw.Store, checkpoint: Checkpoint
) -> None:
    topic = store.create_topic("orders")
    sent = send(store, "orders", 0, 10)
    path = checkpoint()
    finish(to_parquet(stream(spark, store, topic="orders"), path))
    send(store, "orders", 10, 20)
    topic.partition(0).delete_before(15)
    with pytest.raises(StreamingQueryException, match=r"orders/0: offsets 10 to 15 \(exclusive\) are gone before they"):
        finish(to_parquet(stream(spark, store, topic="orders"), path))
    finish(to_parquet(stream(spark, store, topic="orders", failOnDataLoss=False), path))
    assert values(spark, path) == sent + [f"{number:04d}" for number in range(15, 20)]


def test_typed_topics_stream_their_columns(spark: SparkSession, store: hw.Store, checkpoint: Checkpoint) -> None:
    store.create_topic("trades", partitions=2, schema=pa.schema([("symbol", pa.string()), ("price", pa.float64())]))
    with store.producer("trades") as out:
        out.send_batch(pa.table({"symbol": ["HW", "WH", "HW"], "price": [1.0, None, 3.5]}))
    path = checkpoint()
    finish(to_parquet(stream(spark, store, topic="trades", columns="price,symbol"), path))
    rows = spark.read.parquet(path).orderBy("symbol", "price").collect()
    assert [tuple(row) for row in rows] == [(1.0, "HW"), (3.5, "HW"), (None, "WH")]


def test_a_job_for_the_kafka_source_runs_with_another_format_and_address(
    spark: SparkSession, store: hw.Store, checkpoint: Checkpoint
) -> None:
    store.create_topic("lines", partitions=2)
    with store.producer("lines") as out:
        for line in (b"apache spark", b"apache kafka", b"spark streaming"):
            out.send(line, key=line[:1])

    def word_count(source: Any) -> DataFrame:
        """As in Spark's guide to streaming; nothing in it knows where the lines come from."""
        lines = source.option("subscribe", "lines").option("startingOffsets", "earliest").load()
        lines = lines.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
        words = lines.selectExpr("key", "explode(split(value, ' ')) AS word")
        counts: DataFrame = words.groupBy("key", "word").count()
        return counts

    counts = word_count(spark.readStream.format("headwater").option("store", str(store)))
    query = (
        counts.writeStream.outputMode("complete")
        .format("memory")
        .queryName("word_count")
        .option("checkpointLocation", checkpoint())
        .trigger(availableNow=True)
        .start()
    )
    finish(query)
    expected = [("a", "apache", 2), ("a", "kafka", 1), ("a", "spark", 1), ("s", "spark", 1), ("s", "streaming", 1)]
    assert sorted(tuple(row) for row in spark.table("word_count").collect()) == expected
    batch = word_count(spark.read.format("headwater").option("store", str(store)))
    assert sorted(tuple(row) for row in batch.collect()) == expected
