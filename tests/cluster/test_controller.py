"""The controller: every partition is led by one who has what was acknowledged, against a real etcd."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headwater.cluster.control.election import LogEnd
from headwater.cluster.control.metadata import PartitionState, Proposal
from headwater.cluster.control.planning import Change, plan
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import Put, WriteGuard
from headwater.cluster.etcd.keys import ClusterTopic, state_from_json, state_to_json
from headwater.core.address import Address
from tests.support.aio import run
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.members import PATIENCE, Logs, Node, keys, nodes, topic_of, until
from tests.support.proxy import Proxy

pytestmark = needs_etcd
FAULTS = ["request lost", "answer lost", "late"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd") as started:
        yield started


def led_by(node: Node, topic: ClusterTopic) -> list[int | None]:
    """The leaders of a topic's partitions; None where there is none who lives."""
    return [
        state.leader if state is not None and node.view.alive.get(state.leader) == state.leader_incarnation else None
        for state in node.states(topic)
    ]


# The choice of the controller.


def test_there_is_one_controller_and_another_one_when_it_goes(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 3) as brokers:
            first, second, third = brokers
            assert [node.controls for node in brokers] == [True, False, False]
            await first.membership.leave()
            await until(lambda: second.controls or third.controls)
            await asyncio.sleep(0.2)
            assert [second.controls, third.controls].count(True) == 1

    run(main())


@pytest.mark.parametrize("fault", FAULTS)
def test_whether_it_is_the_controller_a_broker_sees_in_etcd(server: EtcdServer, fault: Any) -> None:
    async def main() -> None:
        async with nodes([server.address], 2) as (first, second):
            second.etcd.faults = [fault]
            await first.membership.leave()
            await until(lambda: second.controls)
            assert second.etcd.met == [fault]

    run(main())


def test_a_candidacy_that_comes_late_is_refused(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 2) as (first, second):
            office = first.view.controller
            await second.membership.controller._campaign()  # it has not seen yet that there is one
            await second.view.refresh()
            assert second.view.controller == office
            assert first.controls

    run(main())


# Leaders.


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_when_a_leader_dies_one_who_was_in_sync_leads(server: EtcdServer, fault: Any) -> None:
    async def main() -> None:
        async with nodes([server.address], 3) as brokers:
            controller, *others = brokers
            topic = await controller.topics.create(topic_of("orders", 6, 3))
            before = controller.states(topic)
            assert all(state is not None and state.epoch == 1 for state in before)
            if fault is not None:
                controller.etcd.faults = [fault]
            await others[0].vanish()
            await until(lambda: 2 not in controller.view.members)
            await until(lambda: None not in led_by(controller, topic) and 2 not in led_by(controller, topic))
            assert controller.etcd.met == ([] if fault is None else [fault])
            for old, new in zip(before, controller.states(topic), strict=True):
                assert old is not None
                assert new is not None
                if old.leader == 2:
                    assert new.epoch == 2
                    assert set(new.in_sync) == {1, 3}, "the dead one is in sync no more"
                else:
                    assert new == old, "what is led is left alone"

    run(main())


def test_a_leader_that_comes_back_at_once_is_elected_anew(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 2, lease=60) as (controller, _):
            alone = await Node([server.address], 3, controller.logs, lease=60).start()
            topic = topic_of("orders", 3, 1)
            await controller.topics.create(topic)
            number = led_by(controller, topic).index(3)
            key = (topic.info.uuid, number)
            controller.logs.ends[3] = {key: LogEnd(1, 10)}
            await alone.vanish(noticed=False)
            again = await Node([server.address], 3, lease=60).start()
            await until(lambda: controller.view.partitions[key][0].leader_incarnation == again.incarnation)
            state = controller.view.partitions[key][0]
            assert state == PartitionState((3,), {3: again.incarnation}, 3, again.incarnation, 2)
            await again.membership.leave()

    run(main())


def test_after_a_total_outage_all_are_waited_for_and_the_longest_log_leads(server: EtcdServer) -> None:
    async def main() -> None:
        logs = Logs()
        async with nodes([server.address], 1, logs=logs) as (controller,):
            held = [await Node([server.address], number, logs).start() for number in (2, 3, 4)]
            await until(lambda: len(controller.view.members) == 4)
            in_sync = {node.broker: node.incarnation for node in held}
            for node in held:
                await node.vanish()
            await until(lambda: len(controller.view.members) == 1)
            topic = topic_of("orders", 1, 3)
            key = (topic.info.uuid, 0)
            async with Etcd([server.address]) as etcd:
                state = PartitionState((2, 3, 4), in_sync, 2, in_sync[2], 7)
                changes = [
                    Put(keys().topic("orders"), topic.to_json()),
                    Put(keys().partition(key), state_to_json(state)),
                ]
                await etcd.write([], changes)
            await until(lambda: key in controller.view.partitions)
            back = [await Node([server.address], number, logs).start() for number in (2, 3)]
            logs.ends = {2: {key: LogEnd(7, 100)}, 3: {key: LogEnd(6, 500)}}
            await asyncio.sleep(1.5)
            before = controller.view.partitions[key][0]
            assert led_by(controller, topic) == [None], "broker 4 may have more"
            assert not logs.asked, "of no use while one is away"
            back.append(await Node([server.address], 4, logs).start())
            await until(lambda: set(logs.asked) == {2, 3, 4})
            await asyncio.sleep(1.5)
            assert led_by(controller, topic) == [None], "broker 4 does not vouch for its log"
            logs.ends[4] = {key: LogEnd(7, 101)}
            await until(lambda: led_by(controller, topic) == [4])
            after = controller.view.partitions[key][0]
            assert after.epoch == before.epoch + 1
            assert dict(after.in_sync) == {node.broker: node.incarnation for node in back}
            for node in back:
                await node.membership.leave()

    run(main())


