"""`hw cluster elect`: a partition that nobody may lead any more is led again, by an operator's command and no other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import headwater as hw
from headwater.cluster.control.election import Election, LogEnd
from headwater.cluster.control.forced_election import ForcedElection, Standing
from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import Delete, Put, WriteGuard
from headwater.cluster.etcd.keys import ClusterTopic, state_to_json
from headwater.core.address import Address
from headwater.core.errors import EtcdUnavailable, StoreError
from tests.cluster.cluster import ClusterProcesses
from tests.support.aio import run
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.members import Logs, Node, keys, nodes, topic_of, until
from tests.support.processes import ROOT
from tests.support.processes import hw as command

pytestmark = needs_etcd


# With real brokers.


def elect(cluster: ClusterProcesses, broker: int, *flags: str) -> tuple[int, str, str]:
    """The command in a pipe: its exit code, what it writes and what it complains about."""
    done = command("cluster", "elect", "numbers/0", cluster.address, "--broker", broker, *flags)
    return done.returncode, done.stdout, done.stderr


def on_terminal(cluster: ClusterProcesses, broker: int, answer: bytes) -> tuple[int, str]:
    """The command on a terminal, where its question is answered: its exit code and what was shown."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ |= {"COLUMNS": "120", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
        arguments = ["cluster", "elect", "numbers/0", cluster.address, "--broker", str(broker)]
        os.execv(sys.executable, [sys.executable, "-m", "headwater.cli", *arguments])
    shown = b""
    with contextlib.suppress(OSError):
        while content := os.read(fd, 65536):
            shown += content
            if b"[y/N]" in content:
                os.write(fd, answer + b"\n")
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def send(cluster: ClusterProcesses, text: str, count: int) -> None:
    with hw.open(cluster.address) as store, store.producer("numbers") as out:
        for number in range(count):
            out.send(f"{text} {number}".encode())
        out.sync()


def test_a_partition_is_led_again_by_one_that_lacks_records_and_all_others_copy_it(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path) as cluster:
        with hw.open(cluster.address) as store:
            store.create_topic("numbers")
        send(cluster, "early", 10)
        lost = cluster.wait("numbers", in_sync={0, 1, 2}).leader
        longer, shorter = (broker for broker in range(3) if broker != lost)
        cluster.kill(shorter)
        cluster.wait("numbers", in_sync={lost, longer}, at=longer)
        send(cluster, "late", 20)
        cluster.wait_for_watermark(30, "numbers", lost, longer)
        code, _, complaint = elect(cluster, longer, "--accept-loss")
        assert (code, complaint.count("\n")) == (1, 1)
        assert f"broker {lost} leads numbers/0" in complaint

        cluster.kill(lost, longer)
        cluster.end_lease(lost)
        cluster.begin(longer, shorter)
        before = cluster.partition("numbers")
        for broker, why in ((lost, "is away"), (7, "has no replica of numbers/0")):
            code, written, complaint = elect(cluster, broker, "--accept-loss")
            assert (code, written, complaint.count("\n")) == (1, "", 1)
            assert f"broker {broker} {why}" in complaint
        code, written, complaint = elect(cluster, shorter)
        assert (code, written, complaint.count("\n")) == (1, "", 1)
        assert "--accept-loss" in complaint
        code, shown = on_terminal(cluster, shorter, b"n")
        assert code == 1
        assert "acknowledged from offset 10 on is lost for good" in shown
        assert f"Broker {longer} is alive and has 20 records more" in shown
        assert cluster.partition("numbers") == before, "nothing of this has changed anything"

        code, shown = on_terminal(cluster, shorter, b"y")
        assert code == 0, shown
        assert f"numbers/0 is led by broker {shorter}, in epoch {before.leader_epoch + 1}" in shown
        cluster.wait("numbers", in_sync={longer, shorter})
        send(cluster, "new", 5)
        cluster.begin(lost)  # it was not lost after all; but what it has is
        cluster.wait("numbers", in_sync={0, 1, 2})
        send(cluster, "newer", 5)
        cluster.kill(0, 1, 2)
        cluster.begin(0, 1, 2)
        cluster.wait("numbers", in_sync={0, 1, 2})
        for broker in range(3):
            assert "it has lost records" not in cluster.log(broker), "what an operator gave up is not missed any more"
        cluster.stop()
        names = [("early", 10), ("new", 5), ("newer", 5)]
        values = [f"{name} {number}".encode() for name, count in names for number in range(count)]
        for broker in range(3):
            assert cluster.records(broker, "numbers") == list(enumerate(values))


