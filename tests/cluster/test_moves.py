"""`hw cluster rebalance` and `hw cluster remove-broker`: replicas move, and whoever uses them sees none of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.cluster.control.balancing import HeldReplica, Placement, balanced
from headwater.cluster.control.moves import Moves
from headwater.cluster.etcd.keys import BrokerMember, PartitionKey
from headwater.core.errors import InvalidConfiguration, StoreError
from tests.cluster.cluster import ClusterProcesses
from tests.cluster.crew import TOPIC, Crew
from tests.support.aio import run
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.members import nodes, topic_of, until
from tests.support.patience import wait_until
from tests.support.processes import ROOT
from tests.support.processes import hw as command

# Where replicas should be.

A, B = b"a" * 16, b"b" * 16


def loads(placement: Placement) -> tuple[Counter[int], Counter[int]]:
    """Return how many replicas each broker has, and how many partitions it leads."""
    return Counter(broker for to in placement.values() for broker in to), Counter(to[0] for to in placement.values())


def test_a_new_broker_gets_its_share_and_no_more_moves_than_that() -> None:
    known = {(A, number): HeldReplica((1 + number % 3, 1 + (number + 1) % 3), 2) for number in range(12)}
    placement = balanced(known, [1, 2, 3, 4])
    replicas, leads = loads(placement)
    assert sorted(replicas.values()) == [6, 6, 6, 6]
    assert sorted(leads.values()) == [3, 3, 3, 3]
    assert sum(len(set(placement[key]) - set(held_replica.replicas)) for key, held_replica in known.items()) == 6


def test_what_is_balanced_stays_as_it_is() -> None:
    known = {
        (topic, number): HeldReplica((1 + number % 3, 1 + (number + 1) % 3), 2)
        for topic in (A, B)
        for number in range(6)
    }
    first = balanced(known, [1, 2, 3, 4])
    again = balanced({key: HeldReplica(to, 2) for key, to in first.items()}, [1, 2, 3, 4])
    assert again == first


def test_every_topic_is_spread_by_itself() -> None:
    known = {(A, number): HeldReplica((1,), 1) for number in range(4)} | {
        (B, number): HeldReplica((2,), 1) for number in range(4)
    }
    placement = balanced(known, [1, 2, 3, 4])
    assert sorted(loads(placement)[0].values()) == [2, 2, 2, 2]
    for topic in (A, B):
        assert max(Counter(to for key, to in placement.items() if key[0] == topic).values()) <= 2


def test_who_leaves_holds_nothing_and_all_else_stays() -> None:
    known = {(A, 0): HeldReplica((1, 2), 2), (A, 1): HeldReplica((2, 3), 2), (A, 2): HeldReplica((3, 4), 2)}
    placement = balanced(known, [1, 2, 4], level=False)
    assert placement[A, 0] == (1, 2)
    assert set(placement[A, 1]) == {2, 1} or set(placement[A, 1]) == {2, 4}
    assert 3 not in {broker for to in placement.values() for broker in to}
    with pytest.raises(InvalidConfiguration, match="has 2 replicas, and only 1 brokers"):
        balanced(known, [4], level=False)


# Against a real etcd.


async def _no_sizes(_: BrokerMember, __: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
    return {}


@needs_etcd
def test_what_is_planned_is_begun_where_nothing_has_changed_and_taken_back_by_who_has_begun_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with nodes([server.address], 4) as brokers:
            node = brokers[0]
            topic = await node.topics.create(topic_of("orders", 4, 3))
            moves = Moves(node.etcd, node.view, _no_sizes)
            before = [state.replicas for state in node.states(topic) if state is not None]

            def replicas() -> list[set[int]]:
                return [set(state.replicas) for state in node.states(topic) if state is not None]

            plan = await moves.plan([2])
            assert {(move.partition, move.replicas) for move in plan} == {
                (number, held) for number, held in enumerate(before) if 2 in held
            }
            with pytest.raises(StoreError, match="cannot move to brokers 1, 1, 3"):
                await moves.begin([plan[0]._replace(to=(1, 1, 3))], [2])
            assert await moves.begin([move._replace(revision=move.revision - 1) for move in plan]) == 0
            assert not node.view.leaving
            assert await moves.begin(plan, [2]) == len(plan)
            await until(
                lambda: all(held == {1, 2, 3, 4} for held, old in zip(replicas(), before, strict=True) if 2 in old)
            )
            assert (await moves.plan([2]), await moves.plan()) == ([], []), "what is under way is not planned again"
            with pytest.raises(InvalidConfiguration, match="cannot have 4 replicas"):
                await node.topics.replicas_of_new("more", 4)
            waiting = await moves.under_way()
            assert {move.partition: move.missing for move in waiting} == {
                move.partition: tuple(set(move.to) - set(move.replicas)) for move in plan
            }
            assert await moves.cancel() == 0, "that was no rebalancing"
            assert await moves.cancel([3]) == 0
            assert await moves.cancel([2]) == len(plan)
            await until(lambda: replicas() == [set(old) for old in before])
            await until(lambda: all(state is not None and state.move is None for state in node.states(topic)))
            assert (await moves.under_way(), node.view.leaving) == ([], frozenset())

    with EtcdServer(tmp_path / "etcd") as server:
        run(main())


# With real brokers.


def lines(*arguments: object) -> list[dict[str, Any]]:
    """Return the JSON lines that the command writes into a pipe."""
    done = command("cluster", *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def held(cluster: ClusterProcesses) -> list[set[int]]:
    """Return the brokers that hold each partition."""
    return [set(cluster.partition(TOPIC, number).replicas) for number in range(3)]


def interrupted(*arguments: object) -> int:
    """The command, with Ctrl-C as soon as it watches: its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater.cli", "cluster", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "moved" in json.loads(line):
            process.send_signal(signal.SIGINT)
            break
    process.communicate()
    return process.returncode


