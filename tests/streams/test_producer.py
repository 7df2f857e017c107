"""A producer takes records quickly, writes them in order, and says what became of each."""

from __future__ import annotations

import gc
import threading
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from time import time_ns
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater import (
    BufferFull,
    InvalidConfiguration,
    InvalidRecord,
    Receipt,
    Store,
    StoreClosed,
    StoreError,
    Topic,
    UnknownTopic,
    WriteFailed,
)
from headwater.client.store import RemoteStore
from headwater.log import Disk
from headwater.streams.routing import partition_of
from headwater.testing import FailingDisk, Failpoint
from tests.support.backends import OpenDirectoryStore, OpenStore

NEVER = 3600.0
PATIENCE = 300.0
TRADES = pa.schema([pa.field("symbol", pa.string(), nullable=False), pa.field("price", pa.float64())])


def values(topic: Topic, partition: int = 0) -> list[Any]:
    return [record.value for record in topic.partition(partition).records()]


# Receipts.


def test_a_receipt_is_pending_until_its_batch_is_written(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders")
    with store.producer("orders", linger=NEVER) as out:
        receipts = [out.send(b"%d" % number) for number in range(3)]
        assert not any(receipt.done for receipt in receipts)
        with pytest.raises(StoreError, match="pending"):
            _ = receipts[0].offset
        with pytest.raises(TimeoutError):
            receipts[0].wait(0.001)
        assert store.topic("orders").bounds()[0].end == 0
        assert out.pending == 3
        out.flush()
        assert out.pending == 0
        assert [receipt.offset for receipt in receipts] == [0, 1, 2]
        assert [receipt.wait(0) for receipt in receipts] == [0, 1, 2]


def test_everyone_who_waits_for_a_receipt_is_told(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders")
    with store.producer("orders", linger=NEVER) as out:
        receipt = out.send(b"1")
        told: list[int] = []
        threads = [threading.Thread(target=lambda: told.append(receipt.wait(PATIENCE))) for _ in range(8)]
        for thread in threads:
            thread.start()
        out.sync()
        for thread in threads:
            thread.join()
    assert told == [0] * 8


# Where records go.


def test_a_key_decides_the_partition(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=7)
    keys = [b"customer %d" % number for number in range(100)] + [b""]
    with store.producer("orders") as out:
        for round_ in range(3):
            for key in keys:
                receipt = out.send(b"%d" % round_, key=key)
                assert receipt.partition == zlib.crc32(key) % 7
    for number in range(7):
        for key in keys:
            mine = [record.value for record in topic.partition(number).records() if record.key == key]
            assert mine == ([b"0", b"1", b"2"] if partition_of(key, 7) == number else [])


def test_without_keys_a_batch_at_a_time_goes_to_each_partition(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=3)
    with store.producer("orders", batch_records=10, linger=NEVER) as out:
        partitions = [out.send(b"x").partition for _ in range(60)]
    assert partitions == [number // 10 % 3 for number in range(60)]
    assert [partition.total_frames for partition in topic.statistics().partitions] == [2, 2, 2]


def test_a_partition_can_be_chosen(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=3)
    with store.producer("orders") as out:
        out.send(b"a", partition=2)
        out.send(b"b", key=b"any", partition=1)
        for bad in (-1, 3, "0"):
            with pytest.raises(InvalidRecord, match="partitions 0 to 2"):
                out.send(b"c", partition=bad)  # type: ignore[arg-type]
    assert [values(topic, number) for number in range(3)] == [[], [b"b"], [b"a"]]


# Contents of records.


def test_keys_headers_and_timestamps_come_back(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders")
    headers = {"trace": b"1", "empty": b""}
    with store.producer("orders") as out:
        out.send(b"a", b"key", headers, timestamp=5)
        headers["trace"] = b"changed later"
        out.send(b"", timestamp=-7)
        out.send(bytearray(b"bytes"))
        out.send(memoryview(b"view"))
        out.send(None, key=b"key")
    records = list(topic.partition(0).records())
    assert [record.value for record in records] == [b"a", b"", b"bytes", b"view", None]
    assert [record.key for record in records] == [b"key", None, None, None, b"key"]
    assert [record.timestamp for record in records[:2]] == [5, -7]
    assert [dict(record.headers) for record in records[:2]] == [{"trace": b"1", "empty": b""}, {}]


@pytest.mark.parametrize("times", [[5, 7, 5], [5, 5, 5], [5, 5, 7], [7]])
def test_records_of_one_batch_keep_their_own_times(open_store: OpenStore, times: list[int]) -> None:
    store = open_store()
    topic = store.create_topic("orders")
    with store.producer("orders", linger=3600) as out:
        for time in times:
            out.send(b"a", timestamp=time)
    assert [record.timestamp for record in topic.partition(0).records()] == times


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": "text"}, "a value is bytes, not str"),
        ({"value": 3}, "a value is bytes"),
        ({"value": None}, "delete marker .* needs a key"),
        ({"value": b"x" * 101}, "101 bytes is over the limit of 100"),
        ({"value": b"", "key": "text"}, "a key is bytes"),
        ({"value": b"", "key": b"k" * 11}, "a key of 11 bytes is over the limit of 10 .*max_key_bytes"),
        ({"value": b"", "headers": {"a": "text"}}, "mapping of str to bytes"),
        ({"value": b"", "headers": [("a", b"")]}, "mapping of str to bytes"),
        ({"value": b"", "headers": {3: b""}}, "mapping of str to bytes"),
        ({"value": b"", "headers": {"a": b"x" * 20}}, "21 bytes are over the limit of 20"),
        ({"value": b"", "timestamp": 1 << 63}, "64 bits"),
        ({"value": b"", "timestamp": "now"}, "64 bits"),
    ],
)
def test_what_cannot_be_a_record_is_refused_and_harms_no_other(
    open_store: OpenStore, arguments: dict[str, Any], message: str
) -> None:
    store = open_store()
    topic = store.create_topic("orders", max_key_bytes=10, max_value_bytes=100, max_headers_bytes=20)
    with store.producer("orders", linger=NEVER) as out:
        out.send(b"before", key=b"1")
        with pytest.raises(InvalidRecord, match=message):
            out.send(**arguments)
        out.send(b"after", key=b"2")
    assert values(topic) == [b"before", b"after"]
    assert [record.key for record in topic.partition(0).records()] == [b"1", b"2"]


def test_each_record_keeps_its_own_key_headers_and_time_beside_records_without(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders")
    before = time_ns()
    with store.producer("orders", linger=NEVER) as out:
        for number in range(100):
            key = b"key %d" % number if number % 7 == 3 else None
            headers = {"number": b"%d" % number} if number % 11 == 5 else None
            out.send(b"%d" % number, key, headers, timestamp=number if number % 13 == 2 else None)
    after = time_ns()
    records = list(topic.partition(0).records())
    assert [record.value for record in records] == [b"%d" % number for number in range(100)]
    for number, record in enumerate(records):
        assert record.key == (b"key %d" % number if number % 7 == 3 else None)
        assert dict(record.headers) == ({"number": b"%d" % number} if number % 11 == 5 else {})
        assert record.timestamp == number if number % 13 == 2 else before <= record.timestamp <= after


def test_a_compacted_topic_needs_keys(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("state", compact=True, partitions=2)
    with store.producer("state") as out:
        for _ in range(2):
            with pytest.raises(InvalidRecord, match="every record needs a key"):
                out.send(b"x")
            with pytest.raises(InvalidRecord, match="every record needs a key"):
                out.send_batch([b"x"])
        with pytest.raises(InvalidRecord, match="every record needs a key"):
            out.send_batch([b"x", b"y"], keys=[b"k", None])
        out.send(b"x", key=b"k", partition=1)
        out.send_batch([b"y"], keys=[b"k"], partition=1)
    assert values(topic, 1) == [b"x", b"y"]


def test_small_frames_hold_what_fits_and_refuse_what_never_will(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", max_frame_bytes=4096)
    sent = [b"%d" % number * (number % 700) for number in range(300)]
    with store.producer("orders", linger=NEVER) as out:
        for value in sent:
            out.send(value, key=b"k" * 900, headers={"h": b"x" * 500})
        with pytest.raises(InvalidRecord, match="max_frame_bytes"):
            out.send(b"x" * 4000)
        last = [b"", b"x" * 2400, b"", b"y" * 2400, b"x" * 1250, b"y" * 2500]
        for value in last:
            out.send(value)
    assert values(topic) == sent + last


# Threads.


def test_threads_share_a_producer_and_each_keeps_its_order(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=2, sync="never")
    acknowledged: list[tuple[bytes, hw.Receipt]] = []

    def run(name: int) -> None:
        mine = []
        for number in range(2000):
            value = b"%d-%d" % (name, number)
            mine.append((value, out.send(value, key=b"%d" % name if name % 2 else None)))
            if number % 500 == 0:
                out.flush()
        acknowledged.extend(mine)

    with store.producer("orders", batch_records=37, linger=0.001) as out:
        threads = [threading.Thread(target=run, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = {
        (number, record.offset): record.value for number in (0, 1) for record in topic.partition(number).records()
    }
    assert len(stored) == 16000
    assert {(receipt.partition, receipt.offset): value for value, receipt in acknowledged} == stored
    for name in (1, 3, 5, 7):
        offsets = [receipt.offset for value, receipt in acknowledged if value.startswith(b"%d-" % name)]
        assert offsets == sorted(offsets)


# Time.


def test_a_quiet_producer_writes_by_itself(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=3)
    with store.producer("orders", linger=0.001) as out:
        receipts = [out.send(b"x", partition=number) for number in range(3)]
        assert [receipt.wait(PATIENCE) for receipt in receipts] == [0, 0, 0]
        assert out.send(b"y", partition=0).wait(PATIENCE) == 1
    assert values(topic) == [b"x", b"y"]


def written(store: Store, receipt: Receipt) -> int:
    """The offset of a record that `send` itself has written. Over a broker it has sent it, and the answer follows."""
    return receipt.wait(PATIENCE) if isinstance(store, RemoteStore) else receipt.offset


def test_without_linger_each_record_is_written_at_once(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders")
    with store.producer("orders", linger=0) as out:
        assert [written(store, out.send(b"x")) for _ in range(3)] == [0, 1, 2]


def test_a_full_batch_is_written_by_the_call_that_fills_it(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders")
    with store.producer("orders", linger=NEVER, batch_records=2, batch_bytes=1000) as out:
        assert not out.send(b"x").done
        assert written(store, out.send(b"x")) == 1
        assert written(store, out.send(b"x" * 1000)) == 2
    with store.producer("orders", linger=NEVER, batch_records=1) as out:
        assert written(store, out.send(b"x")) == 3


def test_a_producer_that_is_dropped_still_writes(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders")
    receipt = store.producer("orders", linger=0.01).send(b"x")
    gc.collect()
    assert receipt.wait(PATIENCE) == 0
    assert values(topic) == [b"x"]


class Gate(Disk):
    """A disk whose syncs wait while it is shut."""

    def __init__(self) -> None:
        self.open_ = threading.Event()
        self.open_.set()
        self.reached = threading.Event()

    def sync(self, fd: int) -> None:
        self.reached.set()
        assert self.open_.wait(PATIENCE)
        super().sync(fd)


def shut(gate: Gate) -> None:
    gate.reached.clear()
    gate.open_.clear()


def test_a_slow_disk_holds_senders_back(open_directory_store: OpenDirectoryStore) -> None:
    gate = Gate()
    store = open_directory_store(disk=gate)
    topic = store.create_topic("orders")
    topic.partitions()
    out = store.producer("orders", linger=NEVER, batch_records=2, block_timeout=0.01)
    shut(gate)
    writer = threading.Thread(target=lambda: [out.send(b"1"), out.send(b"2")])
    writer.start()
    assert gate.reached.wait(PATIENCE)
    taken = [out.send(b"3"), out.send(b"4")]
    for _ in range(2):
        with pytest.raises(BufferFull, match="block_timeout"):
            out.send(b"not taken")
    with pytest.raises(BufferFull):
        out.flush()
    gate.open_.set()
    writer.join()
    out.send(b"5")
    out.close()
    assert [receipt.offset for receipt in taken] == [2, 3]
    assert values(topic) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_batch_held_back_is_written_without_another_call(open_directory_store: OpenDirectoryStore) -> None:
    gate = Gate()
    store = open_directory_store(disk=gate)
    store.create_topic("orders").partitions()
    out = store.producer("orders", linger=0.001, batch_records=1, block_timeout=0)
    shut(gate)
    writer = threading.Thread(target=out.send, args=(b"1",))
    writer.start()
    assert gate.reached.wait(PATIENCE)
    receipt = out.send(b"2")
    assert not receipt.done
    gate.open_.set()
    assert receipt.wait(PATIENCE) == 1
    writer.join()


# Errors.


def failing(open_directory_store: OpenDirectoryStore) -> tuple[hw.Store, Callable[[], None]]:
    """A store, and how to make its disk refuse the next write to a log."""
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    store.create_topic("orders", partitions=2)
    store.topic("orders").partitions()

    def fail() -> None:
        disk.failpoints = [Failpoint(operation="pwritev", path=lambda path: path.suffix == ".log", error=28)]

    return store, fail


def test_an_error_of_a_lingering_batch_is_told_once(open_directory_store: OpenDirectoryStore) -> None:
    store, fail = failing(open_directory_store)
    out = store.producer("orders", linger=0.001)
    for call in (lambda: out.send(b"next"), lambda: out.send(b"next", key=b"k"), out.flush, out.sync):
        fail()
        lost = out.send(b"lost", partition=0)
        with pytest.raises(WriteFailed):
            lost.wait(PATIENCE)
        _settled(out)
        with pytest.raises(WriteFailed):
            call()
        out.send(b"kept", partition=1)
        out.flush()
    out.close()
    assert set(values(store.topic("orders"), 1)) == {b"kept"}


def test_an_error_is_told_while_other_records_are_pending(open_directory_store: OpenDirectoryStore) -> None:
    store, fail = failing(open_directory_store)
    with store.producer("orders", linger=0.5) as out:
        fail()
        lost = out.send(b"lost", partition=1)
        threading.Event().wait(0.25)
        out.send(b"pending")
        with pytest.raises(WriteFailed):
            lost.wait(PATIENCE)
        _settled(out)
        with pytest.raises(WriteFailed):
            out.send(b"next")
    assert values(store.topic("orders")) == [b"pending"]


def _settled(out: hw.Producer) -> None:
    """The idle thread tells the receipt first and the producer next: wait for the latter."""
    while out._error is None:
        threading.Event().wait(0.001)


def test_an_error_of_the_calls_own_batch_is_raised_by_the_call(open_directory_store: OpenDirectoryStore) -> None:
    store, fail = failing(open_directory_store)
    with store.producer("orders", linger=NEVER) as out:
        lost, kept = out.send(b"lost", partition=0), out.send(b"kept", partition=1)
        fail()
        with pytest.raises(WriteFailed, match="nothing was written"):
            out.flush()
        with pytest.raises(WriteFailed):
            _ = lost.offset
        assert kept.offset == 0
        out.flush()
        assert out.send_batch([b"again"], partition=0)[0].offset == 0


def test_flushing_and_closing_write_the_rest_before_they_tell_an_earlier_error(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders")
    out = store.producer("orders", linger=NEVER)
    for number, call in enumerate([out.flush, out.close]):
        out.send(b"kept")
        out._keep_error(BufferFull("as the idle thread does"))
        with pytest.raises(BufferFull, match="idle thread"):
            call()
        assert values(topic) == [b"kept"] * (number + 1)


# The end.


def test_closing_writes_what_is_pending(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders")
    with store.producer("orders", linger=NEVER) as out:
        out.send(b"x")
    out.close()
    assert values(topic) == [b"x"]
    for use in (lambda: out.send(b"y"), lambda: out.send(b"y", key=b"k"), out.flush, out.sync):
        with pytest.raises(StoreClosed, match="producer of 'orders'"):
            use()
    with pytest.raises(StoreClosed):
        out.send_batch([b"y"])
    assert values(topic) == [b"x"]


def test_closing_the_store_writes_what_is_pending(open_directory_store: OpenDirectoryStore) -> None:
    with open_directory_store() as store:
        store.create_topic("orders")
        out = store.producer("orders", linger=NEVER)
        receipt = out.send(b"x")
    assert receipt.offset == 0
    with pytest.raises(StoreClosed):
        out.send(b"y")
    assert values(open_directory_store().topic("orders")) == [b"x"]


# Many at once.


def test_a_list_of_values_is_written_at_once(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=2)
    with store.producer("orders", linger=NEVER) as out:
        out.send(b"pending", partition=0)
        (receipt,) = out.send_batch([b"1", b"2"], partition=0, timestamps=[7, 8])
        assert (receipt.partition, receipt.wait()) == (0, 1)
        out.send_batch(pa.array([b"3"], pa.large_binary()), partition=0, timestamps=9)
        out.send_batch(pa.table({"value": [b"4"]}), partition=0, timestamps=pa.array([10]))
        out.send_batch((value for value in [b"5"]), partition=0)
        assert out.send_batch([]) == []
    assert values(topic) == [b"pending", b"1", b"2", b"3", b"4", b"5"]
    assert [record.timestamp for record in topic.partition(0).records()][1:5] == [7, 8, 9, 10]


def test_batches_without_keys_take_turns(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders", partitions=3)
    with store.producer("orders") as out:
        assert [out.send_batch([b"x", b"y"])[0].partition for _ in range(4)] == [0, 1, 2, 0]


@pytest.mark.parametrize("make", [list, pa.array], ids=["list", "arrow"])
def test_a_batch_is_spread_by_its_keys(open_store: OpenStore, make: Callable[[list[bytes]], Any]) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=3)
    keys = [b"key %d" % (number % 10) for number in range(100)]
    with store.producer("orders") as out:
        out.send_batch([b"%d" % number for number in range(100)], keys=make(keys), timestamps=list(range(100)))
    for partition in range(3):
        mine = [number for number in range(100) if partition_of(keys[number], 3) == partition]
        records = list(topic.partition(partition).records())
        assert [record.value for record in records] == [b"%d" % number for number in mine]
        assert [record.key for record in records] == [keys[number] for number in mine]
        assert [record.timestamp for record in records] == mine


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([b"x"], {"keys": [b"a", b"b"]}, "2 keys for 1 records"),
        ([b"x", b"y"], {"keys": [b"a"], "partition": 0}, "1 keys for 2 records"),
        ([b"x"], {"timestamps": [1, 2]}, "2 timestamps for 1 records"),
        ([b"x", b"y"], {"timestamps": [1]}, "1 timestamps for 2 records"),
        ([b"x", "text"], {}, "record 1: a value is bytes, not str"),
        ([b"x", None], {}, "record 1: a delete marker .* needs a key"),
        ([b"x", None], {"keys": [b"k", None]}, "record 1: a delete marker"),
        ([b"x"], {"keys": ["text"]}, "a key is bytes"),
        ([b"x"], {"keys": [b"k" * 2000], "partition": 0}, "max_key_bytes"),
        ([b"x", b"y" * 101], {}, "101 bytes is over the limit of 100"),
        ([b"x"], {"partition": 2}, "partitions 0 to 1"),
        (pa.table({"other": [b"x"]}), {}, r"unknown \['other'\]"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_whole(
    open_store: OpenStore, data: Any, options: dict[str, Any], message: str
) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=2, max_value_bytes=100)
    with store.producer("orders") as out, pytest.raises(InvalidRecord, match=message):
        out.send_batch(data, **options)
    assert topic.statistics().total_records == 0


def test_delete_markers_go_in_batches_too(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("state", compact=True)
    with store.producer("state") as out:
        out.send_batch([b"x", None], keys=[b"a", b"b"])
    assert values(topic) == [b"x", None]


def test_large_batches_are_split_into_frames(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", max_frame_bytes=100_000)
    sent = [b"", *[b"s"] * 5000, *[b"x" * 40_000] * 10, b"end"]
    with store.producer("orders", batch_bytes=10_000) as out:
        receipts = out.send_batch(sent)
    assert values(topic) == sent
    assert len(receipts) >= topic.statistics().partitions[0].total_frames > 10
    assert receipts[0].offset == 0


# Typed topics.


def test_rows_and_tables_are_records_of_a_typed_topic(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("trades", schema=TRADES)
    with store.producer("trades") as out:
        out.send({"symbol": "A", "price": 1.0}, key=b"k")
        out.send({"symbol": "B"})
        out.send_batch([{"symbol": "C", "price": 3}])
        out.send_batch(pa.table({"price": [4.0], "symbol": ["D"]}))
        out.send_batch(pa.RecordBatch.from_pydict({"symbol": pa.array(["E"]).dictionary_encode()}))
        out.send_batch({"symbol": ["F", "G"], "price": [6, 7]}, keys=[b"f", b"g"])
    table = topic.scan(columns=["symbol", "price", "_key"]).read_all()
    assert table["symbol"].to_pylist() == ["A", "B", "C", "D", "E", "F", "G"]
    assert table["price"].to_pylist() == [1.0, None, 3.0, 4.0, None, 6.0, 7.0]
    assert table["_key"].to_pylist() == [b"k", None, None, None, None, b"f", b"g"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"bytes", "a dict of columns, not bytes"),
        ({"symbol": "A", "venue": "X"}, r"unknown columns \['venue'\]; there are symbol, price"),
        ({"price": 1.0}, "column 'symbol' is missing"),
        ({"symbol": 3}, "column 'symbol' must be string"),
        ({"symbol": "A", "price": "much"}, "column 'price' must be double"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_its_column(open_store: OpenStore, row: Any, message: str) -> None:
    store = open_store()
    topic = store.create_topic("trades", schema=TRADES)
    with store.producer("trades", linger=NEVER) as out:
        out.send({"symbol": "before"})
        with pytest.raises(InvalidRecord, match=message):
            out.send(row)
        with pytest.raises(InvalidRecord, match=message):
            out.send_batch([row])
    assert topic.statistics().records == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"price": [1.0]}, r"missing \['symbol'\]"),
        ({"symbol": ["A"], "venue": ["X"]}, r"unknown \['venue'\]"),
        ({"symbol": [None]}, "'symbol' must not be null"),
        ({"symbol": ["A"], "price": ["much"]}, "'price' is string, not double"),
        (pa.table([pa.array(["A"]), pa.array(["B"])], names=["symbol", "symbol"]), "different names"),
        (7, "int is no table"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_its_columns(open_store: OpenStore, data: Any, message: str) -> None:
    store = open_store()
    topic = store.create_topic("trades", schema=TRADES)
    with store.producer("trades") as out, pytest.raises(InvalidRecord, match=message):
        out.send_batch(data)
    assert topic.statistics().records == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int32(), Decimal("0.1")),
        (pa.list_(pa.int64()), [1, 2.5]),
        (pa.struct([("a", pa.list_(pa.int8()))]), {"a": [0.5]}),
        (pa.map_(pa.string(), pa.int64()), {"a": 0.5}),
        (pa.date32(), datetime(2026, 1, 1, 12, tzinfo=UTC)),
        (pa.timestamp("ms"), datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)),
        (pa.duration("s"), timedelta(milliseconds=1)),
    ],
    ids=str,
)
def test_a_value_that_would_be_cut_is_refused(tmp_path: Path, kind: Any, value: Any) -> None:
    with hw.open(tmp_path / "store") as store:
        topic = store.create_topic("t", schema=pa.schema([("column", kind)]))
        with store.producer("t") as out:
            with pytest.raises(InvalidRecord, match=r"'column' must be .* would be cut to fit"):
                out.send({"column": value})
            with pytest.raises(InvalidRecord, match=r"'column' must be .* would be cut to fit"):
                out.send_batch([{"column": value}])
        assert topic.partition(0).bounds().end == 0


def test_a_number_that_is_whole_fits_a_column_of_integers(tmp_path: Path) -> None:
    with hw.open(tmp_path / "store") as store:
        topic = store.create_topic("t", schema=pa.schema([("x", pa.int64()), ("day", pa.date32())]))
        with store.producer("t") as out:
            out.send({"x": 2.0, "day": datetime(2026, 1, 1, tzinfo=UTC)})
        assert [record.value for record in topic.partition(0).records()] == [{"x": 2, "day": date(2026, 1, 1)}]


def test_a_typed_delete_marker_needs_columns_that_can_be_null(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("trades", schema=TRADES)
    with store.producer("trades") as out, pytest.raises(InvalidRecord, match=r"\['symbol'\] must not be"):
        out.send(None, key=b"k")
    topic = store.create_topic("notes", schema=pa.schema([("text", pa.string())]))
    with store.producer("notes") as out:
        out.send({"text": "x"}, key=b"k")
        out.send(None, key=b"k")
    assert values(topic) == [{"text": "x"}, None]


def test_an_unknown_option_of_a_producer_is_named(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders")
    with pytest.raises(hw.InvalidConfiguration, match=r"unknown options \['lingers'\]; there are linger"):
        store.producer("orders", lingers=1)


def test_store_files_are_where_they_are_promised(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    store.create_topic("trades", schema=TRADES)
    with store.producer("trades") as out:
        out.send({"symbol": "A"})
    names = {str(path.relative_to(store.path)) for path in Path(store.path).rglob("*")}
    assert {
        "store.lock",
        "trades/topic.json",
        "trades/0/state",
        f"trades/schemas/{hw.Schema(TRADES).id:016x}.arrow",
    } <= names


def test_a_producer_creates_its_topic_when_it_is_told_to(open_store: OpenStore) -> None:
    store = open_store()
    with pytest.raises(UnknownTopic):
        store.producer("orders")
    with pytest.raises(InvalidConfiguration, match="give create=True for 'orders' too"):
        store.producer("orders", partitions=4)
    with store.producer("orders", create=True, partitions=4, linger=0.0) as out:
        out.send(b"1", partition=3)
    assert store.describe_topic("orders").partitions == 4
    with store.producer("orders", create=True, partitions=7, replication=3) as again:
        again.send(b"2", partition=3)
    assert store.describe_topic("orders").partitions == 4, "a topic that exists is as it is"
    assert values(store.topic("orders"), 3) == [b"1", b"2"]
    with pytest.raises(InvalidConfiguration, match="1 to 10000 partitions, not 0"):
        store.producer("none", create=True, partitions=0)
    with pytest.raises(InvalidConfiguration, match="this store keeps one copy"):
        store.producer("none", create=True, replication=2)
    assert store.topics() == ["orders"]
    assert store.ensure_topic("orders").info == store.describe_topic("orders")
