"""The logs of a broker in a cluster: it serves the partitions that it leads, and replicas acknowledge its writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from headwater.broker.append_queue import AppendBatch, AppendQueues, Outcome
from headwater.broker.backend import NamedPartition, NamedTopic, RecordsHop, RoutedAppend
from headwater.broker.clustered.peers import Peers
from headwater.broker.plain import RecordRouter, RoutedRecords
from headwater.broker.runtime import Runtime
from headwater.broker.stored import frame_filter_of, partition_of, sync_partitions
from headwater.cluster.node import ClusterNode
from headwater.core.config import Acks
from headwater.core.errors import FrameDamaged, HeadwaterError, NotLeader, UnknownTopic
from headwater.core.filter import Filter
from headwater.core.record import Record
from headwater.log import Appended, Bounds, Frame, Partition, Stretch
from headwater.log.format.frame_filter import FrameFilter
from headwater.streams.topic import TopicPartition

_AGAIN: Final = 0.02
"""Seconds between two looks whether this broker knows a new topic by now."""


class ReplicatedLogs:
    """The partitions that this broker leads. See `PartitionLogs`."""

    def __init__(self, runtime: Runtime, node: ClusterNode, peers: Peers) -> None:
        self._runtime = runtime
        self._node = node
        self._leadership = node.leadership
        self._store = node.store
        self._peers = peers
        self._queues = AppendQueues(runtime, node.store, self._write)
        self._router = RecordRouter(node.store)

    # Reading.

    def visible(self, partition: NamedPartition, in_doubt: Collection[TopicPartition]) -> tuple[Partition, Bounds]:
        """See PartitionLogs."""
        # First who leads: a broker that does not may not even have heard of the topic yet.
        if partition.tp in in_doubt:
            raise NotLeader(partition.topic, partition.partition, None)
        acknowledged = self._leadership.readable(partition.tp, partition.topic_uuid)
        log = partition_of(self._store, partition)
        start, end, _ = log.bounds()
        end = max(min(acknowledged, end), start)
        return log, Bounds(start, end, end)

    async def in_doubt(self, partitions: Iterable[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        """See PartitionLogs."""
        return await self._leadership.in_doubt(partitions, timeout)

    def frame_filter(self, partition: NamedPartition, where: Filter) -> FrameFilter:
        """See PartitionLogs."""
        return frame_filter_of(self._store, partition, where)

    def damage(self, partition: TopicPartition, error: FrameDamaged) -> HeadwaterError:
        """See PartitionLogs."""
        return self._node.repairs.damaged(partition, error)

    def removed_tombstones(self, partition: TopicPartition) -> tuple[int, int]:
        """See PartitionLogs."""
        return self._leadership.markers(partition)

    def end(self, partition: TopicPartition) -> int:
        """See PartitionLogs."""
        if not self._leadership.leads(partition):
            return -1  # and it is not opened, which would make it anew where it was just deleted
        info = self._store.describe_topic(partition.topic)
        return self._store.partition(info, partition.partition).bounds().end

    # Writing.

    def append(self, partition: TopicPartition, batch: AppendBatch, acks: Acks) -> asyncio.Future[Appended]:
        """See PartitionLogs."""
        self._leadership.check_leads(partition)
        return self._leadership.acknowledged(partition, self._queues.append(partition, batch), by_all=acks == "all")

    def _write(
        self, partition: TopicPartition, log: Partition, groups: Sequence[Sequence[Frame]]
    ) -> tuple[Sequence[Outcome], Sequence[Stretch]]:
        with self._leadership.leading(partition):
            outcomes = log.append_all(groups)
            log.sync()  # whatever the mode: only what is durable is acknowledged by replicas
        return outcomes, ()  # readers see it when the replicas have it

    async def append_records(
        self, topic: NamedTopic, partition: int | None, records: Sequence[Record], acks: Acks, hop: RecordsHop
    ) -> list[RoutedAppend]:
        """See PartitionLogs."""
        deadline = time.monotonic() + hop.timeout
        batches = await self._routed(topic, partition, records, deadline)
        for number in batches:
            await self._leadership.wait_for_leader(TopicPartition(topic.name, number), deadline - time.monotonic())
        appends: list[RoutedAppend] = []
        for number, batch in batches.items():
            target = TopicPartition(topic.name, number)
            if hop.forwarded or self._leadership.leads(target):
                appended = self.append(target, batch, acks)
            else:
                chosen = [records[index] for index in batch.numbers]
                passed_on = self._peers.append_records(target, topic.uuid, chosen, acks, hop.timeout)
                appended = asyncio.ensure_future(passed_on)
            appends.append(RoutedAppend(number, batch.numbers, appended))
        return appends

    async def _routed(
        self, topic: NamedTopic, partition: int | None, records: Sequence[Record], deadline: float
    ) -> dict[int, RoutedRecords]:
        """Route records. It waits for a topic that another broker has just made."""
        while True:
            try:
                return await self._runtime.read(self._router.route, topic, partition, records)
            except UnknownTopic:
                if time.monotonic() > deadline:
                    raise
                await self._node.topics.get(topic.name)  # raises the same unless the cluster has it
            await asyncio.sleep(_AGAIN)

    async def sync(self, partitions: Sequence[NamedPartition]) -> None:
        """See PartitionLogs."""
        for partition in partitions:
            self._leadership.check_leads(partition.tp)
        await self._runtime.write(sync_partitions, self._store, list(partitions))
