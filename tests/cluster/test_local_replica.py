"""A replica that a broker holds: who is told what, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.replication.leading import answer_follower
from headwater.cluster.replication.local_replica import PATIENCE
from headwater.cluster.replication.replica import NotLeading
from headwater.log import Appended, encode
from headwater.v1 import broker_pb2 as pb
from tests.cluster.held import ME, OTHER, Held, in_loop, soon


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
async def test_a_record_that_comes_again_is_acknowledged_no_sooner_than_the_first_time(held: Held) -> None:
    """A producer that was told of the record would not send it again, though the next leader may not have it."""
    held.state(1, ME)
    first = held.append()
    await soon()
    known: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    known.set_result(Appended(0, 1, duplicate=True))
    again = asyncio.create_task(held.local.acknowledged(known, 1, by_all=True))
    await soon()
    assert (first.done(), again.done()) == (False, False)
    held.follower_has(1)
    assert await first == Appended(0, 1)
    assert await again == Appended(0, 1, duplicate=True)


@in_loop
async def test_a_new_leader_answers_readers_when_the_others_have_what_it_inherits(held: Held) -> None:
    held.state(1, ME)
    assert held.local.replica.readable == 0, "an empty log has nothing to wait for"
    await held.append(by_all=False)
    held.state(2, OTHER)
    held.state(3, ME)
    assert held.local.replica.readable is None
    await held.append(by_all=False)  # which is none of what it waits for
    held.told.clear()
    held.follower_has(0)
    assert (held.local.replica.readable, held.told) == (None, [])
    held.follower_has(1)
    assert held.local.replica.readable == 1
    assert held.told, "those who read are told"


@in_loop
async def test_a_leader_that_is_alone_in_sync_shows_what_it_inherits_and_acknowledges_nothing(held: Held) -> None:
    """Nobody else can be elected then, so that nobody can take back what it shows."""
    held.state(1, ME)
    await held.append(by_all=False)
    held.state(2, OTHER)
    held.state(3, ME)
    assert held.local.replica.readable is None
    held.told.clear()
    held.local.observe(PartitionState((ME, OTHER), {ME: 10}, ME, 10, 3), 200)
    assert held.told, "those who read are told"
    waiting = held.append()
    await soon()
    replica: Any = held.local.replica
    assert (replica.readable, replica.high_watermark, waiting.done()) == (1, 0, False)
    waiting.cancel()


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
    held.local.become(11)
    assert not held.local.leads
    with pytest.raises(NotLeading):
        await waiting
    with pytest.raises(NotLeading):
        held.follower_has(1)


@in_loop
async def test_a_leader_whose_followers_are_silent_is_alone(held: Held) -> None:
    held.state(1, ME)
    now = time.monotonic()
    held.follower_has(0)
    assert not held.local.replica.is_alone(now)
    assert held.local.replica.is_alone(now + 2 * PATIENCE)
    held.local.observe(PartitionState((ME, OTHER), {ME: 10}, ME, 10, 1), 200)
    assert not held.local.replica.is_alone(now + 2 * PATIENCE), "there is nobody who could have been elected"


@in_loop
async def test_who_waits_goes_on_when_the_other_one_counts_no_more(held: Held) -> None:
    """Nobody asks any more who could wake it: a coordinator of two brokers would wait until one comes back."""
    held.local.require(1)
    held.state(1, ME)
    with held.local.log.leading():
        held.local.log.partition.append(encode([b"x"]))
    held.local.appended()
    sure = asyncio.create_task(held.local.confirm(1))
    await soon()
    acknowledged = asyncio.create_task(held.local.changed())
    await soon()
    assert not sure.done()
    assert not acknowledged.done()
    held.local.observe(PartitionState((ME, OTHER), {ME: 10}, ME, 10, 1), 200)
    await sure
    await acknowledged
    assert held.local.replica.high_watermark == 1


@in_loop
async def test_nobody_is_sent_what_delete_markers_are_about_to_leave(held: Held) -> None:
    held.state(1, ME)
    for _ in range(3):
        held.append(by_all=False)
    await soon()
    log = held.local.log

    class Threads:
        """The work of a disk, before and after which something else happens."""

        def __init__(self) -> None:
            self.then = ExitStack()

        async def read(self, work: Callable[..., Any], *args: Any) -> Any:
            outcome = work(*args)
            if forgets_meanwhile:
                self.then.enter_context(log._forgetting(2))
            return outcome

        write = read

    async def sent(end: int) -> pb.ReplicaFetched:
        last = log.epoch_before(end)
        question = pb.ReplicaFetch(
            topic_uuid=bytes(16),
            replica=OTHER,
            incarnation=20,
            max_wait_ms=20,
            epoch=1,
            end=end,
            durable_end=end,
            last_epoch=last,
        )
        with threads.then:
            return await answer_follower(held.local, question, threads)

    threads, forgets_meanwhile = Threads(), False
    with log._forgetting(2):
        assert not (await sent(0)).frames
        assert (await sent(2)).frames  # whoever is that far has them
    answer = await sent(0)
    assert answer.frames
    assert (answer.markers_until, answer.markers_state) == log.markers
    forgets_meanwhile = True
    assert not (await sent(0)).frames
    assert (await sent(2)).frames
