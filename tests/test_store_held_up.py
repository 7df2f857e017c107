"""A partition whose lock is held by a stopped process holds up nobody but those who need that very partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater import PartitionBusy
from headwater.log.lock import PartitionLock
from tests.backends import OpenDirectoryStore


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
