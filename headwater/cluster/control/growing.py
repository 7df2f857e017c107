"""Growing: internal topics that were made while few brokers were there are kept by more when others have come.

This asks for more replicas. Partitions get them as those of any topic whose replication factor has changed: see
`headwater.cluster.control.replication_factor`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from headwater.cluster.control.assignment import default_min_insync
from headwater.cluster.control.replication_factor import with_replication
from headwater.cluster.etcd.keys import ClusterTopic
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
        """Ask for more replicas of a topic, if there are brokers for them."""
        view = self._node.membership.view
        topic = view.topics.get(name)
        if topic is None:
            return
        staying = [
            broker for broker, member in view.members.items() if broker not in view.leaving and not member.draining
        ]
        wanted = min(self._replication, len(staying))

        def grown(current: ClusterTopic) -> ClusterTopic:
            replication = max(wanted, current.replication)
            min_insync = max(default_min_insync(replication), current.min_insync)
            return with_replication(current, replication, min_insync)

        if grown(topic) != topic:
            await self._node.topics.change(name, grown)
