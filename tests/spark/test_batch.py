"""Batch reads through Spark give what is in the log: rows, ranges, columns, and clear errors."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

import headwater as hw

KAFKA_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def load(spark: SparkSession, store: hw.Store, **options: object) -> DataFrame:
    reader = spark.read.format("headwater").option("store", str(store))
    for name, value in options.items():
        reader = reader.option(name, value if isinstance(value, str | bool | int) else json.dumps(value))
    return reader.load()


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def fill(store: hw.Store, name: str, count: int, partitions: int = 1, **options: Any) -> hw.Topic:
    """A raw topic; record number n has key `k{n}` and value `v{n}`, one frame for ten of them."""
    topic = store.create_topic(name, partitions=partitions, **options)
    with store.producer(name, batch_records=10, linger=60.0) as out:
        for number in range(count):
            out.send(f"v{number}".encode(), key=f"k{number}".encode())
    return topic


def test_a_raw_topic_has_the_columns_of_the_kafka_source(spark: SparkSession, store: hw.Store) -> None:
    store.create_topic("orders")
    moment = datetime(2026, 1, 31, 12, 30, 15, 123456, tzinfo=UTC)
    with store.producer("orders") as out:
        out.send(b"tea", key=b"k", timestamp=int(moment.timestamp()) * 10**9 + 123456789, headers={"h": b"1"})
        out.send(b"", timestamp=0)
        out.send(None, key=b"k", timestamp=-1_000_000_000)
    frame = load(spark, store, topic="orders")
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    rows = frame.selectExpr("*", "unix_micros(timestamp) as us").orderBy("offset").collect()
    micros = int(moment.timestamp()) * 10**6 + 123456
    assert [(row.key, row.value, row.offset, row.us) for row in rows] == [
        (b"k", b"tea", 0, micros),
        (None, b"", 1, 0),
        (b"k", None, 2, -1_000_000),
    ]
    assert {(row.topic, row.partition, row.timestampType) for row in rows} == {("orders", 0, 0)}


def test_headers_come_when_they_are_asked_for(spark: SparkSession, store: hw.Store) -> None:
    store.create_topic("orders")
    with store.producer("orders") as out:
        out.send(b"a", headers={"one": b"1", "two": b"2"})
        out.send(b"b")
    frame = load(spark, store, topic="orders", includeHeaders=True)
    assert frame.columns == [*KAFKA_COLUMNS, "headers"]
    assert frame.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    rows = frame.orderBy("offset").collect()
    assert [(header.key, header.value) for header in rows[0].headers] == [("one", b"1"), ("two", b"2")]
    assert not rows[1].headers


TYPES: list[tuple[pa.DataType, Any, str, Any]] = [
    (pa.bool_(), True, "boolean", True),
    (pa.int8(), -5, "tinyint", -5),
    (pa.uint8(), 255, "smallint", 255),
    (pa.uint16(), 65535, "int", 65535),
    (pa.uint32(), 2**32 - 1, "bigint", 2**32 - 1),
    (pa.uint64(), 2**64 - 1, "decimal(20,0)", Decimal(2**64 - 1)),
    (pa.float16(), 1.5, "float", 1.5),
    (pa.float64(), 0.1, "double", 0.1),
    (pa.string(), "é", "string", "é"),
    (pa.large_string(), "long", "string", "long"),
    (pa.large_binary(), b"long", "binary", b"long"),
    (pa.binary(2), b"ab", "binary", b"ab"),
    (pa.date32(), datetime(2026, 1, 31, tzinfo=UTC).date(), "date", datetime(2026, 1, 31, tzinfo=UTC).date()),
    (pa.date64(), datetime(2026, 1, 31, tzinfo=UTC).date(), "date", datetime(2026, 1, 31, tzinfo=UTC).date()),
    (pa.decimal128(10, 2), Decimal("12.34"), "decimal(10,2)", Decimal("12.34")),
    (pa.timestamp("ms"), datetime(2026, 1, 31), "timestamp_ntz", datetime(2026, 1, 31)),  # noqa: DTZ001 - has no zone
    (pa.list_(pa.uint8()), [1, None], "array<smallint>", [1, None]),
    (pa.list_(pa.int32(), 2), [1, 2], "array<int>", [1, 2]),
    (pa.struct([("a", pa.uint16())]), {"a": 7}, "struct<a:int>", (7,)),
    (pa.map_(pa.string(), pa.uint8()), [("a", 1)], "map<string,smallint>", {"a": 1}),
]


def test_a_typed_topic_has_its_own_columns_and_those_of_the_log(spark: SparkSession, store: hw.Store) -> None:
    schema = pa.schema([(f"c{number}", kind) for number, (kind, *_) in enumerate(TYPES)])
    store.create_topic("typed", schema=schema)
    with store.producer("typed") as out:
        out.send({f"c{number}": value for number, (_, value, *_) in enumerate(TYPES)}, key=b"k")
        out.send({}, key=b"nulls")
        out.send(None, key=b"gone")
    frame = load(spark, store, topic="typed")
    assert frame.columns == [*schema.names, "_offset", "_partition", "_timestamp", "_key"]
    assert [kind for _, kind in frame.dtypes[: len(TYPES)]] == [kind for _, _, kind, _ in TYPES]
    full, empty, gone = frame.orderBy("_offset").collect()
    assert list(full)[: len(TYPES)] == [expected for *_, expected in TYPES]
    assert list(empty)[: len(TYPES)] == list(gone)[: len(TYPES)] == [None] * len(TYPES)
    assert [row._key for row in (full, empty, gone)] == [b"k", b"nulls", b"gone"]


def test_a_type_that_spark_does_not_have_is_named(spark: SparkSession, store: hw.Store) -> None:
    store.create_topic("wide", schema=pa.schema([("n", pa.int64()), ("huge", pa.decimal256(60, 2))]))
    with pytest.raises(AnalysisException, match=r"column 'huge' is decimal256.*leave it out"):
        load(spark, store, topic="wide").schema  # noqa: B018 - Spark may look only now
    assert load(spark, store, topic="wide", columns="n,_offset").collect() == []


def test_columns_are_chosen_by_option_or_by_schema(spark: SparkSession, store: hw.Store) -> None:
    fill(store, "orders", 30, partitions=2)
    by_option = load(spark, store, topic="orders", columns="offset,value")
    by_schema = (
        spark.read.format("headwater")
        .option("store", str(store))
        .option("topic", "orders")
        .schema("offset bigint, value binary")
        .load()
    )
    assert by_option.columns == by_schema.columns == ["offset", "value"]
    assert sorted(by_option.collect()) == sorted(by_schema.collect())
    assert load(spark, store, topic="orders", columns="topic").distinct().collect() == [("orders",)]
    assert load(spark, store, topic="orders", columns="partition").count() == 30


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("ofset bigint", "no column 'ofset'; there are value, key"),
        ("offset int", "column 'offset' of topic 'orders' is bigint, not int"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(spark: SparkSession, store: hw.Store, schema: str, message: str) -> None:
    fill(store, "orders", 1)
    reader = spark.read.format("headwater").option("store", str(store)).option("topic", "orders")
    with pytest.raises((AnalysisException, PythonException), match=message):
        reader.schema(schema).load().collect()


def test_offsets_say_where_to_begin_and_to_end(spark: SparkSession, store: hw.Store) -> None:
    topic = fill(store, "orders", 60, partitions=2)
    ends = {number: bounds.end for number, bounds in topic.bounds().items()}
    everything = [(number, offset) for number, end in ends.items() for offset in range(end)]

    def read(**options: object) -> list[tuple[int, int]]:
        return offsets(load(spark, store, topic="orders", **options))

    assert read() == read(startingOffsets="earliest", endingOffsets="latest") == everything
    assert read(startingOffsets="latest") == []
    given = {"orders": {"0": 13, "1": -1}}
    assert read(startingOffsets=given) == [(0, offset) for offset in range(13, ends[0])]
    assert read(startingOffsets={"orders": {"0": 13}}, endingOffsets={"orders": {"0": 17, "1": 4}}) == [
        *((0, offset) for offset in range(13, 17)),
        *((1, offset) for offset in range(4)),
    ]
    assert read(partitions="1") == [(1, offset) for offset in range(ends[1])]
    assert offsets(load(spark, store, assign={"orders": [1]})) == read(partitions="1")


def test_times_say_where_to_begin_and_to_end(spark: SparkSession, store: hw.Store) -> None:
    store.create_topic("orders")
    with store.producer("orders", batch_records=7) as out:
        for number in range(50):
            out.send(b"v", timestamp=number * 1_000_000_000)
    assert offsets(load(spark, store, topic="orders", startingTimestamp=20_000, endingTimestamp=23_500)) == [
        (0, offset) for offset in range(20, 24)
    ]
    assert offsets(load(spark, store, topic="orders", startingTimestamp="1970-01-01T00:00:45Z")) == [
        (0, offset) for offset in range(45, 50)
    ]
    by_partition = {"orders": {"0": 48_000}}
    assert offsets(load(spark, store, topic="orders", startingOffsetsByTimestamp=by_partition)) == [(0, 48), (0, 49)]


def test_several_topics_are_read_together(spark: SparkSession, store: hw.Store) -> None:
    for name in ("orders.eu", "orders.us", "returns"):
        fill(store, name, 5)

    def names(**options: object) -> dict[str, int]:
        return {row.topic: row["count"] for row in load(spark, store, **options).groupBy("topic").count().collect()}

    assert names(topics="orders.eu, returns") == {"orders.eu": 5, "returns": 5}
    assert names(topicPattern="orders.*") == names(subscribePattern=r"orders\.\w\w") == {"orders.eu": 5, "orders.us": 5}
    assert names(subscribe="returns") == {"returns": 5}
    assert names(topicPattern="nothing.*") == {}


def test_topics_with_different_columns_are_not_mixed_by_accident(spark: SparkSession, store: hw.Store) -> None:
    fill(store, "raw", 1)
    store.create_topic("typed-a", schema=pa.schema([("n", pa.int64()), ("a", pa.string())]))
    store.create_topic("typed-b", schema=pa.schema([("b", pa.string()), ("n", pa.int64())]))
    with pytest.raises(AnalysisException, match="'raw' and 'typed-a' have different columns"):
        load(spark, store, topicPattern="*").schema  # noqa: B018
    with store.producer("typed-a") as a, store.producer("typed-b") as b:
        a.send({"n": 1})
        b.send({"n": 2})
    both = load(spark, store, topicPattern="typed-*", columns="n,_topic")
    assert sorted(both.collect()) == [(1, "typed-a"), (2, "typed-b")]


def test_records_from_before_a_column_was_added_have_nulls_there(spark: SparkSession, store: hw.Store) -> None:
    topic = store.create_topic("trades", schema=pa.schema([("symbol", pa.string())]))
    with store.producer("trades") as out:
        out.send({"symbol": "old"})
    topic.evolve(pa.schema([("symbol", pa.string()), ("price", pa.float64())]))
    with store.producer("trades") as out:
        out.send({"symbol": "new", "price": 1.5})
    frame = load(spark, store, topic="trades", columns="symbol,price")
    assert sorted(frame.collect()) == [("new", 1.5), ("old", None)]


def test_large_partitions_are_split_over_tasks(spark: SparkSession, store: hw.Store) -> None:
    fill(store, "orders", 8)
    whole = load(spark, store, topic="orders")
    assert whole.rdd.getNumPartitions() == 1
    for options, tasks in ({"maxRecordsPerPartition": 3}, 3), ({"minPartitions": 5}, 5), ({"minPartitions": 1000}, 8):
        parts = load(spark, store, topic="orders", **options)
        assert parts.rdd.getNumPartitions() == tasks
        assert parts.collect() == whole.collect()


def test_an_empty_topic_has_columns_and_no_rows(spark: SparkSession, store: hw.Store) -> None:
    store.create_topic("orders", partitions=3)
    frame = load(spark, store, topic="orders")
    assert frame.columns == KAFKA_COLUMNS
    assert frame.collect() == []


def test_a_compacted_topic_gives_what_compaction_has_left(spark: SparkSession, store: hw.Store) -> None:
    topic = store.create_topic("prices", compact=True)
    with store.producer("prices", batch_records=5) as out:
        for number in range(40):
            out.send(str(number).encode(), key=f"k{number % 3}".encode())
    topic.partition(0).roll()
    topic.partition(0).compact()
    left = [(record.offset, record.value) for record in topic.partition(0).records()]
    assert len(left) == 3
    for tasks in (1, 5):
        frame = load(spark, store, topic="prices", columns="offset,value", minPartitions=tasks)
        assert sorted(tuple(row) for row in frame.collect()) == left


def test_deleted_records_are_named_or_passed_over(spark: SparkSession, store: hw.Store) -> None:
    topic = fill(store, "orders", 50)
    topic.partition(0).delete_before(20)
    assert offsets(load(spark, store, topic="orders")) == [(0, offset) for offset in range(20, 50)]
    given = {"orders": {"0": 5}}
    with pytest.raises((AnalysisException, PythonException), match=r"orders/0: offsets 5 to 20 \(exclusive\) are gone"):
        load(spark, store, topic="orders", startingOffsets=given).collect()
    lenient = load(spark, store, topic="orders", startingOffsets=given, failOnDataLoss=False)
    assert offsets(lenient) == [(0, offset) for offset in range(20, 50)]


def test_records_deleted_after_planning_are_named_or_passed_over(spark: SparkSession, store: hw.Store) -> None:
    topic = fill(store, "orders", 50)
    strict = load(spark, store, topic="orders")
    lenient = load(spark, store, topic="orders", failOnDataLoss=False)
    assert strict.rdd.getNumPartitions() == lenient.rdd.getNumPartitions() == 1  # planned, from 0
    topic.partition(0).delete_before(20)
    with pytest.raises(PythonException, match=r"orders/0: offsets 0 to 20 \(exclusive\) are gone"):
        strict.collect()
    assert offsets(lenient) == [(0, offset) for offset in range(20, 50)]


def test_records_truncated_after_planning_are_named_or_passed_over(spark: SparkSession, store: hw.Store) -> None:
    topic = fill(store, "orders", 50)
    strict = load(spark, store, topic="orders", minPartitions=2)
    lenient = load(spark, store, topic="orders", minPartitions=2, failOnDataLoss=False)
    assert strict.rdd.getNumPartitions() == lenient.rdd.getNumPartitions() == 2  # planned: to 25, and to 50
    topic.partition(0).truncate(30)
    with pytest.raises(PythonException, match=r"orders/0: offsets 30 to 50 \(exclusive\) are gone.*ends at 30"):
        strict.collect()
    assert offsets(lenient) == [(0, offset) for offset in range(30)]
    topic.partition(0).truncate(10)  # which leaves nothing for the second task
    with pytest.raises(PythonException, match=r"offsets (10|25) to (25|50) \(exclusive\) are gone"):
        strict.collect()
    assert offsets(lenient) == [(0, offset) for offset in range(10)]


def test_a_topic_made_again_is_not_taken_for_the_planned_one(spark: SparkSession, store: hw.Store) -> None:
    fill(store, "orders", 10)
    planned = load(spark, store, topic="orders")
    assert planned.rdd.getNumPartitions() == 1
    store.delete_topic("orders")
    fill(store, "orders", 10)
    with pytest.raises(PythonException, match="the topic was deleted and made again"):
        planned.collect()


def test_a_view_is_made_in_sql(spark: SparkSession, store: hw.Store) -> None:
    fill(store, "orders", 12)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING headwater OPTIONS (store '{store}', topic 'orders')")
    rows = spark.sql("SELECT cast(key AS string) AS k, offset FROM orders WHERE offset >= 10 ORDER BY offset").collect()
    assert [tuple(row) for row in rows] == [("k10", 10), ("k11", 11)]
    assert spark.sql("SELECT count(*) FROM orders").collect() == [(12,)]  # filters of one query do not stay for others


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "none"}, "there is no topic 'none'"),
        (
            {"topic": "orders", "startingOffset": "earliest"},
            "unknown option startingoffset: did you mean startingOffsets",
        ),
        (
            {"topic": "orders", "kafka.bootstrap.servers": "host:9092"},
            "is for Kafka: name the store with the option store",
        ),
        ({"topic": "orders", "partitions": "0,9"}, r"topic 'orders' has partitions 0 to 0, not \[9\]"),
        ({"topic": "orders", "endingOffsets": '{"orders": {"0": 99}}'}, "offset 99 of .* is not there yet"),
        ({}, "give one of the options topic, topics and topicPattern: none is given"),
    ],
)
def test_wrong_options_say_what_is_right(
    spark: SparkSession, store: hw.Store, options: dict[str, str], message: str
) -> None:
    fill(store, "orders", 1)
    with pytest.raises((AnalysisException, PythonException), match=message):
        load(spark, store, **options).collect()


def test_a_store_that_is_not_there_is_not_made(spark: SparkSession, store: hw.Store) -> None:
    nowhere = str(store) + "-nowhere"
    with pytest.raises(AnalysisException, match=r"directory .*-nowhere does not exist on "):
        spark.read.format("headwater").option("topic", "orders").load(nowhere).collect()
    with pytest.raises(AnalysisException, match="cannot see a store in memory"):
        spark.read.format("headwater").option("store", "memory:").option("topic", "orders").load().collect()


def test_a_path_is_a_store(spark: SparkSession, store: hw.Store) -> None:
    fill(store, "orders", 3)
    assert spark.read.format("headwater").option("topic", "orders").load(str(store)).count() == 3
