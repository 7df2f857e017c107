"""Brokers of a cluster before they hold a record: memberships, in the test's own event loop or as processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, Self

from headwater.cluster.control.assignment import default_min_insync
from headwater.cluster.control.election import LogEnd
from headwater.cluster.control.identity import BrokerIdentity, identity_of
from headwater.cluster.control.membership import ClusterMembership
from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.control.topics import ClusterTopics
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import Delete, Put, WriteGuard
from headwater.cluster.etcd.keys import DEFAULT_CLUSTER, BrokerMember, ClusterTopic, Keys, PartitionKey
from headwater.core.address import Address, parse_endpoints
from headwater.core.config import TopicConfig
from headwater.core.errors import EtcdUnavailable
from headwater.core.schema import RAW
from headwater.streams.catalog import TopicInfo
from tests.support.patience import Patience

LEASE: Final = 10
"""The lease of brokers, longer than a busy machine holds up a test."""
SHORT_LEASE: Final = 2
"""As short as etcd allows, for a broker that is dead when its lease ends."""
PATIENCE: Final = 60.0
_REACHED: Final = "reached"
Fault = Literal["request lost", "answer lost", "late"]


class FaultyEtcd(Etcd):
    """An etcd whose next writes fail in a chosen way; the caller cannot tell which."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.faults: list[Fault] = []
        self.met: list[Fault] = []
        self.late_seconds = 0.05
        self.overtaken: asyncio.Event | None = None
        """A late write arrives when this is set, if there is one, or else after some seconds."""
        self._late: set[asyncio.Task[int]] = set()

    async def write(self, guards: Sequence[WriteGuard], changes: Sequence[Put | Delete]) -> int:
        if not self.faults:
            return await super().write(guards, changes)
        fault = self.faults.pop(0)
        self.met.append(fault)
        if fault == "answer lost":
            await super().write(guards, changes)
        elif fault == "late":
            self._late.add(asyncio.create_task(self._write_late(guards, changes)))
        raise EtcdUnavailable(str(self), "Txn", 0.0, fault, unknown=True)

    async def _write_late(self, guards: Sequence[WriteGuard], changes: Sequence[Put | Delete]) -> int:
        await (asyncio.sleep(self.late_seconds) if self.overtaken is None else self.overtaken.wait())
        return await super().write(guards, changes)


class Logs:
    """The ends of the logs of a test's brokers."""

    def __init__(self) -> None:
        self.ends: dict[int, dict[PartitionKey, LogEnd]] = {}
        self.asked: list[int] = []

    async def ask(self, member: BrokerMember, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, LogEnd]:
        self.asked.append(member.id)
        return {key: end for key, end in self.ends.get(member.id, {}).items() if key in keys}


class Node:
    """A broker without records."""

    def __init__(
        self,
        endpoints: Sequence[Address],
        broker: int,
        logs: Logs | None = None,
        *,
        store: bytes | None = None,
        address: str = "127.0.0.1:1",
        lease: int = LEASE,
        missing: Collection[PartitionKey] = (),
        attempt_timeout: float = 5.0,
    ) -> None:
        self.broker = broker
        self.store = store or bytes([broker]) * 16
        self.etcd = FaultyEtcd(endpoints, timeout=PATIENCE + attempt_timeout, attempt_timeout=attempt_timeout)
        self.logs = logs or Logs()
        self.missing = missing
        self.incarnations: list[int] = []
        identity = BrokerIdentity(DEFAULT_CLUSTER, broker, self.store)
        self.membership = ClusterMembership(
            self.etcd, identity, address, ask=self.logs.ask, missing=self._missing, lease_seconds=lease
        )
        self.view = self.membership.view
        self.topics = ClusterTopics(self.etcd, self.view)
        self.membership.registration.on_incarnation(self.incarnations.append)

    async def _missing(self) -> Collection[PartitionKey]:
        return self.missing

    @property
    def incarnation(self) -> int:
        return self.membership.registration.incarnation

    @property
    def controls(self) -> bool:
        return bool(self.membership.controller.since)

    async def start(self) -> Self:
        await self.membership.start()
        return self

    async def lose_lease(self, etcd: Etcd) -> None:
        """End its lease, as etcd does when nothing has been heard of the broker for that long."""
        await etcd.revoke(self.membership.registration.lease)

    async def vanish(self, *, noticed: bool = True) -> None:
        """As by kill -9. It is noticed, and its lease ended by others; or not, and its lease goes on for a while."""
        await self.membership._stop()
        if noticed:
            await self.lose_lease(self.etcd)
        await self.etcd.close()

    def states(self, topic: ClusterTopic) -> list[PartitionState | None]:
        """The partitions of a topic, as this broker sees them."""
        found = [self.view.partitions.get((topic.info.uuid, number)) for number in range(topic.info.partitions)]
        return [None if one is None else one[0] for one in found]


