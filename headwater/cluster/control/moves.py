"""Moves by an operator's command: a plan is told first, and what is begun counts only where nothing has changed since.

To begin a move is to write into the partition's key where its replicas should be. The controller does the rest, also
when the one that has begun it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from headwater.cluster.control.balancing import HeldReplica, balanced
from headwater.cluster.control.metadata import Move, PartitionState
from headwater.cluster.control.moving import Moving
from headwater.cluster.control.view import ClusterView
from headwater.cluster.etcd.client import MOST_CHANGES, Etcd
from headwater.cluster.etcd.item import Delete, Put, WriteGuard
from headwater.cluster.etcd.keys import BrokerMember, ClusterTopic, PartitionKey, state_to_json
from headwater.core.errors import EtcdUnavailable, HeadwaterError, StoreError

_log = logging.getLogger(__name__)
_ASKING: Final = 5.0
_ATTEMPTS: Final = 10

Weigh = Callable[[BrokerMember, Collection[PartitionKey]], Awaitable[Mapping[PartitionKey, int]]]
"""Asks a broker how many bytes its logs have; it may raise HeadwaterError."""


class PlannedMove(NamedTuple):
    """A partition whose replicas are to be elsewhere, or already on their way."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    to: tuple[int, ...]
    revision: int
    size: int
    """The number of bytes that are to be copied in all."""
    copied: int = 0
    """The number of them that are there."""
    missing: tuple[int, ...] = ()
    """The wanted replicas that are not in sync."""