@needs_etcd
def test_replicas_leave_a_broker_and_come_back_while_all_goes_on(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 4, "--catch-up-bytes-per-second", "256KiB") as cluster:
        crew = Crew(cluster)
        assert not list(crew.go_on())
        with hw.open(cluster.address) as store:
            store.create_topic("large")
            with store.producer("large") as out:  # it takes longer to copy than all that is done meanwhile
                for _ in range(150):
                    out.send(os.urandom(100_000))
            leaves = cluster.partition("large").leader
            before = cluster.partition("large").replicas

            (plan,) = lines("remove-broker", leaves, cluster.address, "--dry-run")
            # Topics of the cluster itself are made whenever their time has come.
            moved = [move for move in plan["plan"] if not move["partition"].startswith("__")]
            assert len(moved) == 1 + sum(leaves in brokers for brokers in held(cluster))
            assert all(leaves not in move["to"] and len(move["to"]) == 3 for move in plan["plan"])
            assert plan["bytes"] > 15_000_000
            assert interrupted("remove-broker", leaves, cluster.address, "--yes") == 130
            assert cluster.partition("large").moving_to, "it goes on with nobody to watch"
            assert lines("remove-broker", leaves, cluster.address, "--cancel")[0]["cancelled"] > 0
            wait_until(lambda: not cluster.partition("large").moving_to)
            assert set(cluster.partition("large").replicas) == set(before), "what had not happened yet does not"
            store.delete_topic("large")

        leaves = cluster.partition(TOPIC).leader
        assert lines("remove-broker", leaves, cluster.address, "--yes")[-1] == {"done": True}
        assert all(leaves not in brokers for brokers in held(cluster))
        wait_until(lambda: not list((tmp_path / f"broker{leaves}" / TOPIC).glob("*/*.log")))
        assert not list(crew.go_on())
        plan = lines("rebalance", cluster.address, "--dry-run")[0]["plan"]
        assert not any(leaves in move["to"] for move in plan), "it gets nothing new"

        lines("remove-broker", leaves, cluster.address, "--cancel")
        assert lines("rebalance", cluster.address, "--yes")[-1] == {"done": True}
        assert any(leaves in brokers for brokers in held(cluster))
        assert not list(crew.go_on())
        assert not list(crew.check())
