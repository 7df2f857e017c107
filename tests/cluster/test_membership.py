"""Members of a cluster: registered under a lease, one incarnation after the other, against a real etcd."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from headwater.cluster.control.identity import IDENTITY_FILE, identity_of
from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.control.view import Office
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import Delete, Put
from headwater.cluster.etcd.keys import state_from_json, state_to_json
from headwater.core.address import Address
from headwater.core.errors import Damaged, EtcdUnavailable, InvalidConfiguration, StoreInUse
from tests.support.aio import run
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.members import SHORT_LEASE, MemberProcess, Node, keys, nodes, until
from tests.support.ports import free_port
from tests.support.proxy import Proxy

pytestmark = needs_etcd
ANOTHER_CONTROLLER = Put(keys().controller, Office.to_json(9, 1))
"""One that does nothing: so partitions stay as a test has made them."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd") as started:
        yield started


def test_members_see_each_other_come_and_go(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 3) as brokers:
            first, second, third = brokers
            assert first.view.alive == {node.broker: node.incarnation for node in brokers}
            assert first.view.members[2].store == second.store
            assert len({node.membership.registration.secret for node in brokers}) == 1
            await third.membership.leave()
            await until(lambda: list(first.view.members) == list(second.view.members) == [1, 2])

    run(main())


def test_a_broker_that_starts_again_is_another_one(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 1, lease=60) as (watching,):
            old = await Node([server.address], 2, lease=60).start()
            await old.vanish(noticed=False)
            again = await Node([server.address], 2, lease=60).start()  # and does not wait for the old lease
            assert again.incarnation > old.incarnation
            await until(lambda: watching.view.members[2].incarnation == again.incarnation)
            await again.membership.leave()

    run(main())


def test_a_broker_that_cannot_reach_etcd_for_longer_than_its_lease_is_another_one_afterwards(
    server: EtcdServer,
) -> None:
    async def main() -> None:
        with Proxy(server.address.port, Random(1)) as proxy:
            async with nodes([server.address], 1) as (watching,):
                node = await Node([Address("127.0.0.1", proxy.port)], 2).start()
                before = node.incarnation
                proxy.stall()
                await node.lose_lease(watching.etcd)
                await until(lambda: 2 not in watching.view.members)
                assert node.incarnation == before, "as far as it knows: leases say who is waited for, not what is safe"
                proxy.cut()
                proxy.go_on()
                await until(lambda: node.incarnation > before)
                assert node.incarnations == [before, 0, node.incarnation]
                await until(lambda: watching.view.alive.get(2) == node.incarnation)
                await node.membership.leave()

    run(main())


def test_a_key_that_somebody_removed_is_noticed_although_the_lease_is_alive(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 1, lease=600) as (node,), Etcd([server.address]) as etcd:
            before = node.incarnation
            await etcd.write([], [Delete(keys().broker(1))])
            await until(lambda: node.incarnation > before)
            await until(lambda: node.view.alive == {1: node.incarnation})
            await until(lambda: node.controls)  # and not the earlier one, until its lease ends

    run(main())


def test_an_outage_of_etcd_that_is_shorter_than_the_lease_changes_nothing(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 2, lease=30) as brokers:
            before = [node.incarnation for node in brokers]
            server.kill()
            await asyncio.sleep(1)
            await asyncio.to_thread(server.start)
            async with Etcd([server.address], timeout=30.0) as etcd:
                await until_written(etcd)
            await until(lambda: all(node.view.revision >= before[1] + 1 for node in brokers))
            assert [node.incarnations for node in brokers] == [[incarnation] for incarnation in before]

    run(main())


async def until_written(etcd: Etcd) -> None:
    while True:
        try:
            await etcd.write([], [Put(f"{keys().prefix}note", b"")])
            return
        except EtcdUnavailable:
            continue


