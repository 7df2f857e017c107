"""Catching up is held to a pace; whoever is in sync is not."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.etcd.keys import BrokerMember
from headwater.cluster.link import Link, Links
from headwater.cluster.replication import following
from headwater.cluster.replication.catch_up import CatchUp
from headwater.cluster.replication.durable_log import DurableLog
from headwater.cluster.replication.following import Follower
from headwater.cluster.replication.leading import answer_follower
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import DirectoryPartition, encode
from headwater.streams.catalog import TopicInfo
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from tests.cluster.cluster import ANSWERED, ClusterProcesses
from tests.support.etcd_server import needs_etcd

LEADER, FOLLOWER = 0, 1
INCARNATIONS = {LEADER: 10, FOLLOWER: 20}
RATE = 800_000
FRAME = 50_000
FRAMES = 20
CHUNK = RATE // 8 + FRAME
"""The most bytes that one answer brings."""


class Threads:
    """Threads for the work of a disk."""

    def read(self, work: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        return asyncio.to_thread(work, *args)

    write = read


class Clock:
    """A clock that goes on when it is looked at, or not at all."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self._step = step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


class NextDoor(Link):
    """A link to a leader in the same process, which notes what it has brought by when."""

    def __init__(self, leaders: dict[int, LocalReplica], clock: Clock) -> None:
        self._leaders = leaders
        self._clock = clock
        self.brought: list[tuple[float, int]] = []

    async def ask(self, question: pb.ReplicaFetch) -> pb.ReplicaFetched:
        answer = await answer_follower(self._leaders[question.partition], question, Threads())
        before = self.brought[-1][1] if self.brought else 0
        if answer.frames:
            self.brought.append((self._clock.now, before + len(answer.frames)))
        return answer


class NextDoors(Links):
    """The only link that there is."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def to(self, member: BrokerMember) -> Link:  # noqa: ARG002
        return self._link


_stores: list[DirectoryStore] = []


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    """Close in the end what a test has opened."""
    yield
    while _stores:
        _stores.pop().close()


class Pair:
    """A leader with some partitions, and one that follows them from the beginning."""

    def __init__(self, path: Path, partitions: int, clock: Clock) -> None:
        leading, here = (DirectoryStore(path / name) for name in ("leader", "follower"))
        _stores.extend((leading, here))
        info = leading.create_topic("numbers", partitions=partitions, sync="never").info
        here.adopt_topic(info, [leading.schema_by_id(info, schema_id) for schema_id in info.schemas])
        self.leaders = {number: _local(leading, info, number, LEADER) for number in range(partitions)}
        self.followers = {number: _local(here, info, number, FOLLOWER) for number in range(partitions)}
        self.in_sync(LEADER)
        for leader in self.leaders.values():
            leader.log.lead(1)
            leader.led = 1
            with leader.log.leading():
                for _ in range(FRAMES):
                    leader.log.partition.append(encode([os.urandom(FRAME)]))
                leader.log.partition.sync()
            leader.appended()
        for follower in self.followers.values():
            follower.log.follow(1)
        self.link = NextDoor(self.leaders, clock)
        self.catch_up = CatchUp(RATE, clock)

    def in_sync(self, *brokers: int) -> None:
        """The cluster says who is."""
        state = PartitionState(
            (LEADER, FOLLOWER), {broker: INCARNATIONS[broker] for broker in brokers}, LEADER, INCARNATIONS[LEADER], 1
        )
        for local in (*self.leaders.values(), *self.followers.values()):
            local.observe(state, 100 + len(brokers))

    def follow(self) -> list[asyncio.Task[None]]:
        """Begin to follow."""
        member = BrokerMember(LEADER, INCARNATIONS[LEADER], "127.0.0.1:1", b"")
        return [
            asyncio.create_task(
                Follower(local, NextDoors(self.link), Threads(), self.catch_up).follow(1, lambda: member)
            )
            for local in self.followers.values()
        ]

    @property
    def has_all(self) -> bool:
        return all(follower.log.end == FRAMES for follower in self.followers.values())


def _local(store: DirectoryStore, info: TopicInfo, number: int, broker: int) -> LocalReplica:
    partition = store.partition(info, number)
    assert isinstance(partition, DirectoryPartition)
    tp = TopicPartition(info.name, number)
    local = LocalReplica((info.uuid, number), tp, DurableLog(partition), broker, 1, lambda _: None)
    local.become(INCARNATIONS[broker])
    return local


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def run(body: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(ANSWERED):
            await body

    asyncio.run(within())


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_all_partitions_that_are_behind_share_one_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_LOOK", 0.001)
    partitions = 12

    async def body() -> None:
        clock = Clock(step=0.002)
        pair = Pair(tmp_path, partitions, clock)
        tasks = pair.follow()
        await until(lambda: pair.has_all)
        await stop(tasks)
        brought = pair.link.brought
        assert brought[-1][1] > partitions * FRAMES * FRAME
        for now, size in brought:  # at first nobody knows that all of them are behind
            assert size <= RATE * (now + 1) + partitions * CHUNK
        for now, size in brought[2 * partitions :]:
            assert size <= RATE * (now + 1) + 2 * CHUNK

    run(body())


def test_one_that_is_in_sync_does_not_wait_and_one_that_comes_to_be_waits_no_longer(tmp_path: Path) -> None:
    async def body() -> None:
        pair = Pair(tmp_path, 1, Clock(step=0))
        tasks = pair.follow()
        await until(lambda: bool(pair.link.brought) and pair.link.brought[-1][1] > RATE)
        await asyncio.sleep(0.3)
        assert not pair.has_all, "no time goes by, so there is no more to be had"
        assert pair.link.brought[-1][1] <= RATE + CHUNK
        pair.in_sync(LEADER, FOLLOWER)
        await until(lambda: pair.has_all)
        await stop(tasks)

    run(body())


def test_without_a_bound_nobody_waits(tmp_path: Path) -> None:
    async def body() -> None:
        pair = Pair(tmp_path, 2, Clock(step=0))
        pair.catch_up = CatchUp(None, Clock(step=0))
        tasks = pair.follow()
        await until(lambda: pair.has_all)
        await stop(tasks)

    run(body())


@needs_etcd
def test_a_broker_that_was_away_catches_up_at_its_pace_while_others_write(tmp_path: Path) -> None:
    rate = 1 << 20
    with ClusterProcesses(tmp_path, 2, "--catch-up-bytes-per-second", "1MiB") as cluster:
        with hw.open(cluster.address) as store:
            store.create_topic("numbers", compression="none")
            away = 1 - cluster.wait("numbers", in_sync={0, 1}).leader
            cluster.kill(away)
            cluster.wait("numbers", in_sync={1 - away})
            with store.producer("numbers") as out:
                for _ in range(40):
                    out.send_batch([os.urandom(100_000)])
                out.flush()
                begun = time.monotonic()
                cluster.begin(away)
                assert out.send(b"meanwhile").wait(ANSWERED) == 40
            cluster.wait("numbers", in_sync={0, 1})
            took = time.monotonic() - begun
            assert rate * (took + 1) + rate // 8 + 1_000_000 >= 40 * 100_000
        assert len(cluster.wait_for_copies("numbers")[away]) == 41
