"""The replication factor of a topic is chosen when it is created and can be changed: replicas come and go meanwhile."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import headwater as hw
from headwater.cluster.control.balancing import HeldReplica, balanced
from headwater.cluster.control.metadata import Move, PartitionState
from headwater.cluster.control.moves import PlannedMove
from headwater.cluster.control.replication_factor import ReplicationFactors, with_replication
from headwater.cluster.etcd.keys import BrokerMember, ClusterTopic
from headwater.cluster.node import ClusterNode
from headwater.core.errors import InvalidConfiguration
from headwater.log.clock import REAL_CLOCK
from tests.support.aio import run
from tests.support.backends import SharedCluster, clustered
from tests.support.etcd_server import needs_etcd
from tests.support.members import topic_of
from tests.support.patience import wait_until
from tests.support.processes import hw as command

# The wish of a topic.


def numbers(topic: ClusterTopic) -> tuple[int, int, int]:
    return topic.replication, topic.min_insync, topic.next_min_insync


def test_a_minimum_that_nobody_has_chosen_follows_the_number_of_replicas() -> None:
    topic = with_replication(topic_of("t", 1, 2), 3, None)
    assert numbers(topic) == (3, 1, 2), "the higher minimum holds later"
    assert with_replication(topic, 3, None) == topic, "asking twice changes nothing"
    assert numbers(with_replication(topic, 2, None)) == (2, 1, 0)
    assert numbers(with_replication(topic_of("t", 1, 3), 1, None)) == (1, 1, 0), "a lower one holds at once"
    assert numbers(with_replication(topic_of("t", 1, 3), None, 3)) == (3, 2, 3)
    assert numbers(with_replication(topic_of("t", 1, 3, 3), 2, None)) == (2, 2, 0), "a chosen one stays if it can"
    assert numbers(with_replication(topic_of("t", 1, 3, 1), 5, None)) == (5, 1, 0)


def test_a_minimum_beyond_the_replicas_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="min_insync must be from 1 to 2, not 3"):
        with_replication(topic_of("t", 1, 3), 2, 3)


def test_what_a_topic_waits_for_is_kept_in_etcd() -> None:
    topic = with_replication(topic_of("t", 1, 2), 3, None)
    assert ClusterTopic.from_json(topic.to_json(), "t") == topic


# The places of replicas.


def test_brokers_that_are_away_get_nothing_new_and_are_the_first_to_be_spared() -> None:
    held = {(b"a" * 16, 0): HeldReplica((1, 2, 3), 2), (b"b" * 16, 0): HeldReplica((2, 4), 3)}
    placed = balanced(held, [1, 2, 4], keeping=[3], level=False)
    assert placed == {(b"a" * 16, 0): (1, 2), (b"b" * 16, 0): (2, 4, 1)}
    assert balanced({(b"a" * 16, 0): HeldReplica((3, 1), 2)}, [1, 2], keeping=[3]) == {(b"a" * 16, 0): (3, 1)}
    with pytest.raises(InvalidConfiguration, match="has 3 replicas, and only 2 brokers"):
        balanced({(b"a" * 16, 0): HeldReplica((1,), 3)}, [1, 2], keeping=[3])


class FakeNode:
    """A node that notes what is begun, and nothing happens."""

    def __init__(self, topic: ClusterTopic, *states: PartitionState, brokers: int = 4) -> None:
        members = {number: BrokerMember(number, 10 * number, "", b"") for number in range(1, brokers + 1)}
        self.partitions = {(topic.info.uuid, number): (state, 7) for number, state in enumerate(states)}
        self.view = SimpleNamespace(
            topics={topic.info.name: topic}, partitions=self.partitions, members=members, leaving=frozenset({4})
        )
        self.membership = SimpleNamespace(view=self.view)
        self.moves = self.topics = self
        self.begun: list[tuple[int, ...]] = []

    async def begin(self, moves: list[PlannedMove]) -> None:
        self.begun += [move.to for move in moves]

    async def change(self, name: str, change: Any) -> None:
        self.view.topics[name] = change(self.view.topics[name])

    def step(self) -> list[tuple[int, ...]]:
        """Take a step: the replicas that partitions are to have."""
        self.begun.clear()
        run(ReplicationFactors(cast("ClusterNode", self)).step("t"))
        return self.begun


def test_partitions_get_the_number_of_replicas_that_their_topic_asks_for() -> None:
    topic = with_replication(topic_of("t", 2, 1), 2, None)
    assert FakeNode(topic, PartitionState((1,), {1: 10}), PartitionState((2, 1), {1: 10})).step() == [(1, 3)]
    assert FakeNode(topic, PartitionState((1,), {1: 10})).step() == [], "not before all partitions are made"
    fewer = with_replication(topic_of("t", 1, 3), 2, None)
    assert FakeNode(fewer, PartitionState((5, 2, 3), {2: 20, 3: 30})).step() == [(2, 3)], "the one that is away goes"
    on_its_way = PartitionState((1, 2, 3), {1: 10, 2: 20}, move=Move((1, 2, 3), (1, 2)))
    assert FakeNode(topic_of("t", 1, 3), on_its_way).step() == []
    assert FakeNode(topic_of("t", 1, 2), on_its_way).step() == [(1, 2)], "a change is taken back by another one"


def test_a_higher_minimum_holds_once_every_partition_has_so_many_in_sync() -> None:
    topic = with_replication(topic_of("t", 2, 3), None, 3)
    whole, thin = ({1: 10, 2: 20, 3: 30}, {1: 10, 2: 20})
    node = FakeNode(topic, PartitionState((1, 2, 3), whole), PartitionState((1, 2, 3), thin))
    assert (node.step(), numbers(node.view.topics["t"])) == ([], (3, 2, 3))
    node.partitions[topic.info.uuid, 1] = (PartitionState((1, 2, 3), whole), 8)
    assert (node.step(), numbers(node.view.topics["t"])) == ([], (3, 3, 0))


# With brokers.


def states(cluster: SharedCluster, name: str) -> list[PartitionState]:
    view = clustered(cluster.brokers[0]).node.membership.view
    topic = view.topics[name]
    return [view.partitions[topic.info.uuid, number][0] for number in range(topic.info.partitions)]


def kept(cluster: SharedCluster, name: str, replicas: int) -> bool:
    """Return whether every partition has so many replicas, all in sync, and none moves."""
    return all(
        len(state.replicas) == replicas == len(state.in_sync) and state.move is None for state in states(cluster, name)
    )


@needs_etcd
def test_a_topic_is_kept_as_often_as_its_creator_says(cluster: SharedCluster) -> None:
    with cluster.open(REAL_CLOCK) as store:
        info = store.create_topic("t", partitions=2, replication=2, min_insync=2).info
        assert (info.replication, info.min_insync) == (2, 2)
        assert store.describe_topic("t") == info
        wait_until(lambda: kept(cluster, "t", 2))
        assert store.create_topic("usual").info.replication == 3
        with pytest.raises(InvalidConfiguration, match="cannot have 4 replicas: 3 brokers are alive"):
            store.create_topic("more", replication=4)
        with pytest.raises(InvalidConfiguration, match="min_insync must be from 1 to 3, not 4"):
            store.create_topic("more", min_insync=4)
        assert store.topics() == ["t", "usual"]


@needs_etcd
def test_replicas_come_and_go_when_the_factor_is_changed(cluster: SharedCluster) -> None:
    with cluster.open(REAL_CLOCK) as store:
        store.create_topic("t", partitions=3, replication=2)
        with store.producer("t") as out:
            for number in range(30):
                out.send(b"%d" % number, key=b"%d" % number)
        with pytest.raises(InvalidConfiguration, match="cannot have 4 replicas"):
            store.alter_topic("t", replication=4)
        assert store.alter_topic("t", replication=3, retention_segments=7).replication == 3
        wait_until(lambda: kept(cluster, "t", 3))
        wait_until(lambda: store.describe_topic("t").min_insync == 2)
        assert store.alter_topic("t", min_insync=3).min_insync == 3, "all have three in sync: it holds at once"
        assert store.alter_topic("t", replication=1).min_insync == 1
        wait_until(lambda: kept(cluster, "t", 1))
        values = store.topic("t").scan().read_all()["value"].to_pylist()
        assert sorted(map(int, values)) == list(range(30))
        info = store.describe_topic("t")
        assert (info.replication, info.config.retention_segments) == (1, 7)


@needs_etcd
def test_a_change_whose_broker_dies_is_carried_out_and_only_another_change_takes_it_back(
    cluster: SharedCluster,
) -> None:
    backend, loop = clustered(cluster.brokers[1]), cluster.brokers[1]._loop
    assert loop is not None
    with cluster.open(REAL_CLOCK) as store:
        store.create_topic("t", replication=1)
        change = backend.node.topics.change("t", lambda topic: with_replication(topic, 2, None))
        asyncio.run_coroutine_threadsafe(change, loop).result(60)  # and nothing more
        wait_until(lambda: states(cluster, "t")[0].wanted != states(cluster, "t")[0].replicas or kept(cluster, "t", 2))
        asyncio.run_coroutine_threadsafe(backend.node.moves.cancel(), loop).result(60)
        wait_until(lambda: kept(cluster, "t", 2))
        store.alter_topic("t", replication=1)
        wait_until(lambda: kept(cluster, "t", 1))


@needs_etcd
def test_the_command_chooses_changes_and_shows_the_factor(cluster: SharedCluster) -> None:
    where = ("--store", f"hw://{cluster.brokers[0].address}")
    made = command("topic", "create", "t", "--replication", 2, "--min-insync", 2, *where)
    assert made.returncode == 0, made.stderr
    assert (json.loads(made.stdout)["replication"], json.loads(made.stdout)["min_insync"]) == (2, 2)
    changed = command("topic", "alter", "t", "--min-insync", 1, "--replication", 3, *where)
    assert changed.returncode == 0, changed.stderr
    described = json.loads(command("topic", "describe", "t", *where).stdout)
    assert (described["replication"], described["min_insync"]) == (3, 1)
    wait_until(lambda: kept(cluster, "t", 3))
    refused = command("topic", "alter", "t", "--min-insync", 4, *where)
    assert refused.returncode == 1
    assert "min_insync must be from 1 to 3" in refused.stderr


@needs_etcd
def test_the_factor_is_chosen_and_changed_in_an_event_loop(cluster: SharedCluster) -> None:
    async def main() -> None:
        async with hw.aio.open(f"hw://{cluster.brokers[0].address}") as store:
            topic = await store.create_topic("t", replication=2, min_insync=1)
            info = await topic.info()
            assert (info.replication, info.min_insync) == (2, 1)
            assert (await store.alter_topic("t", replication=1)).replication == 1

    run(main())


@needs_etcd
def test_a_manifest_chooses_and_changes_the_factor(cluster: SharedCluster, tmp_path: Path) -> None:
    def applied(replication: int, min_insync: int) -> list[str]:
        numbers = f"replication: {replication}, min_insync: {min_insync}"
        (tmp_path / "m.yaml").write_text(f"topics:\n  t: {{partitions: 1, {numbers}}}\n")
        done = command("cluster", "apply", tmp_path / "m.yaml", f"hw://{cluster.brokers[0].address}", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        details: list[str] = json.loads(done.stdout)["applied"][0]["details"]
        return details

    applied(2, 2)
    wait_until(lambda: kept(cluster, "t", 2))
    assert applied(3, 1) == ["replication: 2 → 3", "min_insync: 2 → 1"]
    wait_until(lambda: kept(cluster, "t", 3))
    exported = command("cluster", "export", f"hw://{cluster.brokers[0].address}").stdout
    assert "replication: 3" in exported
    assert "min_insync: 1" in exported