@pytest.mark.parametrize("fault", ["request lost", "answer lost", "late"])
def test_a_registration_whose_answer_was_lost_is_looked_up(server: EtcdServer, fault: str) -> None:
    async def main() -> None:
        async with nodes([server.address], 1) as (watching,):
            node = Node([server.address], 2)
            node.etcd.faults = [fault]  # type: ignore[list-item]
            await node.start()
            assert node.etcd.met == [fault]
            await until(lambda: watching.view.alive.get(2) == node.incarnation)
            await asyncio.sleep(0.3)  # until what was late has come
            assert watching.view.alive[2] == node.incarnation
            assert node.incarnations == [node.incarnation]
            await node.membership.leave()

    run(main())


# Two of one number.


def test_two_brokers_of_one_number_are_refused(server: EtcdServer) -> None:
    async def main() -> None:
        async with nodes([server.address], 1) as (first,):
            other = Node([server.address], 1, store=b"x" * 16, lease=1)
            with pytest.raises(StoreInUse, match="broker 1 is running already"):
                await other.start()
            await other.vanish(noticed=False)
            assert first.incarnations == [first.incarnation]

    run(main())


def test_a_registration_that_comes_late_does_not_replace_another(server: EtcdServer) -> None:
    async def main() -> None:
        await (await Node([server.address], 9).start()).membership.leave()  # who has made the secret
        slow = Node([server.address], 1, lease=1)
        quick = Node([server.address], 1, store=b"x" * 16)
        slow.etcd.overtaken = asyncio.Event()
        slow.etcd.faults = ["late"]
        slow.etcd.faults += ["request lost"] * 10_000
        starting = asyncio.create_task(slow.start())
        await until(lambda: slow.etcd.met)
        await quick.start()
        slow.etcd.overtaken.set()
        with pytest.raises(StoreInUse):
            await starting
        assert quick.incarnations == [quick.incarnation]
        assert quick.view.members[1].store == quick.store
        await slow.vanish(noticed=False)
        await quick.membership.leave()

    run(main())


def test_a_dead_one_with_another_directory_is_waited_for(server: EtcdServer) -> None:
    async def main() -> None:
        old = await Node([server.address], 1, lease=SHORT_LEASE).start()
        await old.vanish(noticed=False)
        other = await Node([server.address], 1, store=b"x" * 16, lease=60).start()
        assert other.incarnation > old.incarnation
        await other.membership.leave()

    run(main())


# Before it can be elected.


def test_with_a_new_disk_it_leaves_every_in_sync_set_before_it_is_registered(server: EtcdServer) -> None:
    async def main() -> None:
        async with Etcd([server.address]) as etcd:
            await etcd.write([], [ANOTHER_CONTROLLER])
            old = await Node([server.address], 1).start()
            states = [PartitionState((1, 2), in_sync, 1, 5, 1) for in_sync in ({1: 5, 2: 6}, {1: 5}, {2: 6})]
            partitions = [keys().partition((b"t" * 16, number)) for number in range(3)]
            await etcd.write([], [Put(*pair) for pair in zip(partitions, map(state_to_json, states), strict=True)])
            await old.membership.leave()
            await (await Node([server.address], 1).start()).membership.leave()  # the same disk: nothing changes
            look = await etcd.read(keys().all_partitions)
            assert [state_from_json(item.value) for item in look.items] == states

            new = Node([server.address], 1, store=b"x" * 16)
            new.etcd.faults = []
            await new.start()
            look = await etcd.read(keys().all_partitions)
            assert [dict(state_from_json(item.value).in_sync) for item in look.items] == [{2: 6}, {}, {2: 6}]
            assert all(item.changed < new.incarnation for item in look.items)
            await new.membership.leave()

    run(main())


