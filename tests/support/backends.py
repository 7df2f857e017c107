"""The backends: every test of a partition's or a store's behaviour runs on each of them.

A new backend is one more entry in `BACKENDS`, or in `STORES`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol

from examples.sqlite_store import open_sqlite
from headwater import PartitionConfig, Store
from headwater.broker import Broker
from headwater.broker.clustered.backend import ClusteredBackend
from headwater.broker.clustered.coordinator import Coordinator
from headwater.client.store import RemoteStore
from headwater.cluster.etcd.client import Etcd
from headwater.core.address import Address
from headwater.core.config import BrokerConfig, ClientConfig
from headwater.embedded.directory_store import DirectoryStore
from headwater.embedded.memory_store import MemoryStore
from headwater.log import Clock, DirectoryPartition, Disk, MemoryPartition, Partition
from headwater.log.clock import REAL_CLOCK
from headwater.log.files.disk import REAL_DISK
from tests.support.etcd_server import EtcdServer


def _memory(_: Path, config: PartitionConfig | None, clock: Clock) -> Partition:
    return MemoryPartition(config, clock=clock)


def _directory(path: Path, config: PartitionConfig | None, clock: Clock) -> Partition:
    return DirectoryPartition(path, config, clock=clock)


BACKENDS: Final[dict[str, Callable[[Path, PartitionConfig | None, Clock], Partition]]] = {
    "memory": _memory,
    "directory": _directory,
}


def _memory_store(_: Path, clock: Clock) -> Store:
    return MemoryStore(clock=clock)


def _example_store(path: Path, clock: Clock) -> Store:
    path.parent.mkdir(parents=True, exist_ok=True)
    return open_sqlite(f"sqlite://{path}.db", clock=clock)


def _directory_store(path: Path, clock: Clock) -> Store:
    return DirectoryStore(path, clock=clock)


class _Served:
    """A broker over a store in a directory, in this process, for as long as someone is connected to it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.store = DirectoryStore(path, clock=clock, exclusive=True)
        self.broker = Broker(self.store, BrokerConfig(steward=False), listen=Address("127.0.0.1", 0)).start()
        self.users = 0

    def stop(self) -> None:
        self.broker.stop()
        self.store.close()


_served: Final[dict[Path, _Served]] = {}


class BrokerStore(RemoteStore):
    """A store behind a broker that is there as long as the store. All handles of one path share the broker."""

    def __init__(self, path: Path, clock: Clock, *, direct: bool = True) -> None:
        """With `direct` as on the same machine, else as from another one."""
        self._path = path
        self.served = _served.get(path) or _Served(path, clock)
        _served[path] = self.served
        self.served.users += 1
        super().__init__([self.served.broker.address], config=ClientConfig(direct=direct))

    def close(self) -> None:
        if self._closed:
            return
        try:
            super().close()
        finally:
            self.served.users -= 1
            if not self.served.users:
                del _served[self._path]
                self.served.stop()


def inside(store: Store) -> Store:
    """The embedded store that does the work: what a test patches, or looks at, below the interface."""
    return store.served.store if isinstance(store, BrokerStore) else store


STORES: Final[dict[str, Callable[[Path, Clock], Store]]] = {
    "memory": _memory_store,
    "directory": _directory_store,
    "example": _example_store,
    "broker": partial(BrokerStore, direct=False),
    "broker nearby": BrokerStore,
}


class SharedClock(Clock):
    """The clock of a cluster that outlives the tests: the clock of whichever runs."""

    def __init__(self) -> None:
        self.present: Clock = REAL_CLOCK

    def now_ns(self) -> int:
        return self.present.now_ns()

    def boot_ns(self) -> int:
        return self.present.boot_ns()

    def boot_id(self) -> str:
        return self.present.boot_id()


class SharedCluster:
    """An etcd and three brokers in this process, for all tests that want one; each test finds it empty."""

    def __init__(self, path: Path) -> None:
        self.clock = SharedClock()
        self._etcd = EtcdServer(path / "etcd").start()
        self._stores = [DirectoryStore(path / str(number), clock=self.clock, exclusive=True) for number in range(3)]
        self.brokers = [
            Broker(
                store,
                BrokerConfig(broker_id=number, internal_partitions=2),
                listen=Address("127.0.0.1", 0),
                etcd=lambda: Etcd([self._etcd.address]),
            )
            for number, store in enumerate(self._stores)
        ]
        for broker in self.brokers:
            broker.start()

    def open(self, clock: Clock) -> Store:
        """A handle of the cluster, which goes by this clock from now on."""
        self._go_by(clock)
        return RemoteStore([broker.address for broker in self.brokers])

    def _go_by(self, clock: Clock) -> None:
        """As if the machines were started anew with another clock, which brokers look at when they start."""
        self.clock.present = clock
        for store in self._stores:
            store.elapsed.look()

    def clear(self) -> None:
        """Remove what a test has left."""
        with self.open(REAL_CLOCK) as store:
            for name in store.topics():
                store.delete_topic(name)
        for broker in self.brokers:
            backend, loop = clustered(broker), broker._loop
            assert loop is not None
            for coordinator in backend.transactions._writers.all().values():
                coordinator._transaction_log._writers.clear()  # else they are known for ever
            for one in backend.group_home.coordinators.all().values():
                asyncio.run_coroutine_threadsafe(one.do(partial(_forget_all, one.rules)), loop).result(60)

    def stop(self) -> None:
        """End it all."""
        for broker in self.brokers:
            broker.stop()
        for store in self._stores:
            store.close()
        self._etcd.kill()


def clustered(broker: Broker) -> ClusteredBackend:
    """The backend of a broker in a cluster."""
    assert broker._core is not None
    assert isinstance(broker._core.backend, ClusteredBackend)
    return broker._core.backend


def _forget_all(rules: Coordinator) -> None:
    for name in list(rules.groups):
        for key in rules.groups[name].committed():
            rules.groups[name]._unset(key)
        rules.groups.pop(name).forget()


class OpenPartition(Protocol):
    """The fixture `open_partition`: each call opens a new, empty partition."""

    def __call__(self, config: PartitionConfig | None = None, *, clock: Clock = REAL_CLOCK) -> Partition: ...


class OpenDirectory(Protocol):
    """The fixture `open_directory`: each call opens the partition with this name, once more."""

    def __call__(
        self,
        config: PartitionConfig | None = None,
        *,
        name: str = "log",
        disk: Disk = REAL_DISK,
        clock: Clock = REAL_CLOCK,
    ) -> DirectoryPartition: ...


class OpenStore(Protocol):
    """The fixture `open_store`: each call opens a new, empty store."""

    def __call__(self, *, clock: Clock = REAL_CLOCK) -> Store: ...


class OpenDirectoryStore(Protocol):
    """The fixture `open_directory_store`: each call opens the store with this name, once more."""

    def __call__(self, *, name: str = "store", disk: Disk = REAL_DISK, clock: Clock = REAL_CLOCK) -> DirectoryStore: ...


Handles = Callable[[], Store]
"""The fixture `handle`: handles of one and the same store, in memory the same, on disk another each time."""


@contextmanager
def temporary(backend: str, config: PartitionConfig | None = None, *, clock: Clock = REAL_CLOCK) -> Iterator[Partition]:
    """A new partition that is gone after the block: for tests in which Hypothesis needs many."""
    with TemporaryDirectory() as directory, BACKENDS[backend](Path(directory) / "log", config, clock) as partition:
        yield partition
