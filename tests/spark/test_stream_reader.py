"""The stream reader plans micro-batches. It is called as Spark calls it, without Spark."""

from __future__ import annotations

import json
import logging
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

import headwater as hw
from headwater.spark.datasource import HeadwaterSource
from headwater.spark.offsets import shares
from headwater.spark.ranges import OffsetRange
from headwater.spark.stream import HeadwaterStreamReader

OpenReader = Callable[..., HeadwaterStreamReader]
ALL = ReadAllAvailable()


@pytest.fixture
def reading(store: hw.Store) -> Iterator[OpenReader]:
    """Makes readers of the store with these options, as Spark does."""
    made: list[HeadwaterStreamReader] = []

    def make(**options: object) -> HeadwaterStreamReader:
        given = {
            name.lower(): value if isinstance(value, str) else json.dumps(value) for name, value in options.items()
        }
        source = HeadwaterSource({"store": str(store)} | given)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, HeadwaterStreamReader)
        made.append(reader)
        return reader

    yield make
    for reader in made:
        reader.stop()


def send(store: hw.Store, topic: str, count: int) -> None:
    with store.producer(topic, batch_records=1) as out:
        for _ in range(count):
            out.send(b"v")


def numbers(offsets: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Offsets without the topics' ids."""
    return {name: {key: value for key, value in topic.items() if key != "id"} for name, topic in offsets.items()}


def ranges(reader: HeadwaterStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[Any, ...]]:
    parts = [part for part in reader.partitions(start, end) if isinstance(part, OffsetRange)]
    return [(part.topic, part.partition, part.start, part.end) for part in parts]


def test_a_stream_begins_where_it_is_told_to(store: hw.Store, reading: OpenReader) -> None:
    store.create_topic("orders", partitions=2)
    send(store, "orders", 6)
    assert numbers(reading(topic="orders").initialOffset()) == {"orders": {"0": 3, "1": 3}}  # as in Kafka: the latest
    assert numbers(reading(topic="orders", startingOffsets="earliest").initialOffset()) == {"orders": {"0": 0, "1": 0}}
    given = {"orders": {"0": 2, "1": -1}}
    assert numbers(reading(topic="orders", startingOffsets=given).initialOffset()) == {"orders": {"0": 2, "1": 3}}
    with pytest.raises(hw.UnknownTopic):
        reading(topic="none")


def test_a_reader_that_has_worked_can_be_sent_to_tasks(store: hw.Store, reading: OpenReader) -> None:
    store.create_topic("orders")
    send(store, "orders", 3)
    reader = reading(topic="orders", startingOffsets="earliest")
    [task] = reader.partitions(reader.initialOffset(), reader.reportLatestOffset())
    copy = pickle.loads(pickle.dumps(reading(topic="orders")))
    assert sum(batch.num_rows for batch in copy.read(pickle.loads(pickle.dumps(task)))) == 3


def test_a_batch_ends_where_the_topics_end(store: hw.Store, reading: OpenReader) -> None:
    store.create_topic("orders", partitions=2)
    reader = reading(topic="orders")
    start = reader.initialOffset()
    send(store, "orders", 5)
    end = reader.latestOffset(start, ALL)
    assert numbers(end) == {"orders": {"0": 3, "1": 2}}
    assert ranges(reader, start, end) == [("orders", 0, 0, 3), ("orders", 1, 0, 2)]
    assert json.dumps(reader.latestOffset(end, ALL)) == json.dumps(end)
    assert list(reader.partitions(end, end)) == []


def test_limits_take_a_share_of_each_partition(store: hw.Store, reading: OpenReader) -> None:
    topic = store.create_topic("orders", partitions=2)
    reader = reading(topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger=10)
    start = reader.initialOffset()
    with store.producer("orders") as out:
        for number in range(40):
            out.send(b"v", partition=0 if number % 4 else 1)
    assert [bounds.end for bounds in topic.bounds().values()] == [30, 10]
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    sizes = []
    while True:
        end = reader.latestOffset(start, limit)
        if end == start:
            break
        sizes.append(sum(last - first for *_, first, last in ranges(reader, start, end)))
        start = end
    assert sizes == [10, 10, 10, 10]
    assert numbers(start) == {"orders": {"0": 30, "1": 10}}


@example({0: 1, 1: 1, 2: 1, 3: 1000}, 4)
@given(st.dictionaries(st.integers(0, 9), st.integers(1, 1000), min_size=1), st.integers(1, 3000))
def test_shares_fill_the_limit_and_take_no_more_than_there_is(sizes: dict[int, int], limit: int) -> None:
    taken = shares(sizes, limit)
    assert sum(taken.values()) == min(limit, sum(sizes.values()))
    assert all(0 <= taken[key] <= size for key, size in sizes.items())
    if limit >= len(sizes):
        assert all(taken.values())  # nobody waits while others are read


def test_small_batches_wait_for_more_but_not_for_ever(store: hw.Store, reading: OpenReader) -> None:
    store.create_topic("orders")
    patient = reading(topic="orders", minOffsetsPerTrigger=5)
    hasty = reading(topic="orders", minOffsetsPerTrigger=5, maxTriggerDelay="1ms")
    start = patient.initialOffset()
    send(store, "orders", 4)
    time.sleep(0.001)
    assert patient.latestOffset(start, ALL) == start
    assert numbers(hasty.latestOffset(start, ALL)) == {"orders": {"0": 4}}
    send(store, "orders", 1)
    assert numbers(patient.latestOffset(start, ALL)) == {"orders": {"0": 5}}


def test_available_now_reads_up_to_where_it_was_and_does_not_wait(
    store: hw.Store, reading: OpenReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.spark.stream.PATIENCE", 3600.0)
    store.create_topic("orders")
    send(store, "orders", 10)
    reader = reading(topic="orders", startingOffsets="earliest", minOffsetsPerTrigger=100)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    send(store, "orders", 10)
    store.alter_topic("orders", partitions=2)
    middle = reader.latestOffset(start, ReadMaxRows(7))
    end = reader.latestOffset(middle, ReadMaxRows(7))
    assert [numbers(middle), numbers(end)] == [{"orders": {"0": 7}}, {"orders": {"0": 10}}]
    assert reader.latestOffset(end, ReadMaxRows(7)) == end
    assert numbers(reader.reportLatestOffset())["orders"]["0"] == 20


def test_waiting_ends_when_something_comes(
    store: hw.Store, reading: OpenReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.spark.stream.PATIENCE", 3600.0)
    store.create_topic("orders")
    reader = reading(topic="orders")
    start = reader.initialOffset()
    later = threading.Timer(0.2, send, (store, "orders", 1))
    later.start()
    assert numbers(reader.latestOffset(start, ALL)) == {"orders": {"0": 1}}
    later.join()


def test_new_partitions_and_topics_are_read_from_their_beginning(store: hw.Store, reading: OpenReader) -> None:
    store.create_topic("orders.eu")
    reader = reading(topicPattern="orders.*")
    start = reader.initialOffset()
    store.alter_topic("orders.eu", partitions=2)
    us = store.create_topic("orders.us")
    store.create_topic("returns")
    for name in ("orders.eu", "orders.us", "returns"):
        send(store, name, 4)
    us.partition(0).delete_before(1)  # of a topic that the stream has never seen: nothing is missed
    end = reader.latestOffset(start, ALL)
    assert numbers(end) == {"orders.eu": {"0": 2, "1": 2}, "orders.us": {"0": 4}}
    assert sorted(ranges(reader, start, end)) == [
        ("orders.eu", 0, 0, 2),
        ("orders.eu", 1, 0, 2),
        ("orders.us", 0, 1, 4),
    ]


def test_a_new_partition_that_was_cut_before_it_was_seen_is_a_loss(store: hw.Store, reading: OpenReader) -> None:
    topic = store.create_topic("orders")
    reader = reading(topic="orders")
    start = reader.initialOffset()
    store.alter_topic("orders", partitions=2)
    send(store, "orders", 8)
    topic.partition(1).delete_before(3)
    with pytest.raises(hw.DataLost, match=r"orders/1: offsets 0 to 3 \(exclusive\) are gone"):
        reader.latestOffset(start, ALL)


def test_a_new_topic_with_other_columns_is_refused(store: hw.Store, reading: OpenReader) -> None:
    store.create_topic("orders.eu")
    reader = reading(topicPattern="orders.*")
    start = reader.initialOffset()
    store.create_topic("orders.us", schema=pa.schema([("n", pa.int64())]))
    with pytest.raises(hw.SchemaError, match=r"topic 'orders.us' has no column 'key'"):
        reader.latestOffset(start, ALL)


def test_a_column_added_while_a_stream_runs_changes_nothing_for_it(store: hw.Store, reading: OpenReader) -> None:
    topic = store.create_topic("trades", schema=pa.schema([("n", pa.int64())]))
    reader = reading(topic="trades")
    start = reader.initialOffset()
    topic.evolve(pa.schema([("n", pa.int64()), ("note", pa.string())]))
    with store.producer("trades") as out:
        out.send({"n": 1, "note": "x"})
    [task] = reader.partitions(start, reader.latestOffset(start, ALL))
    [batch] = reader.read(task)
    assert batch.schema.names == ["n", "_offset", "_partition", "_timestamp", "_key"]
    assert batch.column("n").to_pylist() == [1]


def make_again(store: hw.Store) -> None:
    store.delete_topic("orders")
    store.create_topic("orders")
    send(store, "orders", 20)


@pytest.mark.parametrize(
    ("lose", "message", "tasks"),
    [
        pytest.param(
            lambda store: store.topic("orders").partition(0).delete_before(7),
            r"orders/0: offsets 4 to 7 \(exclusive\) are gone before they were read: the log starts at 7",
            [("orders", 0, 7, 10)],
            id="removed by retention",
        ),
        pytest.param(
            lambda store: store.topic("orders").partition(0).truncate(3),
            r"orders/0: offsets 3 to 4 \(exclusive\) are gone before they were read: the log ends at 3",
            [],
            id="cut off",
        ),
        pytest.param(
            lambda store: store.delete_topic("orders"), r"orders: .* the topic was deleted($|;)", [], id="deleted"
        ),
        pytest.param(
            make_again, r"orders: .* the topic was deleted and made again", [("orders", 0, 0, 20)], id="made again"
        ),
    ],
)
def test_lost_records_are_an_error_or_a_warning(
    lose: Callable[[hw.Store], None],
    message: str,
    tasks: list[tuple[Any, ...]],
    store: hw.Store,
    reading: OpenReader,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.create_topic("orders")
    send(store, "orders", 4)
    strict, lenient = reading(topic="orders"), reading(topic="orders", failOnDataLoss="false")
    start = strict.initialOffset()
    send(store, "orders", 6)
    lose(store)
    with pytest.raises(hw.DataLost, match=message):
        strict.latestOffset(start, ALL)
    with caplog.at_level(logging.WARNING):
        end = lenient.latestOffset(start, ALL)
    assert any(re.search(message, warning) for warning in caplog.messages)
    assert ranges(lenient, start, end) == tasks
    assert lenient.latestOffset(end, ALL) == end


def test_a_batch_that_was_planned_before_its_topic_was_made_again_is_lost(
    store: hw.Store, reading: OpenReader, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("orders", partitions=3)
    send(store, "orders", 9)
    strict = reading(topic="orders", startingOffsets="earliest")
    lenient = reading(topic="orders", failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ALL)
    tasks = strict.partitions(start, end)
    make_again(store)
    with pytest.raises(hw.DataLost, match="made again"):
        strict.partitions(start, end)
    with pytest.raises(hw.DataLost, match="made again"):
        list(strict.read(tasks[0]))
    with caplog.at_level(logging.WARNING):
        assert list(lenient.partitions(start, end)) == []
        assert list(lenient.read(tasks[0])) == []
    assert caplog.text.count("made again; going on without them") == 2


def test_a_topic_that_is_no_longer_named_is_not_missed(store: hw.Store, reading: OpenReader) -> None:
    for name in ("orders", "returns"):
        store.create_topic(name)
    start = reading(topics="orders,returns").initialOffset()
    send(store, "orders", 1)
    assert numbers(reading(topics="orders").latestOffset(start, ALL)) == {"orders": {"0": 1}}


def test_lost_records_do_not_count_for_the_limit(store: hw.Store, reading: OpenReader) -> None:
    topic = store.create_topic("orders")
    send(store, "orders", 50)
    reader = reading(topic="orders", startingOffsets="earliest", failOnDataLoss="false")
    start = reader.initialOffset()
    topic.partition(0).delete_before(30)
    end = reader.latestOffset(start, ReadMaxRows(5))
    assert ranges(reader, start, end) == [("orders", 0, 30, 35)]


def test_the_same_batch_is_the_same_work(store: hw.Store, reading: OpenReader) -> None:
    names = [f"orders-{number}" for number in range(5)]
    for name in names:
        store.create_topic(name, partitions=3)
        send(store, name, 30)
    options = {"topics": ",".join(reversed(names)), "startingOffsets": "earliest", "maxRecordsPerPartition": 4}
    first = reading(**options)
    start, end = first.initialOffset(), first.latestOffset(first.initialOffset(), ALL)
    planned = ranges(first, start, end)
    assert planned == sorted(planned)  # in an order that does not change from process to process
    assert len(planned) == 5 * 3 * 3
    send(store, names[0], 30)
    assert ranges(reading(**options), json.loads(json.dumps(start)), json.loads(json.dumps(end))) == planned


def test_the_position_of_a_stream_is_that_of_its_group(
    store: hw.Store, reading: OpenReader, caplog: pytest.LogCaptureFixture
) -> None:
    topic = store.create_topic("orders")
    send(store, "orders", 10)
    reader = reading(topic="orders", startingOffsets="earliest", group="spark")
    limit: ReadLimit = ReadMaxRows(6)

    def position() -> int | None:
        committed = store.group("spark").position((topic.info.uuid, 0))
        return None if committed is None else committed.offset

    start = reader.initialOffset()
    middle = reader.latestOffset(start, limit)
    assert position() == 0  # from now on retention keeps what is unread
    end = reader.latestOffset(middle, limit)
    assert position() == 6
    reader.latestOffset(end, limit)
    assert position() == 10
    reading(topic="orders", group="spark").latestOffset(start, limit)  # an older checkpoint
    assert position() == 10
    assert caplog.messages == []


def test_a_group_with_consumers_is_left_to_them(
    store: hw.Store, reading: OpenReader, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("orders")
    send(store, "orders", 10)
    with store.consumer("orders", group="people") as inbox:
        assert inbox.poll(max_records=1, timeout=300)
        reader = reading(topic="orders", group="people")
        with caplog.at_level(logging.WARNING):
            assert reader.latestOffset(reader.initialOffset(), ALL) == reader.initialOffset()
        assert "group 'people' has consumers" in caplog.text


def test_retention_keeps_what_a_stream_with_a_group_has_not_read(store: hw.Store, reading: OpenReader) -> None:
    topic = store.create_topic("orders", segment_bytes=4096, retention_bytes=0)
    for _ in range(5):
        with store.producer("orders") as out:
            out.send(bytes(3000))
        topic.partition(0).roll()
    reader = reading(topic="orders", startingOffsets="earliest", group="spark")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(2))
    store.steward().run_once()
    assert topic.bounds()[0].start == 0
    reader.latestOffset(end, ReadMaxRows(2))  # two records are done
    store.steward().run_once()
    assert topic.bounds()[0].start == 2


def test_schemas_from_outside_are_checked_when_a_stream_begins(store: hw.Store) -> None:
    store.create_topic("orders")
    source = HeadwaterSource({"store": str(store), "topic": "orders"})
    reader = source.streamReader(StructType().add("offset", "string"))
    assert isinstance(reader, HeadwaterStreamReader)
    with pytest.raises(hw.SchemaError, match="is bigint, not string"):
        reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()