def test_a_partition_whose_only_member_in_sync_has_lost_its_disk_is_led_again(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 2) as cluster:
        with hw.open(cluster.address) as store:
            store.create_topic("numbers")
        send(cluster, "early", 10)
        lost = cluster.wait("numbers", in_sync={0, 1}).leader
        other = 1 - lost
        cluster.kill(other)
        cluster.wait("numbers", in_sync={lost}, at=lost)
        send(cluster, "late", 10)
        cluster.kill(lost)
        shutil.rmtree(tmp_path / f"broker{lost}")
        cluster.begin(lost, other)
        assert not cluster.partition("numbers").in_sync
        code, written, complaint = elect(cluster, other, "--accept-loss")
        assert code == 0, complaint
        document = json.loads(written)
        assert (document["partition"], document["leader"], document["lost_from"]) == ("numbers/0", other, 10)
        assert sorted(document["replicas"], key=lambda replica: int(replica["broker"])) == [
            {"broker": broker, "in_sync": False, "alive": True, "end": 10 if broker == other else 0}
            for broker in range(2)
        ]
        cluster.wait("numbers", in_sync={0, 1})
        cluster.stop()
        for broker in range(2):
            assert [value for _, value in cluster.records(broker, "numbers")] == [b"early %d" % n for n in range(10)]


# Against a real etcd.


class Stuck(NamedTuple):
    """Brokers 1, 2 and 3 of a partition that nobody may lead."""

    brokers: list[Node]
    topic: ClusterTopic
    logs: Logs

    def election(self, broker: int, at: int = 1) -> ForcedElection:
        """As an operator has it at one of the brokers."""
        node = self.brokers[at - 1]
        return ForcedElection(node.etcd, node.view, self.logs.ask, self.topic, 0, broker)

    def state(self, at: int = 1) -> PartitionState:
        (state,) = self.brokers[at - 1].states(self.topic)
        assert state is not None
        return state


class EtcdBehind(Etcd):
    """An etcd that is written to just after a broker has come back."""

    def __init__(self, endpoints: Sequence[Address], broker: Node) -> None:
        super().__init__(endpoints)
        self._broker = broker

    async def write(self, guards: Sequence[WriteGuard], changes: Sequence[Put | Delete]) -> int:
        await self._broker.start()
        return await super().write(guards, changes)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd") as started:
        yield started


@asynccontextmanager
async def stuck(server: EtcdServer, in_sync: dict[int, int]) -> AsyncIterator[Stuck]:
    """A partition of brokers 1 to 4, of which the last is away. The controller is not told how far logs go."""
    async with nodes([server.address], 3) as brokers:
        topic = topic_of("orders", 1, 3)
        key = (topic.info.uuid, 0)
        logs = Logs()
        logs.ends = {1: {key: LogEnd(6, 100)}, 2: {key: LogEnd(6, 70)}}
        state = PartitionState((1, 2, 3, 4), in_sync, 4, 1, 6)
        changes = [Put(keys().topic("orders"), topic.to_json()), Put(keys().partition(key), state_to_json(state))]
        await brokers[0].etcd.write([], changes)
        await until(lambda: all(key in node.view.partitions for node in brokers))
        yield Stuck(brokers, topic, logs)


