"""The activity of partitions, topics and stores, and of groups, is counted the same way over every backend."""

from __future__ import annotations

from headwater.log import Counters
from headwater.log.files.counters import sum_counters
from headwater.streams import Store
from headwater.streams.position import Position
from tests.support.backends import OpenStore
from tests.support.patience import wait_until


def test_the_counters_of_a_store_are_the_sums_of_its_partitions(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders", partitions=2, compression="zstd")
    store.create_topic("unused")
    with store.producer("orders") as producer:
        for number in range(2):
            producer.send(b"x" * 5000, partition=number)
        producer.flush()
        producer.send(b"small", partition=0)
    statistics = store.topic("orders").statistics()
    assert [partition.counters.compressed_frames for partition in statistics.partitions] == [1, 1]
    assert statistics.counters == sum_counters(partition.counters for partition in statistics.partitions)
    assert (statistics.counters.compressed_frames, statistics.counters.compression_skipped) == (2, 1)
    assert statistics.counters.compression_bytes_in >= 10_000 > statistics.counters.compression_bytes_out > 0
    assert store.topic("unused").statistics().counters == Counters()
    assert store.statistics().counters == statistics.counters


def test_rotations_and_retention_are_counted(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", retention_bytes=0)
    for _ in range(3):
        with store.producer("orders") as producer:
            producer.send(b"x" * 1000)
        topic.partition(0).roll()
    removed = topic.partition(0).retain(keep_from=1)
    counters = topic.statistics().counters
    assert (counters.rotations, counters.retention_runs, counters.removed_segments) == (3, 1, 1)
    assert (counters.retention_records, counters.retention_bytes) == (1, removed.bytes)
    assert (counters.protected_segments, counters.failed_retentions) == (2, 0)
    assert counters.protected_bytes > 2000


def test_a_group_tells_how_often_it_has_committed(open_store: OpenStore) -> None:
    store = open_store()
    store.create_topic("orders")
    with store.producer("orders") as producer:
        for value in (b"a", b"b", b"c"):
            producer.send(value)
    with store.consumer("orders", group="billing", start="earliest") as consumer:
        commits: list[int] = []
        while len(commits) < 3:
            for record in consumer.poll(max_records=1, timeout=1.0):
                consumer.ack(record)
                consumer.commit()
                wait_until(lambda: position_of(store).offset > len(commits))
                commits.append(store.group("billing").describe().commits)
    assert [number - commits[0] for number in commits] == [0, 1, 2]
    assert commits[0] > 0
    assert position_of(store).commits == commits[-1]


def position_of(store: Store) -> Position:
    (position,) = store.group("billing").committed().values()
    return position