def test_who_drains_leads_no_more(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 3) as brokers:
            controller, second, _ = brokers
            topic = await controller.topics.create(topic_of("orders", 6, 3))
            alone = await controller.topics.create(topic_of("alone", 3, 1))
            assert second.membership.leads > 1
            await second.membership.drain(30)
            assert 2 not in led_by(second, topic)
            assert led_by(second, alone).count(2) == 1, "what nobody else has stays"
            assert second.incarnations == [second.incarnation], "it is still the same one"
            new = await controller.topics.create(topic_of("new", 4, 2))
            assert not any(2 in state.replicas for state in controller.states(new) if state is not None)
            await second.membership.leave()

    run(main())


def test_leadership_goes_back_to_those_who_were_meant_to_have_it(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 2) as (controller, _):
            topic = await controller.topics.create(topic_of("orders", 1, 2))
            key = (topic.info.uuid, 0)
            state, revision = controller.view.partitions[key]
            moved = PartitionState(
                state.replicas, state.in_sync, state.replicas[1], controller.view.alive[state.replicas[1]], 2
            )
            assert await controller.view.propose(key, Proposal(moved, revision))
            await until(lambda: controller.view.partitions[key][0] == moved)
            assert not plan(controller.view, {}).changes
            (change,) = plan(controller.view, {}, balance=True).changes
            assert isinstance(change.write, Put)
            back = state_from_json(change.write.value)
            assert (back.leader, back.epoch, back.in_sync) == (state.leader, 3, state.in_sync)

    run(main())


# Two at once.


def test_one_that_was_replaced_while_it_wrote_does_no_harm(server: EtcdServer) -> None:
    """Its last writes wait in the network until another one is the controller, and arrive then."""

    async def main() -> None:
        with Proxy(server.address.port, Random(1)) as proxy:
            address = Address("127.0.0.1", proxy.port)
            # It waits for its answers for long: a call that is given up may be given up in etcd as well.
            async with nodes([address], 1, attempt_timeout=5 * PATIENCE) as (old,):
                others = [await Node([server.address], number).start() for number in (2, 3, 4)]
                topic = await others[0].topics.create(topic_of("orders", 8, 3))
                pair = await others[0].topics.create(topic_of("pair", 12, 2))
                await until(lambda: None not in [*old.states(topic), *old.states(pair)])
                lost = others[2]
                proxy.stall()
                await lost.vanish()
                # The old one sees nothing of that: so it is told, of broker 3 wrongly, and its plans are sent. Only its
                # office is in the way of the second: the partition, and the broker it counts on, are unchanged.
                path = keys().partition(
                    (pair.info.uuid, [state and state.replicas for state in old.states(pair)].index((3, 2)))
                )
                stale = [_without(old, 4), [change for change in _without(old, 3) if change.write.key == path]]
                assert len(stale[1]) == 1
                controller = old.membership.controller
                writing = [asyncio.create_task(controller._write(controller.since, changes)) for changes in stale]
                await old.lose_lease(others[0].etcd)
                await until(lambda: any(node.controls for node in others[:2]))
                await until(lambda: None not in led_by(others[0], topic))
                before = await _states(server)
                proxy.go_on()  # what was on its way arrives
                assert await asyncio.gather(*writing) == [0, 0]
                await until(lambda: len(old.incarnations) == 3)
                assert await _states(server) == before
                for node in others[:2]:
                    await node.membership.leave()

    run(main())


def _without(node: Node, broker: int) -> list[Change]:
    """Return the changes that a controller would make if it saw that a broker is gone."""
    member = node.view._members.pop(broker)
    changes = list(plan(node.view, {}).changes)
    node.view._members[broker] = member
    assert changes
    return changes


async def _states(server: EtcdServer) -> dict[str, bytes]:
    async with Etcd([server.address]) as etcd:
        return {item.key: item.value for item in (await etcd.read(keys().all_partitions)).items}


def test_an_election_counts_on_brokers_in_the_incarnation_in_which_they_were_seen(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 3, lease=60) as brokers:
            controller, second, _ = brokers
            topic = await controller.topics.create(topic_of("orders", 1, 3))
            key = (topic.info.uuid, 0)
            leader = controller.view.partitions[key][0].leader
            assert leader != 2
            stale = _without(controller, leader)  # it thinks that the leader is gone
            since = controller.membership.controller.since
            await second.vanish(noticed=False)
            again = await Node([server.address], 2, lease=60).start()
            assert await controller.membership.controller._write(since, stale) == 0, "it counted on another broker 2"
            await again.membership.leave()

    run(main())


