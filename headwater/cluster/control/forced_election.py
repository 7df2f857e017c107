"""Forced elections: an operator lets a replica lead that may lack what was acknowledged.

It is for partitions that nobody may lead any more, because one that was in sync is lost for good. All that is known is
told first; what is done then counts only while all of it is still so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from headwater.cluster.control.controller import Ask
from headwater.cluster.control.election import Election
from headwater.cluster.control.metadata import Members, PartitionState
from headwater.cluster.control.view import ClusterView
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import Put, WriteGuard
from headwater.cluster.etcd.keys import BrokerMember, ClusterTopic, PartitionKey, state_to_json
from headwater.core.errors import EtcdUnavailable, HeadwaterError, StoreError
from headwater.streams.topic import TopicPartition

_log = logging.getLogger(__name__)
_ASKING: Final = 5.0


class Standing(NamedTuple):
    """A replica as it is known; `end` is None if it does not tell, or if something is missing there."""

    broker: int
    in_sync: bool
    alive: bool
    end: int | None


class Outlook(NamedTuple):
    """A partition that nobody leads: as of which revision, in which epoch, and how its replicas are."""

    revision: int
    epoch: int
    replicas: tuple[Standing, ...]


class ForcedElection:
    """The election of one broker for one partition, by command. It belongs to one event loop."""

    def __init__(self, etcd: Etcd, view: ClusterView, ask: Ask, topic: ClusterTopic, number: int, broker: int) -> None:
        self._etcd = etcd
        self._view = view
        self._ask = ask
        self._partition = TopicPartition(topic.info.name, number)
        self._key: PartitionKey = (topic.info.uuid, number)
        self._rules = Election(topic.min_insync)
        self._broker = broker

    def __str__(self) -> str:
        return f"{self._partition.topic}/{self._partition.partition}"

    async def look(self) -> Outlook:
        """Look at the replicas; raises StoreError if nothing needs to be forced, or if the broker cannot lead."""
        await self._view.refresh()
        state, revision, alive = self._checked()
        members = [self._view.members[broker] for broker in state.replicas if broker in alive]
        ends = dict(zip((member.id for member in members), await asyncio.gather(*map(self._end, members)), strict=True))
        if ends[self._broker] is None:
            raise StoreError(
                f"broker {self._broker} does not report the end of its log of {self}, or has lost records of it: see "
                f"the messages that this broker has logged"
            )
        standings = [
            Standing(broker, broker in state.in_sync, broker in alive, ends.get(broker)) for broker in state.replicas
        ]
        return Outlook(revision, state.epoch, tuple(standings))

    async def hold(self, revision: int) -> int:
        """Let the broker lead, if the partition is still as it was at that revision: the new epoch.

        Raises StoreError when it is not, or when a broker that counts has come or gone at this very moment, and
        EtcdUnavailable.
        """
        await self._view.refresh()
        state, _, alive = self._checked()
        forced = self._rules.force(state, self._broker, alive[self._broker])
        name = self._view.keys.partition(self._key)
        counted = {*state.in_sync, self._broker}
        guards = [WriteGuard(self._view.keys.broker(broker), created=alive.get(broker, 0)) for broker in counted]
        guards.append(WriteGuard(name, changed=revision))
        try:
            done = await self._etcd.write(guards, [Put(name, state_to_json(forced))]) > 0
        except EtcdUnavailable as error:
            if not error.unknown:
                raise
            await self._view.refresh()
            now, changed = self._view.partitions.get(self._key, (None, 0))
            if changed == revision:
                raise  # it may still be done, by a write that is under way
            done = now == forced
        if not done:
            raise self._changed()
        _log.warning("broker %d leads %s by an operator's command, epoch %d", self._broker, self, forced.epoch)
        return forced.epoch

    def _checked(self) -> tuple[PartitionState, int, Members]:
        """The partition, its revision and who is alive; raises StoreError unless there is a need, and a candidate."""
        alive = self._view.alive
        state, revision = self._view.partitions.get(self._key, (None, 0))
        if state is None:
            raise StoreError(f"partition {self} does not exist")
        if self._broker not in state.replicas:
            raise StoreError(f"broker {self._broker} has no replica of {self}: brokers {_listed(state.replicas)} do")
        if self._rules.is_led(state, alive):
            raise StoreError(f"broker {state.leader} leads {self}: no election is needed")
        if state.in_sync and (state.in_sync.keys() <= alive.keys() or not self._rules.asks(state, alive)):
            raise StoreError(f"{self} will get a leader without help: its in-sync replicas live, and nothing is lost")
        if self._broker not in alive:
            raise StoreError(f"broker {self._broker} is away, and cannot lead {self}: start it, or choose another")
        return state, revision, alive

    def _changed(self) -> StoreError:
        return StoreError(f"{self} or its brokers have changed meanwhile, and nothing was done: try again")

    async def _end(self, member: BrokerMember) -> int | None:
        try:
            async with asyncio.timeout(_ASKING):
                log_end = (await self._ask(member, [self._key])).get(self._key)
        except (HeadwaterError, TimeoutError):
            return None
        return None if log_end is None else log_end.end


def _listed(brokers: tuple[int, ...]) -> str:
    return ", ".join(map(str, brokers))
