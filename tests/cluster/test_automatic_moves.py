"""Replicas leave a broker that is gone for too long, and come to one that was added, unless an operator cancels it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import headwater as hw
from headwater.broker import Broker
from headwater.cluster.control import automatic_moves
from headwater.cluster.control.automatic_moves import AutomaticMoves
from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.control.moves import Moves, PlannedMove
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import Put
from headwater.cluster.etcd.keys import BrokerMember, PartitionKey
from headwater.cluster.node import ClusterNode
from headwater.core.config import BrokerConfig
from headwater.embedded.directory_store import DirectoryStore
from tests.support.aio import run
from tests.support.backends import clustered
from tests.support.broker import ANY_PORT
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.members import LEASE, Node, nodes, topic_of, until
from tests.support.patience import wait_until

pytestmark = needs_etcd
TIMEOUT = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("automatic") / "etcd") as started:
        yield started


async def _no_sizes(_: BrokerMember, __: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
    return {}


class Watched:
    """The automatic moves of the controller, with a clock that the test sets. Nothing is ever copied."""

    def __init__(self, node: Node, *, timeout: float | None = TIMEOUT, least: int = 3, rebalance: bool = False) -> None:
        self.node = node
        self.moves = Moves(node.etcd, node.view, _no_sizes)
        fake = cast("ClusterNode", SimpleNamespace(membership=node.membership, moves=self.moves))
        self.automatic = AutomaticMoves(fake, replica_timeout=timeout, least_brokers=least, rebalance=rebalance)
        self._now = 0.0

    async def after(self, seconds: float) -> None:
        """Let time pass, look as often as a broker does, and take a step in the end."""
        while seconds > 0:
            self._now += min(seconds, automatic_moves._INTERVAL)
            seconds -= automatic_moves._INTERVAL
            self.automatic.look(self._now)
        await self.automatic.step()
        await self.node.view.refresh()

    def wanted(self) -> Counter[int]:
        """The number of replicas that each broker has, or is to have."""
        states = [state for state, _ in self.node.view.partitions.values()]
        return Counter(broker for state in states for broker in state.wanted)

    def moving(self) -> int:
        return sum(state.move is not None for state, _ in self.node.view.partitions.values())

    async def clear(self) -> None:
        for name in list(self.node.view.topics):
            await self.node.topics.delete(name)
        await until(lambda: not self.node.view.partitions)
        for broker in self.node.view.levelled | self.node.view.kept:
            await self.moves.forget_levelled(broker)
            await self.moves.forget_kept(broker)


def states(node: Node) -> list[PartitionState]:
    return [state for state, _ in node.view.partitions.values()]


def test_replicas_leave_a_broker_that_is_gone_for_longer_than_the_timeout(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 4, lease=LEASE) as brokers:
            watched = Watched(brokers[0])
            try:
                await brokers[0].topics.create(topic_of("t", 40, 2))
                held = watched.wanted()[4]
                await brokers[3].vanish()
                await until(lambda: 4 not in brokers[0].view.members)
                await watched.after(TIMEOUT - 2)
                assert (watched.moving(), watched.wanted()[4]) == (0, held), "not before its time"
                await watched.after(4)
                assert watched.moving() == 16 == held - watched.wanted()[4], "a few at a time"
                await watched.after(20)
                assert watched.moving() == 16, "the next ones wait for these"
                assert all(len(set(state.wanted)) == 2 for state in states(brokers[0]))
                assert await watched.moves.cancel() == 16
                await until(lambda: watched.moving() == 0)
                await watched.after(2 * TIMEOUT)
                assert (watched.moving(), brokers[0].view.kept) == (0, frozenset({4})), "an operator has cancelled it"
                brokers[3] = await Node([server.address], 4).start()
                await until(lambda: 4 in brokers[0].view.members)
                await watched.after(2)
                assert brokers[0].view.kept == frozenset(), "it has come back: the next time counts again"
            finally:
                await watched.clear()

    run(main())


def test_nothing_leaves_while_too_few_are_alive_or_a_broker_is_waited_for(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 4) as brokers:
            strict, off = Watched(brokers[0], least=4), Watched(brokers[0], timeout=None)
            watched = Watched(brokers[0])
            try:
                await brokers[0].topics.create(topic_of("two", 4, 2))
                await brokers[0].topics.create(topic_of("four", 1, 4))
                await brokers[3].vanish()
                await until(lambda: 4 not in brokers[0].view.members)
                for unmoved in (strict, off):
                    await unmoved.after(2 * TIMEOUT)
                    assert unmoved.moving() == 0
                await watched.after(TIMEOUT - 4)
                brokers[3] = await Node([server.address], 4).start()
                await until(lambda: 4 in brokers[0].view.members)
                await watched.after(2)
                await brokers[3].vanish()
                await until(lambda: 4 not in brokers[0].view.members)
                await watched.after(TIMEOUT - 10)
                assert watched.moving() == 0, "it was there meanwhile"
                watched._now += 10 * TIMEOUT
                await watched.after(0.1)
                assert watched.moving() == 0, "time in which nobody looked does not count"
                await watched.after(TIMEOUT)
                assert watched.moving() == sum(4 in state.replicas for state in states(brokers[0])) - 1
                (four,) = [state for state in states(brokers[0]) if len(state.replicas) == 4 and state.move is None]
                assert 4 in four.replicas, "three brokers cannot hold four replicas"
                brokers[3] = await Node([server.address], 4).start()
            finally:
                await watched.clear()

    run(main())


def test_replicas_come_to_a_broker_that_was_added_once(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 3) as brokers:
            node = brokers[0]
            watched, off = Watched(node, rebalance=True), Watched(node)
            try:
                await node.topics.create(topic_of("t", 12, 2))
                await watched.after(20)
                await until(lambda: node.view.levelled == {1, 2, 3})
                assert watched.moving() == 0
                brokers.append(await Node([server.address], 4).start())
                await until(lambda: 4 in node.view.members)
                await off.after(20)
                await watched.after(1)
                assert watched.moving() == 0, "it has to be there for a moment"
                shown = {move.partition: move.to for move in await watched.moves.plan()}
                await watched.after(20)
                assert watched.wanted() == {1: 6, 2: 6, 3: 6, 4: 6}
                wanted = {key[1]: state.wanted for key, (state, _) in node.view.partitions.items()}
                assert {number: wanted[number] for number in shown} == shown, "as hw cluster rebalance shows it"
                assert await watched.moves.cancel() > 0
                await until(lambda: watched.moving() == 0 and watched.wanted()[4] == 0)
                await watched.after(20)
                assert (watched.moving(), node.view.levelled) == (0, frozenset({1, 2, 3, 4})), (
                    "an operator has cancelled it"
                )
                await watched.moves.begin([], [4])
                await until(lambda: 4 in node.view.leaving)
                await watched.after(20)
                assert watched.moving() == 0
                await watched.moves.cancel([4])
                await until(lambda: 4 not in node.view.leaving)
                await watched.after(20)
                assert watched.wanted()[4] == 6, "who was to leave and stays counts as added"
            finally:
                await watched.clear()

    run(main())


@pytest.mark.parametrize("added", [False, True], ids=["gone", "added"])
def test_moves_that_are_cancelled_while_they_are_planned_do_not_begin(server: EtcdServer, added: bool) -> None:
    async def main() -> None:
        async with nodes([server.address], 3 if added else 4) as brokers:
            node = brokers[0]
            watched = Watched(node, rebalance=added)
            plan = watched.moves.plan
            planned: list[PlannedMove] = []

            async def plan_slowly(*arguments: Any, **options: Any) -> list[PlannedMove]:
                planned.extend(await plan(*arguments, **options))
                key = node.view.keys.levelled(4) if added else node.view.keys.kept(4)
                await node.etcd.write([], [Put(key, b"{}")])
                return planned

            watched.moves.plan = plan_slowly  # type: ignore[method-assign]
            try:
                await node.topics.create(topic_of("t", 6, 2))
                if added:
                    brokers.append(await Node([server.address], 4).start())
                else:
                    await brokers[3].vanish()
                await until(lambda: (4 in node.view.members) == added)
                await watched.after(2 * TIMEOUT)
                assert (bool(planned), watched.moving()) == (True, 0)
            finally:
                await watched.clear()

    run(main())


def test_nothing_is_levelled_while_a_broker_with_replicas_is_away(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 4) as brokers:
            watched = Watched(brokers[0], timeout=None, rebalance=True)
            try:
                await brokers[0].topics.create(topic_of("t", 12, 2))
                await brokers[3].vanish()
                await until(lambda: 4 not in brokers[0].view.members)
                brokers.append(await Node([server.address], 5).start())
                await until(lambda: 5 in brokers[0].view.members)
                await watched.after(20)
                assert (watched.moving(), brokers[0].view.levelled) == (0, frozenset())
                brokers[3] = await Node([server.address], 4).start()
                await until(lambda: 4 in brokers[0].view.members)
                await watched.after(20)
                assert watched.wanted()[5] >= 4
            finally:
                await watched.clear()

    run(main())


# With records.


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.cluster.control.automatic_moves._INTERVAL", 0.1)
    monkeypatch.setattr("headwater.cluster.control.automatic_moves._SETTLING", 0.5)


@pytest.mark.usefixtures("quick")
def test_a_lost_broker_is_replaced_and_a_new_one_filled_while_all_goes_on(server: EtcdServer, tmp_path: Path) -> None:
    config = BrokerConfig(cluster="moving", replica_timeout=1.0, auto_rebalance=True, internal_partitions=1)

    def begin(name: str, stack: ExitStack) -> Broker:
        store = stack.enter_context(DirectoryStore(tmp_path / name, exclusive=True))
        broker = Broker(store, config, listen=ANY_PORT, etcd=lambda: Etcd([server.address])).start()
        stack.callback(broker.stop)
        return broker

    def holders(broker: Broker) -> list[tuple[int, ...]]:
        view = clustered(broker).node.membership.view
        uuid = view.topics["t"].info.uuid
        return [view.partitions[uuid, number][0].replicas for number in range(6)]

    def settled(broker: Broker) -> bool:
        view = clustered(broker).node.membership.view
        return all(state.move is None for state, _ in view.partitions.values())

    with ExitStack() as stack:
        brokers = [begin(name, stack) for name in "abc"]
        with hw.open(f"hw://{brokers[0].address},{brokers[1].address}") as store:
            store.create_topic("t", partitions=6, replication=2)
            with store.producer("t") as out:
                for number in range(60):
                    out.send(b"%d" % number)
            fourth = begin("d", stack)
            wait_until(lambda: settled(brokers[0]) and sum(4 in held for held in holders(brokers[0])) == 3)
            fourth.stop()
            wait_until(lambda: settled(brokers[0]) and not any(4 in held for held in holders(brokers[0])))
            assert all(len(held) == 2 for held in holders(brokers[0]))
            values = store.topic("t").scan().read_all()["value"].to_pylist()
            assert sorted(map(int, values)) == list(range(60))


def test_a_new_controller_knows_for_how_long_a_broker_was_gone(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 5) as brokers:
            others = [Watched(node) for node in brokers[1:4]]
            try:
                await brokers[0].topics.create(topic_of("t", 6, 3))
                await brokers[4].vanish()
                await until(lambda: not any(5 in watched.node.view.members for watched in others))
                for watched in others:
                    await watched.after(TIMEOUT + 2)
                    assert watched.moving() == 0, "the first broker is the controller"
                await brokers[0].vanish()
                await until(lambda: any(watched.node.controls for watched in others))
                (controller,) = [watched for watched in others if watched.node.controls]
                await until(lambda: all(state.leader in (2, 3, 4) for state in states(controller.node)))
                await controller.after(2)
                assert (controller.moving() > 0, controller.wanted()[5]) == (True, 0)
                assert controller.wanted()[1] > 0, "the other one is gone for a moment only"
            finally:
                await others[0].clear()

    run(main())
