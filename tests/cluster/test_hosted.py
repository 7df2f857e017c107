"""A replica that a broker holds: who is told what, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headwater.cluster.durable_log import DurableLog
from headwater.cluster.hosted import PATIENCE, Hosted
from headwater.cluster.leading import answer_follower
from headwater.cluster.metadata import PartitionState
from headwater.cluster.replica import FetchRequest, NotLeading
from headwater.log import Appended, DirectoryPartition, encode
from headwater.store.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb

ME, OTHER = 0, 1
PLACE = TopicPartition("numbers", 0)


class Held:
    """A replica of two, in an event loop."""

    def __init__(self, path: Path) -> None:
        self.told: list[TopicPartition] = []
        log = DurableLog(DirectoryPartition(path))
        self.hosted = Hosted((bytes(16), 0), PLACE, log, ME, 2, self.told.append)
        self.hosted.become(10)

    def state(self, epoch: int, leader: int) -> None:
        """The cluster has elected; the log takes on its role."""
        in_sync = {ME: 10, OTHER: 20}
        self.hosted.observe(PartitionState((ME, OTHER), in_sync, leader, in_sync[leader], epoch), 100 + epoch)
        if leader == ME:
            self.hosted.log.lead(epoch)
            self.hosted.led = epoch
            self.hosted.appended()
        else:
            self.hosted.log.follow(epoch)

    def append(self, *, by_all: bool = True) -> asyncio.Task[Appended]:
        """One record, and the wait for its acknowledgement."""
        with self.hosted.log.leading():
            appended = self.hosted.log.partition.append(encode([b"x"]))
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        done.set_result(appended)
        return asyncio.create_task(self.hosted.acknowledged(done, self.hosted.led, by_all=by_all))

    def follower_has(self, end: int) -> None:
        """The other one asks, and has so much."""
        epoch = self.hosted.replica.epoch
        last = self.hosted.log.epoch_before(end)
        self.hosted.fetch(FetchRequest(OTHER, 20, epoch, end, end, last))


async def soon() -> None:
    """Let whoever can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def in_loop(test: Callable[[Held], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        async def body() -> None:
            async with asyncio.timeout(30):
                await test(Held(tmp_path))

        asyncio.run(body())

    run.__name__ = test.__name__
    return run


@in_loop
async def test_a_record_is_acknowledged_when_all_who_are_in_sync_have_it(held: Held) -> None:
    held.state(1, ME)
    first, second = held.append(), held.append()
    await soon()
    assert not first.done()
    held.follower_has(1)
    await soon()
    assert (await first, second.done()) == (Appended(0, 1), False)
    held.follower_has(2)
    assert await second == Appended(1, 2)
    assert held.told, "those who read are told"


@in_loop
async def test_who_wants_no_more_than_the_leader_does_not_wait(held: Held) -> None:
    held.state(1, ME)
    assert await held.append(by_all=False) == Appended(0, 1)


@in_loop
async def test_nothing_is_acknowledged_in_another_role_than_it_was_appended_in(held: Held) -> None:
    held.state(1, ME)
    waiting = held.append()
    await soon()
    held.state(2, OTHER)
    with pytest.raises(NotLeading):
        await waiting


@in_loop
async def test_what_was_appended_in_an_earlier_epoch_is_not_acknowledged_in_a_later_one(held: Held) -> None:
    """Its offset may be another record's by now."""
    held.state(1, ME)
    late = held.append()  # whose append is done, and not heard of yet
    held.state(2, OTHER)
    held.state(3, ME)
    held.follower_has(1)
    with pytest.raises(NotLeading):
        await late


@in_loop
async def test_another_incarnation_inherits_no_leadership(held: Held) -> None:
    held.state(1, ME)
    waiting = held.append()
    await soon()
    held.hosted.become(11)
    assert not held.hosted.leads
    with pytest.raises(NotLeading):
        await waiting
    with pytest.raises(NotLeading):
        held.follower_has(1)


@in_loop
async def test_a_leader_whose_followers_are_silent_is_alone(held: Held) -> None:
    held.state(1, ME)
    now = time.monotonic()
    held.follower_has(0)
    assert not held.hosted.replica.is_alone(now)
    assert held.hosted.replica.is_alone(now + 2 * PATIENCE)
    held.hosted.observe(PartitionState((ME, OTHER), {ME: 10}, ME, 10, 1), 200)
    assert not held.hosted.replica.is_alone(now + 2 * PATIENCE), "there is nobody who could have been elected"


@in_loop
async def test_who_waits_goes_on_when_the_other_one_counts_no_more(held: Held) -> None:
    """Nobody asks any more who could wake it: a coordinator of two brokers would wait until one comes back."""
    held.hosted.require(1)
    held.state(1, ME)
    with held.hosted.log.leading():
        held.hosted.log.partition.append(encode([b"x"]))
    held.hosted.appended()
    sure = asyncio.create_task(held.hosted.confirm(1))
    await soon()
    acknowledged = asyncio.create_task(held.hosted.changed())
    await soon()
    assert not sure.done()
    assert not acknowledged.done()
    held.hosted.observe(PartitionState((ME, OTHER), {ME: 10}, ME, 10, 1), 200)
    await sure
    await acknowledged
    assert held.hosted.replica.high_watermark == 1


@in_loop
async def test_nobody_is_sent_what_delete_markers_are_about_to_leave(held: Held) -> None:
    held.state(1, ME)
    for _ in range(3):
        held.append(by_all=False)
    await soon()
    log = held.hosted.log

    class Threads:
        """The work of a disk, before and after which something else happens."""

        def __init__(self) -> None:
            self.then = ExitStack()

        async def read(self, work: Callable[..., Any], *args: Any) -> Any:
            found = work(*args)
            if forgets_meanwhile:
                self.then.enter_context(log._forgetting(2))
            return found

        write = read

    async def sent(end: int) -> pb.ReplicaFetched:
        last = log.epoch_before(end)
        position = {"epoch": 1, "end": end, "durable_end": end, "last_epoch": last}
        question = pb.ReplicaFetch(topic_uuid=bytes(16), replica=OTHER, incarnation=20, max_wait_ms=20, **position)
        with threads.then:
            return await answer_follower(held.hosted, question, threads)

    threads, forgets_meanwhile = Threads(), False
    with log._forgetting(2):
        assert not (await sent(0)).frames
        assert (await sent(2)).frames  # whoever is that far has them
    found = await sent(0)
    assert found.frames
    assert (found.markers_until, found.markers_state) == log.markers
    forgets_meanwhile = True
    assert not (await sent(0)).frames
    assert (await sent(2)).frames
