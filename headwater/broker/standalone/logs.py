"""The logs of a broker that is in no cluster: it serves all partitions of its store."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from headwater.broker.append_queue import AppendBatch, AppendQueues, Outcome
from headwater.broker.backend import NamedPartition, NamedTopic, RecordsHop, RoutedAppend
from headwater.broker.plain import RecordRouter
from headwater.broker.runtime import Runtime
from headwater.broker.stored import frame_filter_of, partition_of, sync_partitions
from headwater.core.config import Acks
from headwater.core.errors import FrameDamaged, HeadwaterError
from headwater.core.filter import Filter
from headwater.core.record import Record
from headwater.log import Appended, Bounds, Frame, Partition, Stretch
from headwater.log.format.frame_filter import FrameFilter
from headwater.streams.store import Store
from headwater.streams.topic import TopicPartition


class StandaloneLogs:
    """The partitions of a store. See `PartitionLogs`."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        self._runtime = runtime
        self._store = store
        self._queues = AppendQueues(runtime, store, _write)
        self._router = RecordRouter(store)

    def visible(self, partition: NamedPartition, in_doubt: Collection[TopicPartition]) -> tuple[Partition, Bounds]:  # noqa: ARG002
        """See PartitionLogs."""
        log = partition_of(self._store, partition)
        return log, log.bounds()

    async def in_doubt(self, partitions: Iterable[TopicPartition], timeout: float) -> Collection[TopicPartition]:  # noqa: ARG002
        """None: nobody else could lead them."""
        return ()

    def frame_filter(self, partition: NamedPartition, where: Filter) -> FrameFilter:
        """See PartitionLogs."""
        return frame_filter_of(self._store, partition, where)

    def damage(self, partition: TopicPartition, error: FrameDamaged) -> HeadwaterError:  # noqa: ARG002
        """The error itself: there is no other replica."""
        return error

    def removed_tombstones(self, partition: TopicPartition) -> tuple[int, int]:  # noqa: ARG002
        """None: readers see the only log that there is."""
        return 0, 0

    def end(self, partition: TopicPartition) -> int:
        """See PartitionLogs."""
        info = self._store.describe_topic(partition.topic)
        return self._store.partition(info, partition.partition).bounds().end

    def append(self, partition: TopicPartition, batch: AppendBatch, acks: Acks) -> asyncio.Future[Appended]:  # noqa: ARG002
        """See PartitionLogs."""
        return self._queues.append(partition, batch)

    async def append_records(
        self,
        topic: NamedTopic,
        partition: int | None,
        records: Sequence[Record],
        acks: Acks,
        hop: RecordsHop,  # noqa: ARG002 - all partitions are here
    ) -> list[RoutedAppend]:
        """See PartitionLogs."""
        batches = await self._runtime.read(self._router.route, topic, partition, records)
        return [
            RoutedAppend(number, batch.numbers, self.append(TopicPartition(topic.name, number), batch, acks))
            for number, batch in batches.items()
        ]

    async def sync(self, partitions: Sequence[NamedPartition]) -> None:
        """See PartitionLogs."""
        await self._runtime.write(sync_partitions, self._store, list(partitions))


def _write(
    partition: TopicPartition,  # noqa: ARG001 - the log is enough
    log: Partition,
    groups: Sequence[Sequence[Frame]],
) -> tuple[Sequence[Outcome], Sequence[Stretch]]:
    stretches: list[Stretch] = []
    return log.append_all(groups, stretches), stretches