@asynccontextmanager
async def nodes(endpoints: Sequence[Address], count: int, **options: Any) -> AsyncIterator[list[Node]]:
    """Brokers 1, 2, … of a cluster, which see each other; the first is the controller."""
    started: list[Node] = []
    try:
        for number in range(1, count + 1):
            started.append(await Node(endpoints, number, **options).start())
            if number == 1:
                await until(lambda: started[0].controls)
        await until(lambda: all(len(node.view.members) == count for node in started))
        yield started
    finally:
        for node in started:
            await node.membership.leave()


async def until(condition: Any) -> None:
    """Wait for something to become true."""
    patience = Patience(PATIENCE)
    while not condition():
        if patience.exhausted():
            raise TimeoutError
        await asyncio.sleep(0.005)


def topic_of(
    name: str, partitions: int = 1, replication: int = 1, min_insync: int | None = None, uuid: bytes | None = None
) -> ClusterTopic:
    """A raw topic."""
    info = TopicInfo(name, uuid or name.encode().ljust(16, b"-"), partitions, (RAW.id,), TopicConfig(), 1)
    return ClusterTopic(info, (RAW,), replication, min_insync or default_min_insync(replication))


class MemberProcess:
    """A membership as a process, which can be killed and stopped. It listens, as a broker does."""

    def __init__(self, directory: Path, endpoints: str, broker: int, lease: int = LEASE) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "member.log"
        self._reached = directory / _REACHED
        command = [sys.executable, "-m", "tests.support.members", str(directory), endpoints, str(broker), str(lease)]
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, cwd=Path(__file__).parents[2])

    def incarnations(self) -> list[int]:
        """Return the incarnations under which it was registered so far, with 0 for when it was not."""
        lines = self.log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line)["incarnation"] for line in lines if line.startswith("{")]

    def wait(self, registrations: int = 1) -> int:
        """Its incarnation after so many registrations."""
        patience = Patience(PATIENCE, self.process.pid)
        while not patience.exhausted():
            known = [incarnation for incarnation in self.incarnations() if incarnation]
            if len(known) >= registrations:
                return known[registrations - 1]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"it does not register:\n{self.log.read_text()}")

    @property
    def reached(self) -> bool:
        """True if another broker has connected to it."""
        return self._reached.exists()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


async def _serve(directory: Path, endpoints: str, broker: int, lease: int) -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (directory / _REACHED).touch()
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    identity = identity_of(directory, DEFAULT_CLUSTER, broker)
    logs = Logs()
    membership = ClusterMembership(
        Etcd(parse_endpoints(endpoints)),
        identity,
        f"127.0.0.1:{port}",
        ask=logs.ask,
        missing=_nothing,
        lease_seconds=lease,
    )
    membership.registration.on_incarnation(lambda one: print(json.dumps({"incarnation": one}), flush=True))  # noqa: T201
    await membership.start()
    await server.serve_forever()


async def _nothing() -> Collection[PartitionKey]:
    return ()


def keys() -> Keys:
    """The keys of the cluster that tests have."""
    return Keys(DEFAULT_CLUSTER)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
