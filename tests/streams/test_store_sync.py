"""`store.sync()`: everything that is pending in any producer of the store becomes durable."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import headwater as hw
from headwater.streams import Store, Topic
from headwater.testing import FailingDisk, Failpoint
from tests.support.backends import OpenDirectoryStore, OpenStore, inside

ON_A_CLUSTER = True
NEVER = 3600.0


def durable_ends(topic: Topic) -> list[int]:
    return [bounds.durable_end for bounds in topic.bounds().values()]


def create(store: Store, *names: str) -> list[Topic]:
    return [store.create_topic(name, partitions=2, sync="never") for name in names]


def test_everything_pending_becomes_durable(open_store: OpenStore) -> None:
    store = open_store()
    orders, calls = create(store, "orders", "calls")
    first, second = store.producer("orders", linger=NEVER), store.producer("calls", linger=NEVER)
    for number in range(10):
        first.send(b"x", partition=number % 2)
        second.send(b"y", partition=0)
    assert first.pending + second.pending == 20
    store.sync()
    assert first.pending + second.pending == 0
    assert durable_ends(orders) == [5, 5]
    assert durable_ends(calls) == [10, 0]
    first.send(b"x", partition=0)
    store.sync()
    assert durable_ends(orders) == [6, 5]


def test_records_of_closed_producers_become_durable(open_store: OpenStore) -> None:
    store = open_store()
    [orders] = create(store, "orders")
    with store.producer("orders") as out:
        out.send(b"x", partition=1)
    del out
    store.sync()
    assert durable_ends(orders) == [0, 1]


def test_an_error_of_one_producer_is_raised_when_the_others_are_durable(open_store: OpenStore) -> None:
    store = open_store()
    _, calls = create(store, "orders", "calls")
    doomed, good = store.producer("orders", linger=NEVER), store.producer("calls", linger=NEVER)
    receipt = doomed.send(b"lost")
    good.send(b"kept", partition=0)
    store.delete_topic("orders")
    with pytest.raises((hw.UnknownTopic, hw.PartitionDeleted)):
        store.sync()
    with pytest.raises((hw.UnknownTopic, hw.PartitionDeleted)):
        _ = receipt.offset
    assert durable_ends(calls) == [1, 0]
    store.sync()  # it was raised once, and what is gone is not asked for again


def test_a_transaction_stays_invisible(open_store: OpenStore) -> None:
    store = open_store()
    [orders] = create(store, "orders")
    with store.transaction() as block:
        block.producer("orders", linger=NEVER).send(b"x", partition=0)
        store.sync()
        assert [bounds.end for bounds in orders.bounds().values()] == [0, 0]
    store.sync()
    assert durable_ends(orders) == [1, 0]


def test_a_sync_that_failed_is_repeated(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    bad, good = create(store, "bad", "good")
    for topic in (bad, good):
        with store.producer(topic.name) as out:
            out.send(b"x", partition=0)
    disk.failpoints.append(Failpoint(operation="sync", path=lambda path: "bad" in path.parts, error=errno.EIO))
    with pytest.raises(hw.PartitionPoisoned):
        store.sync()
    assert durable_ends(good) == [1, 0]
    with pytest.raises(hw.PartitionPoisoned):
        store.sync()


def test_unused_partitions_stay_unused(tmp_path: Path) -> None:
    with hw.open(tmp_path / "store") as store:
        create(store, "orders")
        with store.producer("orders", linger=NEVER) as out:
            out.send(b"x", partition=1)
            store.sync()
        assert not inside(store).holds_partition(store.describe_topic("orders"), 0)


def test_a_closed_store_syncs_nothing(open_store: OpenStore) -> None:
    store = open_store()
    store.close()
    with pytest.raises(hw.StoreClosed):
        store.sync()