def test_two_that_work_at_once_do_what_one_would(server: EtcdServer) -> None:
    """Two plan by the same view and write as the same controller: of each pair of writes one is taken."""

    async def main() -> None:
        async with nodes([server.address], 3) as brokers:
            first, second, third = brokers
            topic = await first.topics.create(topic_of("orders", 40, 3))
            await until(lambda: None not in second.states(topic))
            since = first.membership.controller.since
            seen: dict[str, list[int]] = {}

            async def follow() -> None:
                async with Etcd([server.address]) as etcd:
                    async for look in etcd.follow(keys().all_partitions):
                        for item in look.items:
                            seen.setdefault(item.key, []).append(state_from_json(item.value).epoch)

            following = asyncio.create_task(follow())
            await third.vanish()
            second.membership.controller._registration = first.membership.registration  # it takes itself for the first
            await until(lambda: 3 not in first.view.members and 3 not in second.view.members)
            plans = [plan(node.view, {}).changes for node in (first, second)]
            await asyncio.gather(
                *(
                    node.membership.controller._write(since, changes)
                    for node, changes in zip((first, second), plans, strict=True)
                    if changes
                )
            )
            await until(lambda: 3 not in led_by(first, topic) and None not in led_by(first, topic))
            await asyncio.sleep(0.3)
            following.cancel()
            assert all(b > a for epochs in seen.values() for a, b in itertools.pairwise(epochs))
            assert max(epoch for epochs in seen.values() for epoch in epochs) == 2, "each was elected once"

    run(main())


def test_a_proposal_is_taken_once_although_its_answer_was_lost(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 3) as brokers:
            leader = brokers[0]
            topic = await leader.topics.create(topic_of("orders", 1, 3))
            key = (topic.info.uuid, 0)
            state, revision = leader.view.partitions[key]
            assert await leader.view.propose(key, Proposal(state.without(3), revision)) is True
            assert await leader.view.propose(key, Proposal(state.without(2), revision)) is False, "it has changed"
            await until(lambda: leader.view.partitions[key][1] > revision)
            for fault in FAULTS:
                state, revision = leader.view.partitions[key]
                wanted = state.with_in_sync(
                    brokers[0].view.alive if 3 not in state.in_sync else state.without(3).in_sync
                )
                leader.etcd.faults = [fault]  # type: ignore[list-item]
                taken = await leader.view.propose(key, Proposal(wanted, revision))
                assert taken is (True if fault == "request lost" else None)
                await until(lambda: leader.view.partitions[key][1] > revision)  # noqa: B023
                assert leader.view.partitions[key][0] == wanted

    run(main())


def test_a_proposal_counts_on_brokers_in_the_incarnation_in_which_they_were_seen(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 3) as brokers:
            leader = brokers[0]
            topic = await leader.topics.create(topic_of("orders", 1, 3))
            key = (topic.info.uuid, 0)
            state, revision = leader.view.partitions[key]
            gone = {3: brokers[2].incarnation - 1}
            assert await leader.view.propose(key, Proposal(state, revision, gone)) is False
            # Also if an answer was lost before: else the leader would wait for ever for how it came out.
            for fault in FAULTS:
                leader.etcd.faults = [fault]  # type: ignore[list-item]
                assert await leader.view.propose(key, Proposal(state.without(2), revision, gone)) is False
            await asyncio.sleep(2 * leader.etcd.late_seconds)
            assert leader.view.partitions[key] == (state, revision)
            assert await leader.view.propose(key, Proposal(state, revision, {3: brokers[2].incarnation})) is True

    run(main())


def test_nothing_is_elected_by_a_key_that_somebody_has_spoilt(
    server: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with nodes([server.address], 2) as (first, _), Etcd([server.address]) as etcd:
            topic = await first.topics.create(topic_of("orders", 1, 2))
            key = (topic.info.uuid, 0)
            before = first.view.partitions[key]
            name = keys().partition(key)
            for content in (b"", b"{}", b"[1]", b'{"replicas": 1}', b"\xff"):
                revision = await etcd.write([], [Put(name, content)])
                await first.view.reach(revision)
            await etcd.write([], [Put(f"{keys().prefix}brokers/x", b""), Put(f"{keys().prefix}partitions/y", b"")])
            await etcd.write([], [Put(f"{keys().prefix}controller", b"?"), Put(f"{keys().prefix}topics/z", b"")])
            await first.view.reach(await etcd.write([], [Put(f"{keys().prefix}other", b"")]))
            assert first.view.partitions[key] == before
            await etcd.write([WriteGuard(name, value=b"\xff")], [Put(name, state_to_json(before[0]))])
            await until(lambda: first.view.partitions[key][1] > before[1])
            assert first.view.partitions[key][0] == before[0]

    run(main())
    assert "cannot be read, and is ignored" in caplog.text
