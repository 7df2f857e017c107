"""The history of a cluster: the leader of its internal topic notes how fast topics grow and how far groups are.

It asks the leaders of partitions and the coordinators of groups, one call for each broker. The next leader begins
with a whole sample, so that nobody needs to know what the one before has written last.
"""

from __future__ import annotations

import asyncio
import logging
import time

from headwater.broker.clustered.groups import CoordinatedGroups
from headwater.broker.clustered.operations import ClusterOperations
from headwater.broker.runtime import Runtime
from headwater.cluster.etcd.keys import PartitionKey
from headwater.cluster.node import ClusterNode
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.cluster.replication.replica import NotLeading
from headwater.core.errors import HeadwaterError
from headwater.core.names import HISTORY
from headwater.log import Frame
from headwater.streams.history import Sample, Samples

_log = logging.getLogger(__name__)


class ClusterHistory:
    """A broker's part in the history of its cluster. For the event loop."""

    def __init__(
        self, runtime: Runtime, node: ClusterNode, groups: CoordinatedGroups, operations: ClusterOperations
    ) -> None:
        self._runtime = runtime
        self._node = node
        self._groups = groups
        self._operations = operations
        self._led: tuple[LocalReplica, int, Samples] | None = None
        """The log of the history, the epoch in which it is led here, and what was written in it."""
        node.replicas.on_led(self._begin)

    def _begin(self, local: LocalReplica) -> None:
        if local.tp.topic == HISTORY:
            self._led = (local, local.led, Samples())

    async def keep(self) -> None:
        """Note what there is to note, for ever; unless nobody wants it."""
        interval = self._node.store.defaults.steward.history
        while interval is not None:
            await asyncio.sleep(interval)
            try:
                await self.note(time.time_ns())
            except (HeadwaterError, OSError, NotLeading) as error:
                _log.debug("the history of the cluster lacks an entry: %s", error)

    async def note(self, now_ns: int) -> None:
        """Write a sample, where the history is led. The controller sees to it that there is one, once there are topics.

        Raises NotLeading, NotLeader, and what the disk says.
        """
        view = self._node.membership.view
        if HISTORY not in view.topics:
            if self._node.membership.controller.since and any(not name.startswith("__") for name in view.topics):
                await self._node.internal.ensure(HISTORY)
        elif self._led is not None and self._led[0].leads and self._led[0].led == self._led[1]:
            local, epoch, samples = self._led
            sample = await self._sample(now_ns)
            await self._runtime.write(self._append, local, epoch, samples.frame(sample))
            samples.written(sample)
            local.appended()

    def _append(self, local: LocalReplica, epoch: int, frame: Frame) -> None:
        """In a thread."""
        with local.log.leading(epoch):
            local.log.partition.append(frame)
            local.log.partition.sync()  # without it nobody would count it as acknowledged, or read it

    async def _sample(self, now_ns: int) -> Sample:
        topics = {name: topic.info.uuid for name, topic in self._node.membership.view.topics.items()}
        sample = Sample(now_ns)
        ends: dict[PartitionKey, tuple[str, int]] = {}
        for topic in await self._operations.statistics(lambda _: True):
            sample.topics[topic.name] = (topic.total_records, topic.total_bytes, topic.bytes)
            for number, partition in enumerate(topic.partitions):
                ends[topics.get(topic.name, b""), number] = (topic.name, partition.end)
        for group, positions in (await self._groups.positions()).items():
            lags = sample.lags[group] = {}
            for key, offset in positions.items():
                if key in ends:
                    name, end = ends[key]
                    lags[name] = lags.get(name, 0) + max(end - offset, 0)
        return sample
