"""Coordinators of internal topics: they know what their predecessors acknowledged before they say a word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.cluster.internal import Coordinators, InternalLog, Record
from headwater.core.errors import NotLeader
from headwater.log import encode
from tests.cluster.held import ME, OTHER, PLACE, Held, Threads, in_loop, soon


class Coordinator:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.records: list[Record] | None = None

    def replay(self, records: list[Record]) -> None:
        self.records = records

    def end(self) -> None:
        """Nobody waits for it."""


class Node:
    """As much of a node as coordinators need."""

    def __init__(self) -> None:
        self.threads = Threads()
        self.led: list[Callable[[Any], None]] = []
        self.tasks: list[asyncio.Task[None]] = []
        topics = {PLACE.topic: SimpleNamespace(info=SimpleNamespace(partitions=1))}
        self.membership = SimpleNamespace(view=SimpleNamespace(topics=topics))
        self.leadership = self.replicas = self

    def on_led(self, callback: Callable[[Any], None]) -> None:
        self.led.append(callback)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    def resign(self, *_: object) -> bool:
        return False

    def not_leader(self, partition: tuple[str, int]) -> NotLeader:
        return NotLeader(*partition, None)


def inherit(held: Held) -> None:
    """Lead, after another one has, with a record of which nobody here knows whether it was acknowledged."""
    held.state(1, ME)
    with held.local.log.leading():
        held.local.log.partition.append(encode([b"value"], keys=[b"key"]))
    held.local.appended()
    held.state(2, OTHER)
    held.state(3, ME)


@in_loop
async def test_a_log_is_replayed_when_the_others_have_all_of_it(held: Held) -> None:
    """A coordinator must not act upon records that the next leader could lack."""
    inherit(held)
    taken: list[Record] = []
    replaying = asyncio.create_task(InternalLog(held.local, Threads(), lambda *_: False).replay(taken.extend))
    await soon()
    assert (taken, replaying.done()) == ([], False)
    held.follower_has(1)
    await replaying
    assert taken == [(b"key", b"value")]


@in_loop
async def test_nobody_finds_a_coordinator_that_has_yet_to_replay(held: Held) -> None:
    inherit(held)
    node: Any = Node()
    made: list[Coordinator] = []

    def make(_: InternalLog) -> Coordinator:
        made.append(Coordinator())
        return made[-1]

    coordinators = Coordinators(node, PLACE.topic, make)
    for callback in node.led:
        callback(held.local)
    await soon()
    (coordinator,) = made
    assert (coordinators.all(), coordinator.records) == ({}, None)
    with pytest.raises(NotLeader):
        coordinators.at("anything")
    held.follower_has(1)
    while not coordinators.all():
        await asyncio.sleep(0)
    assert coordinators.at("anything") is coordinator
    assert coordinator.records == [(b"key", b"value")]
    held.state(4, OTHER)
    await asyncio.gather(*node.tasks)
    assert coordinators.all() == {}


@in_loop
async def test_a_record_is_acknowledged_when_the_others_have_it(held: Held) -> None:
    held.state(1, ME)
    appending = InternalLog(held.local, Threads(), lambda *_: False).append([(b"key", b"value")])
    while held.local.log.partition.bounds().durable_end < 1:
        await asyncio.sleep(0)
    await soon()
    assert not appending.done()
    held.follower_has(1)
    assert (await appending).end_offset == 1
