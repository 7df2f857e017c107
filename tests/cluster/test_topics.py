"""Topics of a cluster: one key each, made, changed and deleted by compare-and-swap, against a real etcd."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.cluster.control.assignment import default_min_insync, replicas_of
from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.control.topics import ClusterTopics
from headwater.cluster.control.view import ClusterView
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import Put
from headwater.cluster.etcd.keys import BrokerMember, ClusterTopic, Keys, state_from_json, state_to_json
from headwater.core.errors import Damaged, InvalidConfiguration, StoreError, TopicExists, UnknownTopic
from headwater.core.schema import Schema
from headwater.streams.catalog import grown
from tests.support.aio import run
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.members import Node, keys, nodes, topic_of, until

FAULTS = [None, "request lost", "answer lost", "late"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd") as started:
        yield started


@needs_etcd
@pytest.mark.parametrize("fault", FAULTS)
def test_a_topic_made_at_one_broker_is_seen_at_all(server: EtcdServer, fault: Any) -> None:
    async def main() -> None:
        async with nodes([server.address], 3) as brokers:
            maker = brokers[2]
            maker.etcd.faults = [fault] if fault is not None else []
            topic = await maker.topics.create(topic_of("orders", 300, 2))
            for node in brokers:
                await until(lambda: None not in node.states(topic))  # noqa: B023 - at once
                assert node.view.topics == {"orders": topic}
                assert node.view.topic_of(topic.info.uuid) == topic
            spread = Counter(state.leader for state in maker.states(topic) if state is not None)
            assert set(spread.values()) == {100}, "each leads as many"

    run(main())


@needs_etcd
def test_brokers_count_as_soon_as_they_are_registered_and_until_they_are_to_leave(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 3) as (first, second, _):
            hears_nothing = ClusterTopics(first.etcd, ClusterView(first.etcd, keys()))
            assert await hears_nothing.replicas_of_new("orders", None) == 3
            await first.etcd.write([], [Put(keys().leaving(second.broker), b"{}")])
            await until(lambda: first.view.leaving)
            assert await first.topics.replicas_of_new("orders", None) == 2

    run(main())


@needs_etcd
@pytest.mark.parametrize("fault", FAULTS)
def test_of_two_who_make_it_at_once_one_does(server: EtcdServer, fault: Any) -> None:
    async def main() -> None:
        async with nodes([server.address], 2) as brokers:
            wanted = [topic_of("orders", uuid=bytes([number]) * 16) for number in range(2)]
            brokers[0].etcd.faults = [fault] if fault is not None else []
            tries = [node.topics.create(topic) for node, topic in zip(brokers, wanted, strict=True)]
            outcomes = await asyncio.gather(*tries, return_exceptions=True)
            refused = [outcome for outcome in outcomes if isinstance(outcome, TopicExists)]
            made = [outcome for outcome in outcomes if isinstance(outcome, ClusterTopic)]
            assert len(refused) == len(made) == 1
            assert await brokers[0].topics.get("orders") == made[0]

    run(main())


@needs_etcd
@pytest.mark.parametrize("fault", FAULTS)
def test_a_change_is_made_once(server: EtcdServer, fault: Any) -> None:
    async def main() -> None:
        async with nodes([server.address], 2) as (first, second):
            await first.topics.create(topic_of("orders", 1, 2))
            first.etcd.faults = [fault] if fault is not None else []

            def more(topic: ClusterTopic) -> ClusterTopic:
                return replace(topic, info=grown(topic.info, 5))

            def longer(topic: ClusterTopic) -> ClusterTopic:
                return replace(topic, info=replace(topic.info, config=replace(topic.info.config, retention_age=60)))

            changed, _ = await asyncio.gather(
                first.topics.change("orders", more), second.topics.change("orders", longer)
            )
            assert changed.info.partitions == 5
            topic = await second.topics.get("orders")
            assert (topic.info.partitions, topic.info.config.retention_age) == (5, 60)
            await first.topics.led(topic)
            await until(lambda: None not in second.states(topic))
            with pytest.raises(UnknownTopic):
                await first.topics.change("other", more)

    run(main())


@needs_etcd
@pytest.mark.parametrize("fault", FAULTS)
def test_a_deleted_topic_leaves_nothing_and_can_be_made_again(server: EtcdServer, fault: Any) -> None:
    async def main() -> None:
        async with nodes([server.address], 2) as (first, second), Etcd([server.address]) as etcd:
            old = await first.topics.create(topic_of("orders", 150, 1))
            second.etcd.faults = [fault] if fault is not None else []
            assert await second.topics.delete("orders") == old
            with pytest.raises(UnknownTopic):
                await second.topics.delete("orders")
            new = await second.topics.create(topic_of("orders", 2, 1, uuid=b"n" * 16))
            await until(lambda: first.view.partitions.keys() == {(b"n" * 16, 0), (b"n" * 16, 1)})
            assert first.view.topics == {"orders": new}
            assert len((await etcd.read(keys().all_partitions)).items) == 2

    run(main())


@needs_etcd
def test_too_few_brokers_and_impossible_minima_are_refused(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 2) as (first, _):
            with pytest.raises(InvalidConfiguration, match="2 brokers are alive"):
                await first.topics.replicas_of_new("orders", 3)
            with pytest.raises(InvalidConfiguration, match="min_insync must be from 1 to 2, not 3"):
                await first.topics.create(topic_of("orders", 1, 2, 3))
            with pytest.raises(UnknownTopic):
                await first.topics.get("orders")

    run(main())


@needs_etcd
def test_partitions_wait_for_brokers_that_are_away(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 2) as (first, second):
            topic = topic_of("orders", 1, 2)
            await second.membership.leave()
            await until(lambda: 2 not in first.view.members)
            async with Etcd([server.address]) as etcd:  # by one who has not seen that yet
                await etcd.write([], [Put(keys().topic("orders"), topic.to_json())])
            with pytest.raises(StoreError, match="some of its partitions have no leader"):
                await first.topics.led(topic, timeout=1.5)
            again = await Node([server.address], 2).start()
            await first.topics.led(topic)
            await again.membership.leave()

    run(main())


# Keys and values in etcd.


def test_values_are_read_as_they_were_written() -> None:
    schema = Schema(pa.schema([("price", pa.float64()), ("symbol", pa.string())]))
    raw = topic_of("orders", 3, 3)
    topic = replace(raw, info=replace(raw.info, schemas=(schema.id,)), schemas=(schema,))
    assert ClusterTopic.from_json(topic.to_json(), "orders") == topic
    member = BrokerMember(3, 17, "host:6174", b"s" * 16, "1.0", 5, "abc", True)
    assert BrokerMember.from_json(member.to_json(), 3, 17, 5) == member
    state = PartitionState((1, 2), {1: 5, 2: 7}, 2, 7, 9)
    assert state_from_json(state_to_json(state)) == state


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"{}", b"\xff", b'{"topic": {}}', b"1" * 10_000])
def test_values_that_are_none_are_damage(content: bytes) -> None:
    for read in (
        lambda: ClusterTopic.from_json(content, "orders"),
        lambda: BrokerMember.from_json(content, 1, 1),
        lambda: state_from_json(content),
    ):
        with pytest.raises(Damaged):
            read()


def test_a_topic_stands_under_its_own_name_with_its_own_schemas() -> None:
    topic = topic_of("orders")
    with pytest.raises(Damaged):
        ClusterTopic.from_json(topic.to_json(), "other")
    other = Schema(pa.schema([("price", pa.float64())]))
    with pytest.raises(Damaged, match="not those that it names"):
        ClusterTopic.from_json(replace(topic, schemas=(other,)).to_json(), "orders")


def test_keys_say_what_they_are_about() -> None:
    names = Keys("main")
    assert names.subject(names.partition((b"t" * 16, 7))).partition == (b"t" * 16, 7)
    assert names.subject(names.topic("a.b-c")) == ("topics", "a.b-c")
    assert names.subject(names.broker(3)) == ("brokers", "3")
    assert names.subject(names.controller) == ("controller", "")


# Assignment.


@pytest.mark.parametrize("brokers", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("replication", [1, 2, 3])
def test_replicas_are_on_different_brokers_and_spread_evenly(brokers: int, replication: int) -> None:
    ids = range(10, 10 + brokers)
    if replication > brokers:
        with pytest.raises(InvalidConfiguration):
            replicas_of(b"t" * 16, 0, replication, ids)
        return
    rounds = brokers * max(brokers - 1, 1)
    placements = [replicas_of(b"t" * 16, number, replication, ids) for number in range(rounds)]
    assert all(len(set(replicas)) == replication for replicas in placements)
    assert set(Counter(replicas[0] for replicas in placements).values()) == {rounds // brokers}
    held = Counter(broker for replicas in placements for broker in replicas)
    assert set(held.values()) == {rounds * replication // brokers}
    if replication > 1:
        heirs = Counter(replicas[1] for replicas in placements if replicas[0] == 10)
        assert set(heirs.values()) == {1}, "what a broker led is spread over all others when it dies"


def test_one_replica_may_be_away() -> None:
    assert [default_min_insync(replication) for replication in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]