@pytest.mark.parametrize("fault", ["request lost", "answer lost"])
def test_it_leaves_those_of_which_it_has_lost_records(server: EtcdServer, fault: str) -> None:
    async def main() -> None:
        async with Etcd([server.address]) as etcd:
            partitions = [(b"t" * 16, number) for number in range(2)]
            state = PartitionState((1, 2), {1: 5, 2: 6}, 2, 6, 1)
            await etcd.write([], [Put(keys().partition(key), state_to_json(state)) for key in partitions])
            await etcd.write([], [Put(keys().secret, b"00"), ANOTHER_CONTROLLER])
            node = Node([server.address], 1, missing=[partitions[1]])
            node.etcd.faults = [fault]  # type: ignore[list-item]
            await node.start()
            assert node.etcd.met == [fault]
            look = await etcd.read(keys().all_partitions)
            assert [dict(state_from_json(item.value).in_sync) for item in look.items] == [{1: 5, 2: 6}, {2: 6}]
            await node.membership.leave()

    run(main())


# Processes.


def test_a_killed_process_is_gone_long_before_its_lease_ends(server: EtcdServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with nodes([server.address], 1, lease=60) as (watching,):
            with MemberProcess(tmp_path / "two", str(server.address), 2, lease=3600) as process:
                incarnation = await asyncio.to_thread(process.wait)
                await until(lambda: watching.view.alive.get(2) == incarnation)
                await until(lambda: process.reached)
                process.kill()
                await until(lambda: 2 not in watching.view.members)

    run(main())


def test_a_stopped_process_is_another_one_when_it_goes_on(server: EtcdServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with nodes([server.address], 1) as (watching,):
            with MemberProcess(tmp_path / "two", str(server.address), 2) as process:
                first = await asyncio.to_thread(process.wait)
                await until(lambda: watching.view.alive.get(2) == first)
                process.signal(signal.SIGSTOP)
                await until(lambda: 2 not in watching.view.members)  # when its lease has ended
                process.signal(signal.SIGCONT)
                second = await asyncio.to_thread(process.wait, 2)
                assert second > first
                assert process.incarnations() == [first, 0, second]
                await until(lambda: watching.view.alive.get(2) == second)

    run(main())


def test_nobody_is_taken_for_dead_who_was_never_reached_or_still_listens(server: EtcdServer) -> None:
    async def main() -> None:
        async def end_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        listening = await asyncio.start_server(end_at_once, "127.0.0.1", 0)
        address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with nodes([server.address], 1, lease=60) as (watching,):
            hidden = await Node([server.address], 2, address=f"127.0.0.1:{free_port()}", lease=60).start()
            rude = await Node([server.address], 3, address=address, lease=60).start()
            await asyncio.sleep(2)
            assert watching.view.alive == {1: watching.incarnation, 2: hidden.incarnation, 3: rude.incarnation}
            for node in (hidden, rude):
                await node.membership.leave()
        listening.close()

    run(main())


def test_who_drains_is_not_held_up_by_a_connection(server: EtcdServer) -> None:
    async def main() -> None:
        held: set[asyncio.StreamWriter] = set()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            held.add(writer)
            await reader.read()
            held.remove(writer)
            writer.close()

        listening = await asyncio.start_server(hold, "127.0.0.1", 0)
        address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with nodes([server.address], 1):
            node = await Node([server.address], 2, address=address).start()
            await until(lambda: len(held) == 1)
            await node.membership.drain(10)
            await until(lambda: not held)
            await node.membership.leave()
        listening.close()

    run(main())


# The directory.


def test_a_directory_belongs_to_one_broker_for_good(tmp_path: Path) -> None:
    first = identity_of(tmp_path, "main", 1)
    assert identity_of(tmp_path, "main", 1) == first
    for cluster, broker in (("main", 2), ("other", 1)):
        with pytest.raises(InvalidConfiguration, match="belongs to broker 1 of the cluster 'main'"):
            identity_of(tmp_path, cluster, broker)
    (tmp_path / "other").mkdir()
    assert identity_of(tmp_path / "other", "main", 1).store != first.store


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", json.dumps({"format": 2}).encode()])
def test_an_identity_that_cannot_be_read_is_not_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / IDENTITY_FILE).write_bytes(content)
    with pytest.raises(Damaged):
        identity_of(tmp_path, "main", 1)
    assert (tmp_path / IDENTITY_FILE).read_bytes() == content
