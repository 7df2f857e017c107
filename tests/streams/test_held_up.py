"""A partition whose lock is held by a stopped process holds up nobody but those who need that very partition."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater import GroupBusy, PartitionBusy
from headwater.embedded.directory_group import DirectoryGroup
from headwater.log.files.lock import PartitionLock
from tests.support.backends import OpenDirectoryStore

PATIENCE = 300.0


@contextmanager
def held(partition: Path) -> Iterator[None]:
    """As another process would hold it: a lock belongs to the descriptor that took it."""
    lock = PartitionLock(partition / "lock")
    lock.acquire(1.0)
    try:
        yield
    finally:
        lock.close()


@pytest.mark.parametrize("mode", ["always", "never"])
def test_sync_waits_for_those_partitions_only_that_were_written(
    open_directory_store: OpenDirectoryStore, mode: str
) -> None:
    store = open_directory_store()
    topic = store.create_topic("orders", partitions=2, sync=mode, lock_timeout=0.05)
    topic.partitions()
    with store.producer("orders") as out, held(store.path / "orders" / "0"):
        out.send(b"elsewhere", partition=1)
        out.sync()
        assert topic.bounds()[1].durable_end == 1
        out.send(b"here", partition=0)
        with pytest.raises(PartitionBusy):
            out.sync()


def test_records_that_linger_are_written_while_another_partition_is_held(
    open_directory_store: OpenDirectoryStore,
) -> None:
    store = open_directory_store()
    topic = store.create_topic("orders", partitions=3, lock_timeout=PATIENCE)
    topic.partitions()
    with store.producer("orders", linger=0.01) as out, held(store.path / "orders" / "0"):
        out.send(b"held up", partition=0)
        others = [out.send(b"elsewhere", partition=number) for number in (1, 2)]
        assert [receipt.wait(PATIENCE) for receipt in others] == [0, 0]
        assert topic.bounds()[0].end == 0


def test_a_group_that_is_held_says_by_whom(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    store.create_topic("orders")
    with store.consumer("orders", group="billing") as inbox:
        inbox.poll()
        group = store._coordinator("billing")
        assert isinstance(group, DirectoryGroup)
        group.lock_timeout = 0.05
        fd = os.open(store.path / "__groups" / "billing" / "lock", os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(GroupBusy, match=f"process {os.getpid()}"):
            store.group("billing").reset({})
        os.close(fd)
        inbox.poll()
