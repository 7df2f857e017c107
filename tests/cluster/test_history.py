"""The numbers of a cluster: what any of its brokers tells of all, and what whoever leads the history notes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater import Store, TopicPartition
from headwater.broker import Broker
from headwater.broker.clustered.peers import GroupReader, GroupReaders
from headwater.client.store import RemoteStore
from headwater.core.errors import BrokerUnavailable, InvalidConfiguration, PermissionDenied
from headwater.core.names import HISTORY
from headwater.log import encode
from headwater.log.clock import REAL_CLOCK
from headwater.streams.history import Sample, entries
from headwater.streams.survey import Survey
from headwater.v1 import broker_pb2 as pb
from tests.support.backends import SharedCluster, clustered
from tests.support.etcd_server import needs_etcd
from tests.support.patience import Patience

pytestmark = needs_etcd
PATIENCE = 300.0
PLACE = TopicPartition(HISTORY, 0)


@pytest.fixture
def store(cluster: SharedCluster) -> Iterator[Store]:
    with cluster.open(REAL_CLOCK) as opened:
        yield opened


def in_loop(broker: Broker, work: Coroutine[Any, Any, Any]) -> Any:
    """Do something in a broker's event loop."""
    assert broker._loop is not None
    return asyncio.run_coroutine_threadsafe(work, broker._loop).result(PATIENCE)


def create(store: Store, name: str, partitions: int, replication: int) -> None:
    assert isinstance(store, RemoteStore)
    request = pb.CreateTopicRequest(name=name, partitions=partitions, replication=replication)
    store.leaders.connection.call("CreateTopic", request)


def write(store: Store, topic: str, count: int, partitions: int) -> None:
    with store.producer(topic) as out:
        for number in range(count):
            out.send(b"x" * 10, partition=number % partitions)


def led_by(cluster: SharedCluster) -> Broker:
    """The broker that leads the history, which is made if there is none."""
    patience = Patience(PATIENCE)
    while not patience.exhausted():
        for broker in cluster.brokers:
            backend = clustered(broker)
            if backend.node.leadership.leads(PLACE) and backend.history._led is not None:
                return broker
            if HISTORY not in backend.node.membership.view.topics:
                in_loop(broker, backend.history.note(time.time_ns()))
        time.sleep(0.02)
    raise AssertionError("nobody leads the history")


def test_any_broker_tells_the_numbers_of_all_and_makes_nothing_of_what_others_hold(
    cluster: SharedCluster, store: Store
) -> None:
    create(store, "spread", 3, replication=1)
    write(store, "spread", 30, partitions=3)
    for broker in cluster.brokers:
        with RemoteStore([broker.address]) as asked:
            (topic,) = asked.statistics().topics
            assert (topic.name, topic.records, [partition.end for partition in topic.partitions]) == (
                "spread",
                30,
                [10, 10, 10],
            )
            assert asked.topic("spread").statistics().records == 30
        broker.metrics()
    held = [path.name for broker in cluster.brokers for path in Path(str(broker._store), "spread").glob("[0-9]")]
    assert sorted(held) == ["0", "1", "2"]


def test_a_topic_whose_leaders_do_not_answer_is_named(
    cluster: SharedCluster, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, "spread", 3, replication=1)
    write(store, "spread", 3, partitions=3)
    asked = cluster.brokers[0]
    node = clustered(asked).node
    call = node.call_broker

    async def silent(broker: int, method: str, request: Any, timeout: float) -> Any:
        if method == "GetStatistics":
            raise BrokerUnavailable(f"broker {broker}", method, 0, "it says nothing")
        return await call(broker, method, request, timeout)

    monkeypatch.setattr(node, "call_broker", silent)
    with RemoteStore([asked.address]) as remote:
        survey = Survey.of(remote, time.time_ns())
    assert (set(survey.infos), set(survey.topics)) == ({"spread"}, set())
    assert "led by nobody" in survey.problems["topic spread"]


def test_whoever_leads_the_history_notes_rates_and_lags_of_all(cluster: SharedCluster, store: Store) -> None:
    create(store, "orders", 3, replication=1)
    write(store, "orders", 30, partitions=3)
    led_by(cluster)
    with store.consumer("orders", group="billing") as billing, store.consumer("orders", group="idle") as idle:
        left = 10
        while left:
            for record in billing.poll(left, timeout=300):
                billing.ack(record)
                left -= 1
        billing.commit()
        idle.poll(1, timeout=300)
        since = time.time_ns()
        for _ in range(2):
            for broker in cluster.brokers:
                in_loop(broker, clustered(broker).history.note(time.time_ns()))
            write(store, "orders", 3, partitions=3)
        patience = Patience(PATIENCE)
        samples: list[Sample] = []
        while len(samples) < 2 and not patience.exhausted():
            samples = [entry for _, entry in entries(store, since) if isinstance(entry, Sample)]
    first, second, *_ = samples
    assert (first.topics["orders"][0], second.topics["orders"][0]) == (30, 33)
    assert 0 < first.topics["orders"][1] < second.topics["orders"][1]
    assert first.lags == {"billing": {"orders": 20}, "idle": {"orders": 30}}
    assert second.lags["billing"] == {"orders": 23}


def test_who_has_no_position_yet_is_behind_by_nothing_and_needs_everything(
    cluster: SharedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = clustered(cluster.brokers[0]).group_home
    readers = [GroupReader("new", (b"", 0), None), GroupReader("new", (b"", 1), 7)]

    async def answers() -> list[GroupReaders]:
        return [GroupReaders([], ["new", "empty"], readers)]

    monkeypatch.setattr(groups, "_ask_all", answers)
    assert in_loop(cluster.brokers[0], groups.positions()) == {"new": {(b"", 1): 7}, "empty": {}}
    assert in_loop(cluster.brokers[0], groups.readers()) == {(b"", 0): 0, (b"", 1): 7}


def test_the_history_is_bounded_and_written_by_brokers_only(cluster: SharedCluster, store: Store) -> None:
    create(store, "orders", 1, replication=3)
    keeper = led_by(cluster)
    info = store.describe_topic(HISTORY)
    assert (info.partitions, info.config.retention_bytes) == (1, 16 << 20)
    with pytest.raises(InvalidConfiguration, match="cluster's own topic"):
        store.delete_topic(HISTORY)
    with pytest.raises(PermissionDenied):
        store.topic(HISTORY).partition(0).append(encode([b"forged"]))

    history = clustered(keeper).history
    assert history._led is not None
    node, (local, epoch, _) = clustered(keeper).node, history._led
    before = local.log.partition.config
    local.log.partition.configure(replace(before, segment_bytes=4096, retention_bytes=8192))
    for _ in range(8):
        history._append(local, epoch, encode([b"x" * 3000]))

    async def acknowledged() -> None:
        while local.replica.high_watermark < local.log.partition.bounds().end:
            local.appended()
            await asyncio.sleep(0.01)
        await node.cleaning.clean({}, local)

    in_loop(keeper, acknowledged())
    local.log.partition.configure(before)
    assert local.log.partition.bounds().start > 0