def test_what_is_known_is_told_and_of_two_operators_one_is_obeyed(server: EtcdServer) -> None:
    async def main() -> None:
        async with stuck(server, {1: 1, 4: 1}) as partition:
            first, second = partition.election(1), partition.election(2, at=2)
            outlook = await first.look()
            assert outlook == await second.look()
            assert outlook.replicas == (
                Standing(1, in_sync=True, alive=True, end=100),
                Standing(2, in_sync=False, alive=True, end=70),
                Standing(3, in_sync=False, alive=True, end=None),
                Standing(4, in_sync=True, alive=False, end=None),
            )
            tries = [first.hold(outlook.revision), second.hold(outlook.revision)]
            holds = await asyncio.gather(*tries, return_exceptions=True)
            refused = [outcome for outcome in holds if isinstance(outcome, StoreError)]
            assert len(refused) == 1
            assert holds.count(7) == 1
            leader = 1 + holds.index(7)
            since = partition.brokers[leader - 1].incarnation
            await partition.brokers[0].view.refresh()
            assert partition.state() == PartitionState((1, 2, 3, 4), {leader: since}, leader, since, 7, 7)
            with pytest.raises(StoreError, match=f"broker {leader} leads orders/0"):
                await second.look()

    run(main())


def test_who_has_not_seen_the_latest_is_not_obeyed(server: EtcdServer) -> None:
    async def main() -> None:
        async with stuck(server, {1: 1, 4: 1}) as partition:
            election = partition.election(2)
            outlook = await election.look()
            before = partition.state()
            with pytest.raises(StoreError, match="changed meanwhile"):
                await election.hold(outlook.revision - 1)
            back = await Node([server.address], 4).start()  # who was missed is there again
            with pytest.raises(StoreError, match="will get a leader without help"):
                await election.hold(outlook.revision)
            await back.membership.leave()
            assert partition.state() == before

    run(main())


def test_who_comes_back_at_the_very_moment_is_not_passed_over(server: EtcdServer) -> None:
    async def main() -> None:
        async with stuck(server, {1: 1, 4: 1}) as partition:
            view = partition.brokers[0].view
            back = Node([server.address], 4)
            async with EtcdBehind([server.address], back) as etcd:
                election = ForcedElection(etcd, view, partition.logs.ask, partition.topic, 0, 2)
                outlook = await election.look()
                with pytest.raises(StoreError, match="changed meanwhile"):
                    await election.hold(outlook.revision)
            assert partition.state().epoch == 6
            await back.membership.leave()

    run(main())


def test_nobody_is_forced_without_need_nor_unknown(server: EtcdServer) -> None:
    async def main() -> None:
        async with stuck(server, {1: 1, 2: 1}) as partition:
            for broker in (1, 3):
                with pytest.raises(StoreError, match="will get a leader without help"):
                    await partition.election(broker).look()
        async with stuck(server, {}) as partition:
            with pytest.raises(StoreError, match="broker 3 does not report"):
                await partition.election(3).look()
            assert (await partition.election(2).look()).epoch == 6

    run(main())


def test_a_lost_answer_is_looked_up(server: EtcdServer) -> None:
    async def main() -> None:
        async with stuck(server, {1: 1, 4: 1}) as partition:
            election = partition.election(2, at=2)
            outlook = await election.look()
            partition.brokers[1].etcd.faults = ["request lost", "answer lost"]
            with pytest.raises(EtcdUnavailable):
                await election.hold(outlook.revision)  # nobody knows whether it will be done yet
            assert partition.state(at=2).epoch == 6
            assert await election.hold(outlook.revision) == 7
            assert partition.state(at=2).leader == 2

    run(main())


def test_later_elections_remember_that_one_was_forced() -> None:
    rules = Election(1)
    forced = rules.force(PartitionState((1, 2), {1: 5}, 1, 5, 3), 2, 8)
    later = rules.elect(forced.with_in_sync({1: 9, 2: 8}), {1: 9}, {})
    assert later is not None
    assert (later.leader, later.epoch, later.forced_epoch) == (1, 5, 4)
