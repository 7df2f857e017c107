"""The work of a task, without Spark: rows become frames where a producer would have put them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

import headwater as hw
from headwater.spark import framing
from headwater.spark.options import SinkOptions
from headwater.spark.sink import HeadwaterStreamWriter, HeadwaterWriter, SinkPlan, StagedRows


def plan(store: hw.Store, schema: pa.Schema, **options: object) -> SinkPlan:
    given = {"store": str(store)} | {name: str(value) for name, value in options.items()}
    return SinkPlan.make(SinkOptions.parse(given, streaming=False), from_arrow_schema(schema))


def write(store: hw.Store, *batches: pa.RecordBatch, **options: object) -> None:
    """As one task would."""
    work = plan(store, batches[0].schema, **options)
    writer = HeadwaterWriter(pickle.loads(pickle.dumps(work)))
    writer.commit([writer.write(iter(batches))])


def records(store: hw.Store, topic: str, partition: int) -> list[tuple[Any, ...]]:
    return [(record.key, record.value) for record in store.topic(topic).partition(partition).records()]


def stages(store: hw.Store) -> list[Path]:
    return list(Path(str(store), "__transactions").glob("*.stage"))


RAW = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32())])
ROWS = st.lists(
    st.tuples(st.none() | st.binary(max_size=9), st.binary(max_size=9), st.none() | st.integers(0, 2)), max_size=40
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=ROWS, cut=st.integers(1, 15))
def test_keys_go_where_a_producer_sends_them(store: hw.Store, rows: list[tuple[Any, ...]], cut: int) -> None:
    number = len(store.topics())
    for name in (f"spark{number}", f"python{number}"):
        store.create_topic(name, partitions=3)
    with store.producer(f"python{number}") as out:
        for key, value, partition in rows:
            if key is not None or partition is not None:
                out.send(value, key=key, partition=partition)
    table = pa.Table.from_pylist([{"key": k, "value": v, "partition": p} for k, v, p in rows], RAW)
    batches = table.to_batches(max_chunksize=cut)
    if not batches:
        return
    write(store, *batches, topic=f"spark{number}")
    placed = [
        record
        for partition in range(3)
        for record in records(store, f"spark{number}", partition)
        if record[0] is not None
    ]
    expected = [
        record
        for partition in range(3)
        for record in records(store, f"python{number}", partition)
        if record[0] is not None
    ]
    assert placed == expected
    everything = [record for partition in range(3) for record in records(store, f"spark{number}", partition)]
    assert sorted(everything, key=repr) == sorted(((key, value) for key, value, _ in rows), key=repr)
    for key, value, partition in rows:
        if partition is not None:
            assert (key, value) in records(store, f"spark{number}", partition)


def test_rows_of_many_batches_share_frames_and_large_batches_are_divided(
    store: hw.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "_FRAME_BYTES", 10_000)
    store.create_topic("orders")
    small = [pa.record_batch({"value": pa.array([b"%d" % number], pa.binary())}) for number in range(100)]
    large = pa.record_batch({"value": pa.array([bytes(1000)] * 100, pa.binary())})
    write(store, *small, large, topic="orders")
    batches = list(store.topic("orders").scan())
    assert sum(batch.num_rows for batch in batches) == 200
    assert 5 < len(batches) < 20


def test_what_waits_is_bounded(store: hw.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "_MOST_WAITING", 1000)
    store.create_topic("orders")
    batch = pa.record_batch({"value": pa.array([bytes(600)], pa.binary())})
    write(store, batch, batch, batch, batch, topic="orders")
    assert [batch.num_rows for batch in store.topic("orders").scan()] == [2, 2]


def test_a_row_that_waits_does_not_keep_the_others_in_memory(store: hw.Store) -> None:
    store.create_topic("orders", partitions=2)
    held = []

    def rows() -> Iterator[pa.RecordBatch]:
        before = pa.total_allocated_bytes()
        for _ in range(50):
            values = pa.array([bytes(1_000_000), b"rare"], pa.binary())
            yield pa.record_batch({"value": values, "partition": pa.array([0, 1], pa.int32())})
            held.append(pa.total_allocated_bytes() - before)

    schema = pa.schema([("value", pa.binary()), ("partition", pa.int32())])
    writer = HeadwaterWriter(plan(store, schema, topic="orders"))
    writer.commit([writer.write(rows())])
    assert max(held) < 20_000_000
    assert [bounds.end for bounds in store.topic("orders").bounds().values()] == [50, 50]


def test_rows_without_a_key_are_spread(store: hw.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "_FRAME_BYTES", 1000)
    store.create_topic("orders", partitions=4)
    batch = pa.record_batch({"value": pa.array([bytes(600)], pa.binary())})
    write(store, *[batch] * 16, topic="orders")
    assert [bounds.end for bounds in store.topic("orders").bounds().values()] == [4, 4, 4, 4]


def test_all_tasks_of_a_batch_send_a_key_to_the_same_partition(store: hw.Store) -> None:
    store.create_topic("orders", partitions=2)
    keys = [b"%d" % number for number in range(50)]
    batch = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(keys, pa.binary())})
    writer = HeadwaterWriter(plan(store, batch.schema, topic="orders"))
    first = writer.write(iter([batch]))
    store.alter_topic("orders", partitions=5)
    second = writer.write(iter([batch]))
    writer.commit([first, second])
    for number in range(2):
        stored = records(store, "orders", number)
        assert stored[: len(stored) // 2] == stored[len(stored) // 2 :] != []


def test_a_topic_that_is_made_again_while_a_batch_runs_gets_nothing_of_it(store: hw.Store) -> None:
    store.create_topic("orders")
    batch = pa.record_batch({"value": pa.array([b"x"], pa.binary())})
    writer = HeadwaterWriter(plan(store, batch.schema, topic="orders"))
    staged = writer.write(iter([batch]))
    store.delete_topic("orders")
    store.create_topic("orders")
    with pytest.raises(hw.UnknownTopic, match="made again"):
        writer.write(iter([batch]))
    writer.commit([staged])
    assert records(store, "orders", 0) == []


def headers(*rows: Any) -> pa.Array:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.array([None if row is None else [{"key": k, "value": v} for k, v in row] for row in rows], kind)


def test_headers_become_a_map(store: hw.Store) -> None:
    store.create_topic("orders")
    many = headers([("a", b"1"), ("b", b"2")], None, [], [("c", None)])
    values = pa.array([b"0", b"1", b"2", b"3"], pa.binary())
    write(store, pa.record_batch({"value": values, "headers": many}).slice(0, 3), topic="orders")
    write(store, pa.record_batch({"value": values, "headers": many}).slice(3), topic="orders")
    stored = [dict(record.headers) for record in store.topic("orders").partition(0).records()]
    assert stored == [{"a": b"1", "b": b"2"}, {}, {}, {"c": None}]


def test_headers_stay_with_their_rows_and_only_each_rows_own_count(store: hw.Store) -> None:
    store.create_topic("orders", partitions=3, max_headers_bytes=50)
    random = Random(3)
    rows = [
        random.choice([None, [], [("h", b"%d" % number)], [("a", bytes(20)), ("b", bytes(28))]])
        for number in range(200)
    ]
    keys = pa.array([b"%d" % number for number in range(200)], pa.binary())
    batch = pa.record_batch({"key": keys, "value": keys, "headers": headers(*rows)})
    write(store, batch.slice(0, 70), batch.slice(70, 100), batch.slice(170), topic="orders")
    stored = [record for partition in store.topic("orders").partitions() for record in partition.records()]
    assert len(stored) == 200
    for record in stored:
        assert record.headers == dict(rows[int(record.value)] or [])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": [b"x" * 101]}, r"orders/\d: a value of 101 bytes is over the limit of 100 \(max_value_bytes\)"),
        (
            {"value": [b"x"], "key": [b"x" * 51]},
            r"orders/\d: a key of 51 bytes is over the limit of 50 \(max_key_bytes\)",
        ),
        ({"value": [None], "key": [None]}, r"orders/\d: a delete marker"),
        ({"value": [b"x", None]}, r"orders/\d: a delete marker"),
        ({"value": [b"x"], "partition": [3]}, "partition 3 of topic 'orders', which has 0 to 2"),
        ({"value": [b"x"], "partition": [-1]}, "partition -1 of topic 'orders', which has 0 to 2"),
        (
            {"value": [b"x"], "headers": [[("h" * 30, b"v" * 30)]]},
            r"orders/\d: headers of 60 bytes are over the limit of 50",
        ),
        ({"value": [b"x"], "headers": [[(None, b"v")]]}, r"'orders': column 'headers' .* must not be null"),
        ({"value": [b"x"], "topic": ["orders"], "timestamp": [1 << 62]}, r"'orders': column 'timestamp' has a value"),
        ({"value": [b"x"], "topic": [None]}, r"column 'topic' is null in 1 rows"),
        ({"value": [b"x"], "topic": ["ordres"]}, r"there is no topic 'ordres'"),
        ({"value": [b"x"], "topic": ["compacted"]}, r"compacted/0: the topic is compacted: every record needs a key"),
        ({"value": [b"x"], "topic": ["typed"]}, r"'typed' takes no column 'value'"),
    ],
)
def test_rows_that_cannot_be_are_refused_with_their_place(
    store: hw.Store, columns: dict[str, list[Any]], message: str
) -> None:
    store.create_topic("orders", partitions=3, max_value_bytes=100, max_key_bytes=50, max_headers_bytes=50)
    store.create_topic("compacted", compact=True)
    store.create_topic("typed", schema=pa.schema([("id", pa.int64())]))
    kinds = {
        "value": pa.binary(),
        "key": pa.binary(),
        "partition": pa.int32(),
        "topic": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    arrays = {
        name: headers(*column) if name == "headers" else pa.array(column, kinds[name])
        for name, column in columns.items()
    }
    batch = pa.record_batch(arrays)
    options = {} if "topic" in columns else {"topic": "orders"}
    with pytest.raises(hw.HeadwaterError, match=message):
        write(store, batch, **options)
    assert stages(store) == []
    assert store.statistics().records == 0


# Attempts, and what becomes of them.


@pytest.fixture
def batch(store: hw.Store) -> pa.RecordBatch:
    store.create_topic("orders")
    return pa.record_batch({"value": pa.array([b"once"], pa.binary())})


def test_attempts_of_a_task_do_not_disturb_each_other(store: hw.Store, batch: pa.RecordBatch) -> None:
    writer = HeadwaterWriter(plan(store, batch.schema, topic="orders"))
    first, second = writer.write(iter([batch])), writer.write(iter([batch]))
    assert first.staged.files.isdisjoint(second.staged.files)
    writer.abort([first, None])
    writer.commit([second])
    assert records(store, "orders", 0) == [(None, b"once")]
    assert stages(store) == []


def test_a_task_that_fails_leaves_nothing(store: hw.Store, batch: pa.RecordBatch) -> None:
    writer = HeadwaterWriter(plan(store, batch.schema, topic="orders"))

    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(200):
            yield pa.record_batch({"value": pa.array([Random(0).randbytes(50_000)], pa.binary())})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        writer.write(rows())
    assert stages(store) == []


def test_an_abort_after_a_commit_that_was_decided_takes_nothing_back(
    store: hw.Store, batch: pa.RecordBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = SinkOptions.parse({"store": str(store), "topic": "orders"}, streaming=True)
    writer = HeadwaterStreamWriter(SinkPlan.make(given, from_arrow_schema(batch.schema)))
    messages = [StagedRows(writer.write(iter([batch])).staged, "query")]

    def full(*_: object) -> None:
        raise hw.StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("headwater.embedded.transactions._append", full)
        with pytest.raises(hw.TransactionUnfinished):
            writer.commit(messages, 0)
        writer.abort(messages, 0)
    again = pa.record_batch({"value": pa.array([b"again"], pa.binary())})
    writer.commit([StagedRows(writer.write(iter([again])).staged, "query")], 0)  # Spark does the batch again
    assert records(store, "orders", 0) == [(None, b"once")]
    assert stages(store) == []


def test_a_batch_of_no_task_is_nothing(store: hw.Store, batch: pa.RecordBatch) -> None:
    given = SinkOptions.parse({"store": str(store), "topic": "orders"}, streaming=True)
    writer = HeadwaterStreamWriter(SinkPlan.make(given, from_arrow_schema(batch.schema)))
    writer.commit([None], 0)
    with pytest.raises(hw.StoreError, match="which query"):
        writer.commit([writer.write(iter([batch]))], 0)


@pytest.mark.parametrize(
    ("options", "streaming", "message"),
    [
        ({"txnId": "a"}, False, "give both of the options txnId and txnVersion"),
        ({"txnVersion": "1"}, True, "txnVersion is only for a batch"),
        ({"txnId": "a", "txnVersion": "-1"}, False, "a number from 0 on, not '-1'"),
        ({"txnTakeover": "true"}, True, "a stream with the option txnId"),
        ({"txnId": "a", "txnVersion": "1", "txnTakeover": "true"}, False, "or a batch with the option txnOwner"),
        ({"txnId": "a", "txnOwner": "b"}, True, "txnOwner is only for a batch"),
        ({"txnId": "a/b"}, True, "cannot name a writer"),
        ({"startingOffsets": "earliest"}, True, "unknown option startingOffsets"),
        ({"topics": "a"}, True, "did you mean topic"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(hw.HeadwaterError, match=message):
        SinkOptions.parse({"store": "x"} | options, streaming=streaming)
