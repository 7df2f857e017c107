"""DataFrames written to topics: all of the rows or none, where a producer would have put them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

import headwater as hw
from headwater.spark.datasource import HeadwaterSource
from headwater.spark.sink import batch_writer


def save(frame: DataFrame, store: hw.Store, mode: str = "append", **options: Any) -> None:
    frame.write.format("headwater").mode(mode).option("store", str(store)).options(**options).save()


def nothing_is_left(store: hw.Store) -> bool:
    """Neither stages nor decisions."""
    return not [path for path in Path(str(store), "__transactions").glob("*") if path.is_file()]


def test_rows_of_a_raw_topic_have_the_columns_of_the_kafka_sink(spark: SparkSession, store: hw.Store) -> None:
    topic = store.create_topic("orders", partitions=3)
    moment = datetime(2026, 1, 31, 12, 30, 15, 123456, tzinfo=UTC)
    rows = [
        ("k", "tea", [("h", b"1"), ("i", b"")], 2, moment),
        (None, "côte", None, 1, moment),
        ("gone", None, [], 0, moment),
    ]
    columns = "key string, value string, headers array<struct<key: string, value: binary>>, partition int"
    save(spark.createDataFrame(rows, f"{columns}, timestamp timestamp"), store, topic="orders")
    nanoseconds = int(moment.timestamp()) * 10**9 + 123456000
    written = [[tuple(record)[1:] for record in partition.records()] for partition in topic.partitions()]
    assert written == [
        [(nanoseconds, b"gone", None, {})],
        [(nanoseconds, None, "côte".encode(), {})],
        [(nanoseconds, b"k", b"tea", {"h": b"1", "i": b""})],
    ]
    assert nothing_is_left(store)


def test_rows_of_a_typed_topic_have_its_columns(spark: SparkSession, store: hw.Store) -> None:
    fields = [pa.field("id", pa.uint32(), nullable=False), ("name", pa.string()), ("sizes", pa.list_(pa.int16()))]
    topic = store.create_topic("typed", 2, pa.schema(fields))
    rows = [(7, [1, 2], "k", 1), (4_000_000_000, None, None, 0)]
    frame = spark.createDataFrame(rows, "id bigint, sizes array<smallint>, _key string, _partition int")
    save(frame, store, topic="typed")
    written = [[(record.key, record.value) for record in partition.records()] for partition in topic.partitions()]
    assert written == [
        [(None, {"id": 4_000_000_000, "name": None, "sizes": None})],
        [(b"k", {"id": 7, "name": None, "sizes": [1, 2]})],
    ]
    for bad, message in ((-1, "typed.*column 'id'"), (None, r"typed/\d: column 'id' must not be null")):
        frame = spark.createDataFrame([(bad,)], "id bigint")
        with pytest.raises(PythonException, match=message):
            save(frame, store, topic="typed")
    assert topic.statistics().records == 2


def test_keys_go_where_a_producer_sends_them(spark: SparkSession, store: hw.Store) -> None:
    random = Random(7)
    keys = [random.randbytes(random.randint(0, 40)) for _ in range(2_000)]
    for name in ("spark", "python"):
        store.create_topic(name, partitions=7)
    with store.producer("python") as out:
        for key in keys:
            out.send(key, key=key)
    frame = spark.createDataFrame([(key, key) for key in keys], "key binary, value binary").repartition(3)
    save(frame, store, topic="spark")
    for number in range(7):
        written, expected = (
            Counter(record.key for record in store.topic(name).partition(number).records())
            for name in ("spark", "python")
        )
        assert written == expected != Counter()


def test_rows_say_which_topic_they_are_for_unless_the_option_does(spark: SparkSession, store: hw.Store) -> None:
    for name in ("even", "odd", "all"):
        store.create_topic(name, partitions=2)
    frame = spark.range(100).selectExpr("cast(id as string) value", "if(id % 2 = 0, 'even', 'odd') topic")
    save(frame, store)
    save(frame, store, topic="all")
    counts = {name: store.topic(name).statistics().records for name in store.topics()}
    assert counts == {"even": 50, "odd": 50, "all": 100}
    values = {int(record.value) % 2 for partition in store.topic("odd").partitions() for record in partition.records()}
    assert values == {1}


def test_typed_rows_can_go_to_several_topics(spark: SparkSession, store: hw.Store) -> None:
    store.create_topic("a", schema=pa.schema([("id", pa.int64())]))
    store.create_topic("b", schema=pa.schema([("id", pa.int64()), ("topic", pa.string())]))
    save(spark.range(10).selectExpr("id", "if(id < 3, 'a', 'b') _topic"), store)
    assert (store.topic("a").statistics().records, store.topic("b").statistics().records) == (3, 7)


@pytest.mark.parametrize("schema", [None, pa.schema([("id", pa.uint64()), ("at", pa.time32("s"))])])
def test_what_was_read_can_be_written(spark: SparkSession, store: hw.Store, schema: pa.Schema | None) -> None:
    for name in ("first", "second"):
        store.create_topic(name, 2, schema)
    with store.producer("first", linger=60.0) as out:
        for number in range(20):
            value = b"%d" % number if schema is None else {"id": 2**64 - 1 - number, "at": number}
            out.send(value, key=b"%d" % number, timestamp=number * 1000, headers={"h": b"x"} if number % 2 else None)
    reader = spark.read.format("headwater").option("store", str(store)).option("topic", "first")
    save(reader.option("includeHeaders", True).load(), store, topic="second")
    for first, second in zip(store.topic("first").partitions(), store.topic("second").partitions(), strict=True):
        assert list(first.records()) == list(second.records())


def test_a_task_that_fails_leaves_nothing_of_any(spark: SparkSession, store: hw.Store) -> None:
    topic = store.create_topic("orders")

    frame = spark.range(1000, numPartitions=4).selectExpr("if(id < 999, string(id), raise_error('the last row')) value")
    with pytest.raises(Exception, match="the last row"):
        save(frame, store, topic="orders")
    assert topic.statistics().records == 0
    assert not list(Path(str(store), "__transactions").glob("*.committed"))


def test_a_write_that_spark_gives_up_leaves_nothing_staged(store: hw.Store) -> None:
    store.create_topic("orders")
    rows = StructType([StructField("value", StringType())])
    writer = batch_writer({"store": str(store), "topic": "orders"}, rows, overwrite=False)
    message = writer.write(iter([pa.record_batch({"value": ["staged"]})]))
    assert not nothing_is_left(store)
    writer.abort([message, None])
    assert nothing_is_left(store)


def test_no_rows_are_no_error(spark: SparkSession, store: hw.Store) -> None:
    topic = store.create_topic("orders")
    save(spark.range(0).selectExpr("cast(id as string) value"), store, topic="orders")
    assert topic.statistics().records == 0


def test_a_batch_with_a_version_counts_once(spark: SparkSession, store: hw.Store) -> None:
    topic = store.create_topic("orders", partitions=2)
    for version, rows in ((1, 10), (1, 20), (0, 30), (2, 40)):
        frame = spark.range(rows).selectExpr("cast(id as string) value")
        save(frame, store, topic="orders", txnId="nightly", txnVersion=version)
    assert topic.statistics().records == 50
    assert nothing_is_left(store)


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ("id value", "raw", "column 'value' for topic 'raw' is bigint, and must be binary or string: cast it"),
        ("'x' key", "raw", "topic 'raw' needs the column 'value'; there are key"),
        ("'x' value, 1 color", "raw", "topic 'raw' takes no column 'color'; it takes value, key"),
        ("'x' value, '1' partition", "raw", "column 'partition' for topic 'raw' is string, and must be int"),
        ("'x' value, timestamp_ntz'2026-01-01' timestamp", "raw", "is timestamp_ntz, and must be timestamp"),
        ("'x' value, map('a','b') headers", "raw", "must be array<struct<key:string,value:binary>>"),
        ("'x' value, 'y' value", "raw", "the rows have two columns 'value'"),
        ("'x' name", "typed", "topic 'typed' needs the column 'id'"),
        ("cast(id as int) id", "typed", "column 'id' for topic 'typed' is int, and must be bigint: cast it"),
        ("id, 'x' key", "typed", "topic 'typed' takes no column 'key'; it takes id, name"),
        ("'x' value", "tpyed", "there is no topic 'tpyed'"),
        ("'x' value", None, "no topic is named"),
        ("'x' value, 1 topic", None, "must be string, not int"),
    ],
)
def test_columns_that_do_not_fit_are_named_before_anything_is_written(
    spark: SparkSession, store: hw.Store, columns: str, topic: str | None, message: str
) -> None:
    store.create_topic("raw")
    store.create_topic("typed", schema=pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())]))
    frame = spark.range(3).selectExpr(*columns.split(", "))
    source = HeadwaterSource({"store": str(store)} | ({} if topic is None else {"topic": topic}))
    with pytest.raises(hw.HeadwaterError) as refused:
        source.writer(frame.schema, overwrite=False)  # as Spark does before it starts any task
    assert message in str(refused.value)
    assert not Path(str(store), "__transactions").exists()


def test_spark_passes_on_which_columns_do_not_fit(spark: SparkSession, store: hw.Store) -> None:
    store.create_topic("raw")
    with pytest.raises(AnalysisException, match="column 'value' for topic 'raw' is bigint, and must be binary"):
        save(spark.range(3).selectExpr("id value"), store, topic="raw")
    assert not Path(str(store), "__transactions").exists()


def test_topics_are_only_appended_to(spark: SparkSession, store: hw.Store) -> None:
    topic = store.create_topic("orders")
    frame = spark.range(3).selectExpr("cast(id as string) value")
    with pytest.raises(AnalysisException, match="a topic can only be appended to"):
        save(frame, store, mode="overwrite", topic="orders")
    for mode in ("ignore", "errorifexists"):
        with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            save(frame, store, mode=mode, topic="orders")
    assert topic.statistics().records == 0
