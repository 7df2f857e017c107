"""A cluster's internal topics get more replicas when more brokers have come."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import TopicPartition
from headwater.broker import Broker
from headwater.client.cluster_status import look
from headwater.client.credentials import Credentials
from headwater.cluster.control.growing import Growing
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.keys import ClusterTopic
from headwater.cluster.internal import number_of
from headwater.cluster.node import ClusterNode
from headwater.core.config import BrokerConfig
from headwater.core.names import GROUPS
from headwater.embedded.directory_store import DirectoryStore
from headwater.streams.group import Commit
from tests.support.backends import clustered
from tests.support.broker import ANY_PORT
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.patience import wait_until

pytestmark = needs_etcd
PATIENCE = 300.0
_PARTITIONS = 2


class GrowingCluster:
    """A cluster to which brokers are added."""

    def __init__(self, path: Path, etcd: EtcdServer, stack: ExitStack) -> None:
        self._path = path
        self._etcd = etcd
        self._stack = stack
        self.brokers: list[Broker] = []

    def add(self, **options: int) -> Broker:
        """Another broker."""
        number = len(self.brokers) + 1
        store = self._stack.enter_context(DirectoryStore(self._path / str(number), exclusive=True))
        config = BrokerConfig(broker_id=number, internal_partitions=_PARTITIONS, **options)  # type: ignore[arg-type]
        broker = Broker(store, config, listen=ANY_PORT, etcd=lambda: Etcd([self._etcd.address]))
        broker.start()
        self._stack.callback(broker.stop)
        self.brokers.append(broker)
        return broker

    def node(self, broker: int = -1) -> ClusterNode:
        return clustered(self.brokers[broker]).node

    def topic(self) -> ClusterTopic:
        """Return the topic of groups, as the last broker sees it."""
        return self.node().membership.view.topics[GROUPS]

    def replicas(self) -> list[set[int]]:
        """Return the brokers that hold each partition of that topic and are in sync."""
        view, uuid = self.node().membership.view, self.topic().info.uuid
        states = [view.partitions[uuid, number][0] for number in range(_PARTITIONS)]
        return [set(state.replicas) & set(state.in_sync) for state in states]

    def thinly_kept(self) -> list[str]:
        partitions: list[str] = look([self.brokers[-1].address], Credentials())["thinly_kept"]
        return partitions

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the event loop of the last broker."""
        loop = self.brokers[-1]._loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE)

    def address(self) -> str:
        return f"hw://{','.join(str(broker.address) for broker in self.brokers)}"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GrowingCluster]:
    monkeypatch.setattr("headwater.cluster.control.growing._INTERVAL", 0.05)
    monkeypatch.setattr("headwater.cluster.control.replication_factor._INTERVAL", 0.05)
    with ExitStack() as stack:
        etcd = EtcdServer(tmp_path / "etcd").start()
        stack.callback(etcd.kill)
        yield GrowingCluster(tmp_path, etcd, stack)


def commit(store: hw.Store, offset: int) -> None:
    key = (store.describe_topic("orders").uuid, 0)
    assert not store.group("g").commit(None, {TopicPartition("orders", 0): Commit(key, offset)}, known={key: 0})


def test_the_first_broker_of_a_cluster_is_not_all_that_groups_ever_have(cluster: GrowingCluster) -> None:
    cluster.add()
    with hw.open(cluster.address()) as store:
        store.create_topic("orders")
        commit(store, 7)
    assert (cluster.topic().replication, cluster.topic().min_insync, cluster.replicas()) == (1, 1, [{1}, {1}])
    assert cluster.thinly_kept() == []
    cluster.add()
    wait_until(lambda: cluster.replicas() == [{1, 2}, {1, 2}])
    cluster.add()
    wait_until(lambda: cluster.replicas() == [{1, 2, 3}, {1, 2, 3}] and cluster.topic().min_insync == 2)
    assert not [name for name in cluster.thinly_kept() if name.startswith(GROUPS)]
    number = number_of("g", _PARTITIONS)
    local = [cluster.node(broker)._state.by_partition[TopicPartition(GROUPS, number)] for broker in range(3)]
    wait_until(lambda: {replica.min_insync for replica in local} == {2})
    with hw.open(cluster.address()) as store:
        commit(store, 8)
        cluster.brokers[0].stop()
        wait_until(lambda: 1 not in cluster.node().membership.view.members)
        assert [position.offset for position in store.group("g").committed().values()] == [8]


def test_it_is_kept_as_often_as_the_configuration_says(cluster: GrowingCluster) -> None:
    cluster.add(replication=1)
    with hw.open(cluster.address()) as store:
        store.create_topic("orders")
        commit(store, 7)
    cluster.add(replication=1)
    cluster.run(Growing(cluster.node(), 1).grow(GROUPS))
    assert (cluster.topic().replication, cluster.topic().min_insync) == (1, 1)
    assert cluster.replicas() == [{1}, {1}]
    assert {f"{GROUPS}/{number}" for number in range(_PARTITIONS)} <= set(cluster.thinly_kept())
