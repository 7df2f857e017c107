"""Streams written to topics: every row once, whatever is done again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headwater as hw
from headwater.streams.routing import partition_of
from tests.spark.conftest import BOTH_STORES

pytestmark = BOTH_STORES
Checkpoint = Callable[[], str]
BATCH = 40


def read(spark: SparkSession, store: hw.Store, topic: str = "orders", **options: Any) -> DataFrame:
    given: dict[str, Any] = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": BATCH, "topic": topic, **options}
    return spark.readStream.format("headwater").option("store", str(store)).options(**given).load()


def run(frame: DataFrame, store: hw.Store, checkpoint: str, mode: str = "append", **options: Any) -> StreamingQuery:
    """Write what is there, and wait for the end."""
    writer = frame.writeStream.format("headwater").option("store", str(store)).outputMode(mode)
    query = writer.option("checkpointLocation", checkpoint).options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(900), "the query hangs"
    return query


def forget_last_commit(checkpoint: str) -> int:
    """As if Spark had died after the sink's commit and before it noted that: the batch is done again."""
    commits = Path(checkpoint, "commits")
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)
    return last


def send(store: hw.Store, first: int, last: int, topic: str = "orders") -> None:
    with store.producer(topic) as out:
        for number in range(first, last):
            out.send(b"%d" % number, key=b"%d" % number)


def numbers(store: hw.Store, topic: str) -> list[int]:
    return sorted(int(record.value) for partition in store.topic(topic).partitions() for record in partition.records())


@pytest.fixture
def topics(store: hw.Store) -> hw.Store:
    store.create_topic("orders", partitions=2)
    store.create_topic("copies", partitions=3)
    return store


def test_a_stream_from_topic_to_topics_does_what_a_plain_program_does(
    spark: SparkSession, topics: hw.Store, checkpoint: Checkpoint
) -> None:
    topics.create_topic("letters", partitions=2)
    send(topics, 0, 150)
    frame = read(spark, topics).selectExpr(
        "concat(value, cast('!' as binary)) value", "key", "if(offset % 5 = 0, 'letters', 'copies') topic"
    )
    path = checkpoint()
    query = run(frame, topics, path)
    assert len([batch for batch in query.recentProgress if batch["numInputRows"]]) == 4
    send(topics, 150, 200)
    run(frame, topics, path)

    expected: Counter[tuple[str, int, bytes]] = Counter()
    for partition in topics.topic("orders").partitions():
        for record in partition.records():
            topic = "letters" if record.offset % 5 == 0 else "copies"
            assert record.key is not None
            number = partition_of(record.key, topics.topic(topic).info.partitions)
            expected[topic, number, record.value + b"!"] += 1
    written = Counter(
        (name, number, record.value)
        for name in ("copies", "letters")
        for number, partition in enumerate(topics.topic(name).partitions())
        for record in partition.records()
    )
    assert written == expected
    assert not list(Path(str(topics), "__transactions").glob("*.stage"))


def test_a_batch_that_is_done_again_counts_once_and_as_it_was(
    spark: SparkSession, topics: hw.Store, checkpoint: Checkpoint
) -> None:
    send(topics, 0, 100)
    frame = read(spark, topics).selectExpr("value", "'copies' topic")  # without keys: the partition is anyone's choice
    path = checkpoint()
    run(frame, topics, path)
    before = [list(partition.records()) for partition in topics.topic("copies").partitions()]
    for _ in range(2):
        forget_last_commit(path)
        topics.alter_topic("copies", partitions=topics.topic("copies").info.partitions + 2)
        run(frame, topics, path)
        assert [list(partition.records()) for partition in topics.topic("copies").partitions()][:3] == before
        assert numbers(topics, "copies") == list(range(100))
    send(topics, 100, 120)
    run(frame, topics, path)
    assert numbers(topics, "copies") == list(range(120))


def test_a_new_checkpoint_is_a_new_writer(spark: SparkSession, topics: hw.Store, checkpoint: Checkpoint) -> None:
    send(topics, 0, 50)
    frame = read(spark, topics).select("value")
    for times in (1, 2):
        run(frame, topics, checkpoint(), topic="copies")
        assert numbers(topics, "copies") == sorted([*range(50)] * times)


def test_a_name_belongs_to_one_checkpoint_until_it_is_taken_over(
    spark: SparkSession, topics: hw.Store, checkpoint: Checkpoint
) -> None:
    send(topics, 0, 100)
    frame = read(spark, topics).select("value")
    first, second = checkpoint(), checkpoint()
    run(frame, topics, first, topic="copies", txnId="copier")
    assert numbers(topics, "copies") == list(range(100))
    with pytest.raises(StreamingQueryException, match=r"writer 'copier' belongs to '.*', not to"):
        run(frame, topics, second, topic="copies", txnId="copier")
    assert numbers(topics, "copies") == list(range(100))

    # It begins with what is new, and its batches are counted from 0 again.
    send(topics, 100, 190)
    later = read(spark, topics, startingOffsets=json.dumps({"orders": ends(100)})).select("value")
    third = checkpoint()
    run(later, topics, third, topic="copies", txnId="copier", txnTakeover=True)
    assert numbers(topics, "copies") == list(range(190))
    forget_last_commit(third)
    run(later, topics, third, topic="copies", txnId="copier", txnTakeover=True)
    forget_last_commit(third)
    run(later, topics, third, topic="copies", txnId="copier")
    assert numbers(topics, "copies") == list(range(190))
    with pytest.raises(StreamingQueryException, match="writer 'copier'"):
        run(frame, topics, first, topic="copies", txnId="copier")

    # A query that comes back goes on with new records, and repeats nothing.
    forget_last_commit(first)
    run(frame, topics, first, topic="copies", txnId="copier", txnTakeover=True)
    assert numbers(topics, "copies") == sorted([*range(190), *range(100, 190)])


def ends(count: int) -> dict[int, int]:
    """Return the ends of the first `count` numbers in the two partitions of the topic."""
    return Counter(partition_of(b"%d" % number, 2) for number in range(count))


def test_a_row_that_cannot_be_written_ends_the_query_and_nothing_of_its_batch_is_there(
    spark: SparkSession, topics: hw.Store, checkpoint: Checkpoint
) -> None:
    topics.alter_topic("copies", max_value_bytes=2)
    send(topics, 98, 102)
    path = checkpoint()
    frame = read(spark, topics).select("key", "value")
    with pytest.raises(StreamingQueryException, match=r"copies/\d: a value of 3 bytes is over the limit of 2"):
        run(frame, topics, path, topic="copies")
    assert numbers(topics, "copies") == []
    topics.alter_topic("copies", max_value_bytes=3)
    run(frame, topics, path, topic="copies")
    assert numbers(topics, "copies") == [98, 99, 100, 101]


def test_a_stream_only_appends(spark: SparkSession, topics: hw.Store, checkpoint: Checkpoint) -> None:
    send(topics, 0, 60)
    counted = (
        read(spark, topics)
        .groupBy("partition")
        .count()
        .selectExpr("cast(partition as string) key", "cast(count as string) value")
    )
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        run(counted, topics, checkpoint(), mode="update", topic="copies")
    with pytest.raises(StreamingQueryException, match="a topic can only be appended to"):
        run(counted, topics, checkpoint(), mode="complete", topic="copies")
