"""The replication factor of a topic: partitions get the number of replicas that their topic asks for.

The topic says first how often it is kept. Then its partitions get more or fewer replicas, by the moves by which any
replica comes and goes. A higher minimum of in-sync replicas holds as soon as every partition has so many: until then,
writes would wait for replicas that are still copying. Each step is seen in what the one before has left, so the
controller of that moment takes the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headwater.cluster.control.assignment import default_min_insync
from headwater.cluster.control.balancing import HeldReplica, balanced
from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.control.moves import PlannedMove
from headwater.cluster.etcd.keys import ClusterTopic, PartitionKey
from headwater.core.errors import HeadwaterError, InvalidConfiguration

if TYPE_CHECKING:
    from headwater.cluster.node import ClusterNode

_log = logging.getLogger(__name__)
_INTERVAL: Final = 2.0

Partitions = Mapping[PartitionKey, tuple[PartitionState, int]]


def with_replication(topic: ClusterTopic, replication: int | None, min_insync: int | None) -> ClusterTopic:
    """A topic that asks for another number of replicas, and for another minimum in sync; None leaves a number.

    A minimum that nobody has chosen follows the number of replicas. Raises InvalidConfiguration.
    """
    replicas = topic.replication if replication is None else replication
    before = topic.next_min_insync or topic.min_insync
    if min_insync is not None:
        wanted = min_insync
    elif before == default_min_insync(topic.replication):
        wanted = default_min_insync(replicas)
    else:
        wanted = min(before, replicas)
    if not 1 <= wanted <= replicas:
        raise InvalidConfiguration(
            f"topic {topic.info.name!r} has {replicas} replicas, so its min_insync must be from 1 to {replicas}, not "
            f"{wanted}"
        )
    now = min(topic.min_insync, wanted)
    return replace(topic, replication=replicas, min_insync=now, next_min_insync=wanted if wanted > now else 0)


class ReplicationFactors:
    """Gives partitions the number of replicas that their topics ask for. It belongs to one event loop."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    async def run(self) -> None:
        """Look at all topics, for ever, while this broker is the controller."""
        while True:
            await asyncio.sleep(_INTERVAL)
            if not self._node.membership.controller.since:
                continue
            for name in list(self._node.membership.view.topics):
                try:
                    await self.step(name)
                except HeadwaterError as error:
                    _log.debug("%s does not get another number of replicas now: %s", name, error)

    async def step(self, name: str) -> None:
        """Take the next step for a topic, if there is one."""
        topic = self._node.membership.view.topics.get(name)
        if topic is None:
            return
        partitions = self._partitions(topic)
        if len(partitions) < topic.info.partitions:
            return  # some are not made yet
        moves = self._moves(topic, partitions)
        if moves:
            _log.info("%s gets %d replicas of each partition", name, topic.replication)
            await self._node.moves.begin(moves)
        elif topic.next_min_insync and all(
            len(state.in_sync) >= topic.next_min_insync for state, _ in partitions.values()
        ):
            await self._node.topics.change(name, _settled)

    def _partitions(self, topic: ClusterTopic) -> Partitions:
        partitions = self._node.membership.view.partitions
        keys = [(topic.info.uuid, number) for number in range(topic.info.partitions)]
        return {key: partitions[key] for key in keys if key in partitions}

    def _moves(self, topic: ClusterTopic, partitions: Partitions) -> list[PlannedMove]:
        """The moves of partitions that have another number of replicas, and will have."""
        view = self._node.membership.view
        differing = {key for key, (state, _) in partitions.items() if len(state.wanted) != topic.replication}
        if not differing:
            return []
        held = {
            key: HeldReplica(state.wanted, topic.replication if key in differing else len(state.wanted))
            for key, (state, _) in view.partitions.items()
        }
        staying = {
            broker for broker, member in view.members.items() if broker not in view.leaving and not member.draining
        }
        holders = {broker for replica in held.values() for broker in replica.replicas}
        placed = balanced(held, staying, keeping=holders - staying, level=False)
        moves = []
        for key in sorted(differing):
            state, revision = partitions[key]
            to = placed[key]
            if state.move is not None and len(state.move.back) == topic.replication:
                to = state.move.back  # the change is taken back
            moves.append(PlannedMove(topic.info.name, key[1], state.wanted, to, revision, 0))
        return moves


def _settled(topic: ClusterTopic) -> ClusterTopic:
    """The topic with the minimum that it was to have."""
    wanted = max(topic.min_insync, min(topic.next_min_insync, topic.replication))
    return replace(topic, min_insync=wanted, next_min_insync=0)
