"""Stewardship by Spark: compaction and replay do what plain Python models say, and commands tell."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.cli.app import app
from headwater.log import DirectoryPartition
from headwater.log.maintain.check import Check
from headwater.spark.jobs.compacting import compact
from headwater.spark.jobs.replaying import replay

Content = list[tuple[int, bytes | None, bytes | None]]


def content(topic: hw.Topic) -> list[Content]:
    return [
        [(record.offset, record.key, record.value) for record in partition.records()]
        for partition in topic.partitions()
    ]


def changes(store: hw.Store, name: str, count: int, seed: int, **options: Any) -> hw.Topic:
    """A compacted topic with changes of a few keys, some of them deletions, in several closed segments."""
    chance = random.Random(seed)
    topic = store.create_topic(name, compact=True, **options)
    for _ in range(count // 10):
        with store.producer(name) as out:
            for _ in range(10):
                value = None if chance.random() < 0.2 else b"%d" % chance.randrange(1000)
                out.send(value, key=b"k%d" % chance.randrange(15))
        for partition in topic.partitions():
            if chance.random() < 0.3:
                partition.roll()
    return topic


def compacted(topic: hw.Topic, before: list[Content], *, drop_markers: bool) -> list[Content]:
    """Return the records that compaction has to leave in each partition."""
    left = []
    for number, records in enumerate(before):
        partition = topic.partition(number)
        assert isinstance(partition, DirectoryPartition)
        end = max((segment.end for segment in partition.closed()), default=0)
        newest = {key: offset for offset, key, _ in records if offset < end}
        left.append(
            [
                (offset, key, value)
                for offset, key, value in records
                if offset >= end or (newest[key] == offset and (value is not None or not drop_markers))
            ]
        )
    return left


@pytest.mark.parametrize("grace", [0.0, 3600.0])
def test_compaction_leaves_the_newest_of_each_key(spark: SparkSession, store: hw.Store, grace: float) -> None:
    topic = changes(store, "state", 100, seed=3, partitions=2, delete_grace=grace)
    before = content(topic)
    expected = compacted(topic, before, drop_markers=grace == 0)
    reading = topic.partition(0).records()
    first = next(reading)
    reports = compact(spark, str(store), "state")
    assert content(topic) == expected
    assert [record for record in (first, *reading) if record.offset < 0] == []
    assert (
        sum(report.removed_records for report in reports.values())
        == sum(map(len, before)) - sum(map(len, expected))
        > 0
    )
    assert all(report.damaged == 0 for report in reports.values())
    again = compact(spark, str(store), "state")
    assert content(topic) == expected
    assert sum(report.removed_records for report in again.values()) == 0
    for partition in map(topic.partition, range(2)):
        assert isinstance(partition, DirectoryPartition)
        assert not any(finding.kind == "damage" for finding in Check(partition.path).run())


def test_compaction_leaves_damaged_segments_and_the_markers_behind_them(spark: SparkSession, store: hw.Store) -> None:
    topic = store.create_topic("state", compact=True, delete_grace=0.0)
    rounds: list[list[tuple[bytes, bytes | None]]] = [
        [(b"a", b"1"), (b"b", b"1")],
        [(b"a", b"2"), (b"c", b"1")],
        [(b"a", None), (b"b", b"2")],
    ]
    for records in rounds:
        with store.producer("state") as out:
            for key, value in records:
                out.send(value, key=key)
        topic.partition(0).roll()
    flip(topic, segment=1)
    [report] = compact(spark, str(store), "state").values()
    assert report.damaged == 1
    left = [(record.offset, record.value) for record in topic.partition(0).records(on_damage=lambda _: None)]
    assert left == [(4, None), (5, b"2")]
    plain = topic.partition(0).compact()
    assert plain.damaged == 1
    assert [record.offset for record in topic.partition(0).records(on_damage=lambda _: None)] == [4, 5]


def test_only_compacted_topics_are_compacted(spark: SparkSession, store: hw.Store) -> None:
    store.create_topic("orders")
    with pytest.raises(hw.InvalidConfiguration, match="not set"):
        compact(spark, str(store), "orders")
    store.create_topic("empty", compact=True, partitions=2)
    assert [report.segments for report in compact(spark, str(store), "empty").values()] == [0, 0]


def flip(topic: hw.Topic, segment: int, part: int = 0, at: float = 0.5) -> tuple[Path, int]:
    """One bit of a segment, between its header and its end."""
    partition = topic.partition(part)
    assert isinstance(partition, DirectoryPartition)
    path = sorted(partition.path.glob("*.log"))[segment]
    data = bytearray(path.read_bytes())
    position = 128 + int((len(data) - 128) * at)
    data[position] ^= 4
    path.write_bytes(data)
    return path, position


def produce(store: hw.Store, name: str, count: int, partitions: int = 2) -> hw.Topic:
    topic = store.create_topic(name, partitions=partitions)
    with store.producer(name) as out:
        for number in range(count):
            out.send(b"v%d" % number, key=b"k%d" % (number % 5), timestamp=10**18 + number * 10**9, headers={"h": b"1"})
    return topic


def test_a_replay_is_done_once(spark: SparkSession, store: hw.Store) -> None:
    source = produce(store, "orders", 50)
    target = store.create_topic("copy", partitions=2)
    done = replay(spark, str(store), "orders", "copy")
    assert (done.rows, done.repeated) == (50, False)
    assert [[record[1:] for record in part] for part in content(target)] == [
        [record[1:] for record in part] for part in content(source)
    ]
    assert [record.headers for record in target.partition(0).records()] == [{"h": b"1"}] * len(content(target)[0])
    again = replay(spark, str(store), "orders", "copy")
    assert (again.rows, again.repeated, again.writer) == (0, True, done.writer)
    assert sum(map(len, content(target))) == 50
    named = replay(
        spark, str(store), "orders", "copy", name="again", sql="SELECT key, value FROM source WHERE offset < 3"
    )
    assert (named.rows, named.repeated) == (6, False)
    with pytest.raises(hw.InvalidConfiguration, match="itself"):
        replay(spark, str(store), "orders", "orders")


def run(arguments: Sequence[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """A command of `hw`, as a program sees it."""
    capfd.readouterr()
    code = app(["spark", *arguments], prog_name="hw", standalone_mode=False)
    return (code if isinstance(code, int) else 0), json.loads(capfd.readouterr().out)


def test_the_commands(spark: SparkSession, store: hw.Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert spark.version
    at_store = ["--store", str(store)]
    topic = produce(store, "orders", 60)
    store.create_topic("loud", partitions=3)
    code, said = run(
        ["archive", "orders", *at_store, "--to", str(tmp_path / "a"), "--roll", "--trim", "--grace", "0s"], capfd
    )
    assert code == 0
    assert sum(partition["rows"] for partition in said["partitions"]) == 60
    assert all(bounds.start == bounds.end for bounds in topic.bounds().values())
    sql = "SELECT key, upper(string(value)) AS value FROM source"
    span = ["--from", "2001-09-09T01:47:00Z", "--to", "2001-09-09T01:47:10Z", "--archive", str(tmp_path / "a")]
    code, said = run(["replay", "orders", "loud", *at_store, *span, "--sql", sql], capfd)
    assert (code, said["rows"], said["repeated"]) == (0, 10, False)
    values = sorted(value or b"" for part in content(store.topic("loud")) for _, _, value in part)
    assert values == [b"V%d" % number for number in range(20, 30)]
    span = ["--from", "3", "--to", "end", "--archive", str(tmp_path / "a")]
    code, said = run(["replay", "orders", "loud", *at_store, *span], capfd)
    assert said["rows"] == 54
    changes(store, "state", 50, seed=1)
    code, said = run(["compact", "state", *at_store, "--roll"], capfd)
    assert (code, said["partitions"][0]["damaged"]) == (0, 0)
    assert said["partitions"][0]["removed_records"] > 0
    with pytest.raises(hw.InvalidConfiguration, match="SELEKT"):
        run(["replay", "orders", "loud", *at_store, "--sql", "SELEKT 1"], capfd)
    with pytest.raises(hw.InvalidConfiguration, match="--grace"):
        run(["archive", "orders", *at_store, "--to", str(tmp_path / "a"), "--grace", "soon"], capfd)
