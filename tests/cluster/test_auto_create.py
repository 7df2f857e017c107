"""Topics that producers create while the brokers of a new cluster are still joining."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

import headwater as hw
from headwater import TooFewBrokers
from headwater.broker import Broker
from headwater.cluster.control.topics import ClusterTopics
from headwater.cluster.etcd.client import Etcd
from headwater.core.config import BrokerConfig
from headwater.embedded.directory_store import DirectoryStore
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub
from tests.support.broker import ANY_PORT
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.patience import wait_until

pytestmark = needs_etcd
PATIENCE = 300.0


class JoiningCluster:
    """A cluster whose brokers come one by one. Producers are refused until there are two."""

    def __init__(self, path: Path, etcd: EtcdServer, stack: ExitStack) -> None:
        self._path = path
        self._etcd = etcd
        self._stack = stack
        self.brokers: list[Broker] = []

    def add(self) -> Broker:
        number = len(self.brokers) + 1
        store = self._stack.enter_context(DirectoryStore(self._path / str(number), exclusive=True))
        config = BrokerConfig(broker_id=number, replication=2, auto_create_partitions=2)
        broker = Broker(store, config, listen=ANY_PORT, etcd=lambda: Etcd([self._etcd.address])).start()
        self._stack.callback(broker.stop)
        self.brokers.append(broker)
        return broker

    def open(self) -> hw.Store:
        return self._stack.enter_context(hw.open(f"hw://{self.brokers[0].address}"))


@pytest.fixture
def joining(tmp_path: Path) -> Iterator[JoiningCluster]:
    with ExitStack() as stack:
        etcd = EtcdServer(tmp_path / "etcd").start()
        stack.callback(etcd.kill)
        cluster = JoiningCluster(tmp_path, etcd, stack)
        cluster.add()
        yield cluster


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that were refused because brokers are missing."""
    names: list[str] = []
    replicas_of_new = ClusterTopics.replicas_of_new

    async def noted(topics: ClusterTopics, name: str, wanted: int | None) -> int:
        try:
            return await replicas_of_new(topics, name, wanted)
        except TooFewBrokers:
            names.append(name)
            raise

    monkeypatch.setattr(ClusterTopics, "replicas_of_new", noted)
    return names


def test_a_producer_waits_for_the_brokers_that_its_topic_needs(joining: JoiningCluster, refusals: list[str]) -> None:
    store = joining.open()
    with pytest.raises(TooFewBrokers, match="cannot have 2 replicas: 1 brokers are alive") as refused:
        store.create_topic("orders", replication=2)
    assert (refused.value.replication, refused.value.alive) == (2, 1)
    with pytest.raises(TooFewBrokers):
        store.producer("orders", create=True, replication=2, block_timeout=0.0)
    refusals.clear()
    with ThreadPoolExecutor() as threads:
        producers = [
            threads.submit(
                lambda: store.producer("orders", create=True, partitions=4, replication=2, block_timeout=PATIENCE)
            )
            for _ in range(2)
        ]
        wait_until(lambda: len(refusals) > 3)
        assert not any(producer.done() for producer in producers)
        joining.add()
        for number, producer in enumerate(producers):
            with producer.result(PATIENCE) as out:
                out.send(b"%d" % number)
    info = store.describe_topic("orders")
    assert (info.partitions, info.replication) == (4, 2)
    assert store.topic("orders").scan().read_all().num_rows == 2


def test_plain_records_wait_for_the_brokers_that_their_topic_needs(
    joining: JoiningCluster, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.broker.rpc.producing._FORWARDING_MS", 60_000)
    with grpc.insecure_channel(str(joining.brokers[0].address)) as channel, ThreadPoolExecutor() as threads:
        stub: Any = Stub(channel)
        request = pb.ProduceRequest(topic="plain", records=[pb.Record(value=b"x")])
        produced = threads.submit(stub.Produce, request, timeout=PATIENCE)
        wait_until(lambda: len(refusals) > 2)
        joining.add()
        assert len(produced.result(PATIENCE).places) == 1
    assert joining.open().describe_topic("plain").partitions == 2


def test_of_several_who_produce_at_once_one_creates_the_topic(joining: JoiningCluster) -> None:
    joining.add()
    with ThreadPoolExecutor() as threads, grpc.insecure_channel(str(joining.brokers[0].address)) as channel:
        stub: Any = Stub(channel)
        request = pb.ProduceRequest(topic="plain", records=[pb.Record(value=b"x")])
        answers = [threads.submit(stub.Produce, request, timeout=PATIENCE) for _ in range(8)]
        assert sum(len(answer.result(PATIENCE).places) for answer in answers) == 8
    assert joining.open().topic("plain").scan().read_all().num_rows == 8
