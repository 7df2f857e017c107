"""Growing: internal topics that were made while few brokers were there are kept by more when others have come.

First the topic says how often it is kept; then its partitions get more replicas, by the moves by which any replica
comes; and when all of them are in sync, the topic asks for more of them before anything is acknowledged. Each step is
seen in what the one before has left, so the controller of that moment takes the next one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headwater.cluster.control.assignment import default_min_insync
from headwater.cluster.control.balancing import HeldReplica, balanced
from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.control.moves import PlannedMove
from headwater.cluster.etcd.keys import ClusterTopic, PartitionKey
from headwater.cluster.internal import INTERNAL
from headwater.core.config import DEFAULT_REPLICATION
from headwater.core.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.cluster.node import ClusterNode

_log = logging.getLogger(__name__)
_INTERVAL: Final = 2.0


class Growing:
    """Sees to it that internal topics are kept as often as others. For the event loop."""

    def __init__(self, node: ClusterNode, replication: int | None) -> None:
        """So often, if there are as many brokers; None is three times."""
        self._node = node
        self._replication = replication or DEFAULT_REPLICATION

    async def run(self) -> None:
        """Look at them, for ever, while this broker is the controller."""
        while True:
            await asyncio.sleep(_INTERVAL)
            if not self._node.membership.controller.since:
                continue
            for name in sorted(INTERNAL):
                try:
                    await self.grow(name)
                except HeadwaterError as error:
                    _log.debug("%s does not grow now: %s", name, error)

    async def grow(self, name: str) -> None:
        """Take the next step, if there is one."""
        view = self._node.membership.view
        topic = view.topics.get(name)
        if topic is None:
            return
        staying = [
            broker for broker, member in view.members.items() if broker not in view.leaving and not member.draining
        ]
        wanted = min(self._replication, len(staying))
        if wanted > topic.replication:
            await self._node.topics.change(
                name, lambda current: replace(current, replication=max(wanted, current.replication))
            )
            return
        held = self._partitions(topic)
        if len(held) < topic.info.partitions or any(state.move is not None for state, _ in held.values()):
            return
        few = {key: HeldReplica(state.replicas, topic.replication) for key, (state, _) in held.items()}
        few = {key: replica for key, replica in few.items() if len(replica.replicas) < topic.replication}
        if few and len(staying) >= topic.replication:
            placed = balanced(
                few, {*staying, *(broker for held in few.values() for broker in held.replicas)}, level=False
            )
            moves = [
                PlannedMove(name, key[1], replica.replicas, placed[key], held[key][1], 0)
                for key, replica in few.items()
            ]
            _log.info("%s gets %d replicas of each partition", name, topic.replication)
            await self._node.moves.begin(moves)
            return
        wished = default_min_insync(topic.replication)
        if topic.min_insync < wished and all(len(state.in_sync) >= wished for state, _ in held.values()):
            await self._node.topics.change(
                name, lambda current: replace(current, min_insync=max(wished, current.min_insync))
            )

    def _partitions(self, topic: ClusterTopic) -> dict[PartitionKey, tuple[PartitionState, int]]:
        partitions = self._node.membership.view.partitions
        keys = [(topic.info.uuid, number) for number in range(topic.info.partitions)]
        return {key: partitions[key] for key in keys if key in partitions}