class Moves:
    """Plans, begins and takes back moves. It belongs to one event loop. Every method raises EtcdUnavailable."""

    def __init__(self, etcd: Etcd, view: ClusterView, weigh: Weigh) -> None:
        self._etcd = etcd
        self._view = view
        self._weigh = weigh
        self._rules = Moving()

    async def plan(
        self, remove: Collection[int] = (), *, keeping: Collection[int] = (), partial: bool = False
    ) -> list[PlannedMove]:
        """The moves of a rebalancing, beside those under way; or with `remove`, those that leave these brokers.

        Replicas on brokers that are away move to others, but for those that are `keeping` them. Raises
        InvalidConfiguration when too few brokers would be left; with `partial`, partitions that need more stay instead.
        """
        await self._view.refresh()
        view = self._view
        known = set(view.members) | {broker for state, _ in view.partitions.values() for broker in state.replicas}
        unknown = [broker for broker in remove if broker not in known]
        if unknown:
            raise StoreError(f"broker {unknown[0]} does not exist: the cluster has brokers {_listed(sorted(known))}")
        sizes = await self._sizes()
        partitions = {
            key: HeldReplica(state.wanted, topic.replication, max(sizes.get(key, {}).values(), default=0))
            for key, state, topic in self._known()
        }
        brokers = view.members.keys() - view.leaving - set(remove)
        keepers = frozenset(keeping).difference(brokers, remove)
        if partial:
            partitions = {
                key: held
                for key, held in partitions.items()
                if held.replication <= len(brokers) + len(keepers.intersection(held.replicas))
            }
        placement = balanced(partitions, brokers, keeping=keepers, level=not remove)
        moves = []
        for key, state, topic in self._known():
            to = placement.get(key, state.wanted)
            if to != state.wanted:
                coming = len(set(to) - set(state.replicas))
                moves.append(
                    PlannedMove(
                        topic.info.name,
                        key[1],
                        state.wanted,
                        to,
                        view.partitions[key][1],
                        partitions[key].size * coming,
                    )
                )
        return sorted(moves)

    async def begin(
        self, moves: Sequence[PlannedMove], remove: Collection[int] = (), *, unless: Collection[str] = ()
    ) -> int:
        """Begin moves as they were planned: how many of them. Those whose partitions have changed since are left out.

        The brokers of `remove` get no new replicas from now on. None begins if one of the keys in `unless` is there.
        """
        await self._view.refresh()
        changes = []
        for move in moves:
            topic = self._view.topics.get(move.topic)
            key = None if topic is None else (topic.info.uuid, move.partition)
            state, revision = self._view.partitions.get(key, (None, 0)) if key is not None else (None, 0)
            if topic is None or key is None or state is None or revision != move.revision:
                continue
            self._check(move, topic, state)
            changes.append((key, revision, self._rules.begin(state, move.to)))
        for broker in remove:
            await self._etcd.write(
                [], [Put(self._view.keys.leaving(broker), b"{}"), Delete(self._view.keys.levelled(broker))]
            )
        return await self._write(changes, [WriteGuard(key, created=0) for key in unless])

    def _check(self, move: PlannedMove, topic: ClusterTopic, state: PartitionState) -> None:
        """Raise StoreError for a placement that no plan has: requests come from anywhere."""
        to = set(move.to)
        able = {*self._view.members, *state.replicas, *state.wanted}
        if len(to) != len(move.to) or len(to) != topic.replication or not to <= able:
            raise StoreError(
                f"{move.topic}/{move.partition} cannot move to brokers {_listed(move.to)}: it needs "
                f"{topic.replication} different brokers, and those that have no replica yet must be alive"
            )

    async def cancel(self, remove: Collection[int] = ()) -> int:
        """Take back moves that have not happened yet, and return of how many partitions. Finished moves stay.

        With `remove` that is what leaves these brokers, and they may have new replicas again; without, all else. A
        partition stays on its way to another replication factor: another change of the topic takes that back.
        """
        await self._view.refresh()
        leaving = frozenset(remove) or self._view.leaving
        for broker in remove:
            await self._etcd.write([], [Delete(self._view.keys.leaving(broker))])
        if not remove:
            await self._deal_with([key for key, _, _ in self._to_cancel(remove, leaving)])
        cancelled = 0
        for _ in range(_ATTEMPTS):  # the controller may take a step of a move at the same moment
            await self._view.refresh()
            changes = self._to_cancel(remove, leaving)
            if not changes:
                break
            cancelled += await self._write(changes)
        return cancelled

    def _to_cancel(
        self, remove: Collection[int], leaving: Collection[int]
    ) -> list[tuple[PartitionKey, int, PartitionState]]:
        """The partitions whose moves are to be taken back, as they are to be then."""
        return [
            (key, revision, self._rules.cancel(state))
            for key, (state, revision) in self._view.partitions.items()
            if state.move is not None
            and bool(remove) == any(_leaves(broker, state.move) for broker in leaving)
            and (remove or self._had_enough(key, state.move))
            and self._rules.cancel(state) != state
        ]

    async def _deal_with(self, cancelled: Sequence[PartitionKey]) -> None:
        """Note first that nothing begins these moves again by itself, whoever dies before they are taken back."""
        keys, members = self._view.keys, self._view.members
        left = {
            broker
            for key in cancelled
            if (move := self._view.partitions[key][0].move) is not None
            for broker in move.back
            if broker not in members and _leaves(broker, move)
        }
        notes = [Put(keys.kept(broker), b"{}") for broker in sorted(left)]
        notes += [Put(keys.levelled(broker), b"{}") for broker in sorted(members.keys() - self._view.levelled)]
        for note in notes:
            await self._etcd.write([], [note])

    async def note_levelled(self, broker: int) -> None:
        """Note that replicas were levelled after a broker had joined."""
        await self._etcd.write([], [Put(self._view.keys.levelled(broker), b"{}")])

    async def forget_levelled(self, broker: int) -> None:
        """Let a broker count as added when it comes the next time."""
        if broker in self._view.levelled:
            await self._etcd.write([], [Delete(self._view.keys.levelled(broker))])

    async def forget_kept(self, broker: int) -> None:
        """Let replicas leave a broker again that is gone for too long: it has come back meanwhile."""
        await self._etcd.write([], [Delete(self._view.keys.kept(broker))])

    def _had_enough(self, key: PartitionKey, move: Move) -> bool:
        """Return whether the partition had as many replicas before a move as its topic asks for."""
        topic = self._view.topic_of(key[0])
        return topic is None or len(move.back) == topic.replication

    async def under_way(self) -> list[PlannedMove]:
        """The moves that are not done, and how far each of them is."""
        moving = {key for key, (state, _) in self._view.partitions.items() if state.move is not None}
        sizes = await self._sizes(moving)
        moves = []
        for key, state, topic in self._known():
            if state.move is None:
                continue
            held = sizes.get(key, {})
            whole = max(held.values(), default=0)
            coming = set(state.move.to) - set(state.move.back)
            copied = sum(whole if broker in state.in_sync else min(held.get(broker, 0), whole) for broker in coming)
            missing = tuple(broker for broker in state.move.to if broker not in state.in_sync)
            revision = self._view.partitions[key][1]
            moves.append(
                PlannedMove(
                    *(topic.info.name, key[1], state.move.back, state.move.to, revision),
                    *(whole * len(coming), copied, missing),
                )
            )
        return sorted(moves)

    def _known(self) -> Iterator[tuple[PartitionKey, PartitionState, ClusterTopic]]:
        for key, (state, _) in self._view.partitions.items():
            topic = self._view.topic_of(key[0])
            if topic is not None:
                yield key, state, topic

    async def _sizes(self, keys: Collection[PartitionKey] | None = None) -> dict[PartitionKey, dict[int, int]]:
        """The number of bytes of each partition at every broker that answers."""
        held: dict[int, list[PartitionKey]] = {}
        for key, (state, _) in self._view.partitions.items():
            for broker in state.replicas if keys is None or key in keys else ():
                held.setdefault(broker, []).append(key)
        members = [self._view.members[broker] for broker in held if broker in self._view.members]
        answers = await asyncio.gather(*(self._weighed(member, held[member.id]) for member in members))
        sizes: dict[PartitionKey, dict[int, int]] = {}
        for member, answer in zip(members, answers, strict=True):
            for key, size in answer.items():
                sizes.setdefault(key, {})[member.id] = size
        return sizes

    async def _weighed(self, member: BrokerMember, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        try:
            async with asyncio.timeout(_ASKING):
                return await self._weigh(member, keys)
        except (HeadwaterError, TimeoutError) as error:
            _log.warning("broker %d does not report the sizes of its logs: %s", member.id, str(error) or "no answer")
            return {}

    async def _write(
        self, changes: Sequence[tuple[PartitionKey, int, PartitionState]], besides: Sequence[WriteGuard] = ()
    ) -> int:
        """Write these, each if its partition is as it was: how many were. An answer that is lost is looked up.

        Nothing is written unless the guards `besides` hold as well.
        """
        done = 0
        for first in range(0, len(changes), MOST_CHANGES):
            done += await self._write_some(changes[first : first + MOST_CHANGES], besides)
        return done

    async def _write_some(
        self, changes: Sequence[tuple[PartitionKey, int, PartitionState]], besides: Sequence[WriteGuard]
    ) -> int:
        names = [self._view.keys.partition(key) for key, _, _ in changes]
        guards = [WriteGuard(name, changed=revision) for name, (_, revision, _) in zip(names, changes, strict=True)]
        puts = [Put(name, state_to_json(state)) for name, (_, _, state) in zip(names, changes, strict=True)]
        try:
            if await self._etcd.write([*guards, *besides], puts):
                return len(changes)
        except EtcdUnavailable as error:
            if not error.unknown:
                raise
            await self._view.refresh()
            key, _, wished = changes[0]
            now, _ = self._view.partitions.get(key, (None, 0))
            if now is None or now.move != wished.move:
                raise
            return len(changes)  # all or none of them were written
        if len(changes) == 1:
            return 0
        half = len(changes) // 2
        return await self._write_some(changes[:half], besides) + await self._write_some(changes[half:], besides)


def _leaves(broker: int, move: Move) -> bool:
    return broker in move.back and broker not in move.to


def _listed(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers))
