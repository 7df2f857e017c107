"""Topics are read without a consumer: as Arrow, by position or time, with columns of choice; and told in numbers."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from headwater import InvalidConfiguration, OffsetOutOfRange, SchemaError, Topic
from headwater.streams.start import Start
from tests.support.backends import OpenDirectoryStore, OpenStore

SECOND = 1_000_000_000


def numbered(open_store: OpenStore, partitions: int = 2, count: int = 10) -> Topic:
    """A topic whose partition p has `count` records `p-i` of the time i seconds."""
    store = open_store()
    topic = store.create_topic("numbers", partitions=partitions)
    with store.producer("numbers") as out:
        for number in range(count):
            for partition in range(partitions):
                out.send(b"%d-%d" % (partition, number), partition=partition, timestamp=number * SECOND)
    return topic


def values(reader: pa.RecordBatchReader) -> list[bytes]:
    values: list[bytes] = reader.read_all()["value"].to_pylist()
    return values


def test_a_scan_reads_all_partitions_and_says_which(open_store: OpenStore) -> None:
    table = numbered(open_store, count=3).scan().read_all()
    assert table.column_names == ["partition", "offset", "timestamp", "key", "headers", "value"]
    assert table["partition"].to_pylist() == [0, 0, 0, 1, 1, 1]
    assert table["offset"].to_pylist() == [0, 1, 2, 0, 1, 2]
    assert table["value"].to_pylist() == [b"0-0", b"0-1", b"0-2", b"1-0", b"1-1", b"1-2"]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", range(10)),
        (7, "latest", range(7, 10)),
        (2, 5, range(2, 5)),
        (-3, "latest", range(7, 10)),
        (-3, -1, range(7, 9)),
        (-100, 2, range(2)),
        (5, 5, range(0)),
        (6, 5, range(0)),
        ("latest", "latest", range(0)),
        (hw.time(4 * SECOND), "latest", range(4, 10)),
        (hw.time(4 * SECOND + 1), hw.time(8 * SECOND), range(5, 8)),
        (hw.time(-5), hw.time(99 * SECOND), range(10)),
    ],
)
def test_a_scan_has_a_start_and_an_end(open_store: OpenStore, start: Start, end: Start, expected: range) -> None:
    topic = numbered(open_store)
    assert values(topic.scan(start, end, partitions=[1])) == [b"1-%d" % number for number in expected]


def test_a_scan_takes_the_partitions_and_columns_it_is_told(open_store: OpenStore) -> None:
    topic = numbered(open_store, partitions=3, count=2)
    assert values(topic.scan(partitions=[2, 0])) == [b"2-0", b"2-1", b"0-0", b"0-1"]
    assert values(topic.scan(partitions=[])) == []
    assert topic.scan(columns=["value", "partition"]).read_all().column_names == ["value", "partition"]
    assert topic.scan(columns=["partition"]).read_all().to_pydict() == {"partition": [0, 0, 1, 1, 2, 2]}


def test_what_a_scan_cannot_read_is_said(open_store: OpenStore) -> None:
    topic = numbered(open_store)
    with pytest.raises(SchemaError, match=r"unknown columns \['price'\]"):
        topic.scan(columns=["price"])
    for columns in ([], ["value", "value"], ["partition", "partition"]):
        with pytest.raises(SchemaError, match="each once"):
            topic.scan(columns=columns)
    with pytest.raises(InvalidConfiguration, match="partitions 0 to 1, not 2"):
        topic.scan(partitions=[2])
    with pytest.raises(OffsetOutOfRange):
        topic.scan(11)
    with pytest.raises(InvalidConfiguration, match="no position"):
        topic.scan("newest")  # type: ignore[arg-type]


def test_a_scan_ends_where_the_log_did_when_it_was_asked_for(open_store: OpenStore) -> None:
    topic = numbered(open_store, partitions=1)
    reader = topic.scan()
    with topic._store.producer("numbers") as out:
        out.send(b"later")
    assert len(values(reader)) == 10


def test_times_are_given_in_many_ways() -> None:
    moment = datetime(2026, 1, 31, 12, 0, 0, 123457, tzinfo=UTC)
    assert hw.time(moment).ns == 1769860800123457000
    assert hw.time("2026-01-31T12:00:00.123457+00:00") == hw.time(moment) == hw.time(1769860800123457000)
    before, moment_ns, after = time.time_ns(), hw.time("-1.5h").ns, time.time_ns()
    assert before <= moment_ns + 5400 * SECOND <= after
    for bad in ("yesterday", "1h", "", 1.5, None):
        with pytest.raises(InvalidConfiguration, match="is no time"):
            hw.time(bad)  # type: ignore[arg-type]


def test_bounds_are_told_for_each_partition(open_store: OpenStore) -> None:
    topic = numbered(open_store, count=3)
    assert topic.bounds() == {0: (0, 3, 3), 1: (0, 3, 3)}


def test_recent_records_are_the_last_ones_by_time(open_store: OpenStore) -> None:
    topic = numbered(open_store)
    assert [record.value for record in topic.recent(4)] == [b"0-8", b"1-8", b"0-9", b"1-9"]
    assert len(topic.recent()) == 10
    assert len(topic.recent(100)) == 20
    for bad in (0, -1, True):
        with pytest.raises(InvalidConfiguration, match="count"):
            topic.recent(bad)


def test_recent_records_are_found_behind_what_compaction_removed(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("state", compact=True)
    with store.producer("state") as out:
        out.send(b"old", key=b"quiet")
        for number in range(100):
            out.send(b"%d" % number, key=b"busy")
    partition = topic.partition(0)
    partition.roll()
    partition.compact()
    assert [record.value for record in topic.recent(2)] == [b"old", b"99"]


def test_a_typed_scan_marks_its_own_columns(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("trades", schema=pa.schema([("timestamp", pa.int64()), ("partition", pa.string())]))
    with store.producer("trades") as out:
        out.send({"timestamp": 7, "partition": "mine"})
    table = topic.scan(columns=["_partition", "_offset", "timestamp", "partition"]).read_all()
    assert table.to_pylist() == [{"_partition": 0, "_offset": 0, "timestamp": 7, "partition": "mine"}]


def test_a_store_tells_its_numbers(open_store: OpenStore) -> None:
    topic = numbered(open_store, partitions=2, count=3)
    statistics = topic.statistics()
    assert (statistics.name, statistics.unhealthy) == ("numbers", ())
    assert (statistics.records, statistics.total_records) == (6, 6)
    assert statistics.bytes == sum(partition.bytes for partition in statistics.partitions) > 0
    assert [partition.end for partition in statistics.partitions] == [3, 3]
    store = topic._store
    store.create_topic("empty")
    everything = store.statistics()
    assert [topic.name for topic in everything.topics] == ["empty", "numbers"]
    assert (everything.records, everything.unhealthy) == (6, ())
    assert everything.bytes == sum(topic.bytes for topic in everything.topics)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_damaged_partition_is_listed_as_unhealthy(open_directory_store: OpenDirectoryStore) -> None:
    with open_directory_store() as store:
        store.create_topic("orders", partitions=3)
        with store.producer("orders") as out:
            for number in range(3):
                out.send(b"a" * 100, partition=number)
            out.flush()
            out.send(b"b" * 100, partition=1)
    (log,) = (store.path / "orders" / "1").glob("*.log")
    flip(log, log.read_bytes().index(b"a" * 100))
    (store.path / "orders" / "1" / "state").unlink()  # so that opening it has to walk the log
    again = open_directory_store()
    assert again.topic("orders").statistics().unhealthy == (1,)
    assert again.statistics().unhealthy == ("orders/1",)
    with pytest.raises(hw.FrameDamaged):
        again.topic("orders").scan().read_all()
    assert len(values(again.topic("orders").scan(partitions=[0, 2]))) == 2
