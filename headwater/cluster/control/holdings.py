"""Holdings: the logs of the cluster's topics on a broker's disk. They come and go as the cluster says."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress

from headwater.cluster.etcd.keys import ClusterTopic, PartitionKey
from headwater.cluster.replication.durable_log import DurableLog
from headwater.cluster.replication.following import DiskThreads
from headwater.core.errors import UnknownTopic
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import DirectoryPartition
from headwater.streams.catalog import TopicInfo

_log = logging.getLogger(__name__)


class Holdings:
    """The topics and logs in a broker's directory. For the event loop."""

    def __init__(self, store: DirectoryStore, threads: DiskThreads, may_delete: Callable[[], Awaitable[bool]]) -> None:
        """`may_delete` is asked whether what the cluster no longer has can be believed to be gone on purpose."""
        self._store = store
        self._threads = threads
        self._may_delete = may_delete
        self._adopted: dict[str, ClusterTopic] = {}
        """The topics that are here as the cluster has them."""
        self._dropped: set[PartitionKey] = set()
        """The partitions of others of which nothing is left here."""

    async def adopt(self, topic: ClusterTopic) -> None:
        """Have a topic here as the cluster has it."""
        if self._adopted.get(topic.info.name) != topic:
            await self._threads.write(self._store.adopt_topic, topic.info, topic.schemas)
            self._adopted[topic.info.name] = topic

    async def keep_only(self, names: Container[str]) -> None:
        """Remove the other topics: they were deleted."""
        gone = [topic for name, topic in self._adopted.items() if name not in names]
        if gone and await self._may_delete():
            for topic in gone:
                await self._threads.write(self._remove, topic.info)
                del self._adopted[topic.info.name]

    def _remove(self, info: TopicInfo) -> None:
        with suppress(UnknownTopic):
            if self._store.describe_topic(info.name).uuid == info.uuid:
                self._store.delete_topic(info.name)

    # Logs.

    async def log(self, info: TopicInfo, number: int) -> DurableLog:
        """The log of a partition, opened or made."""
        self._dropped.discard((info.uuid, number))
        log: DurableLog = await self._threads.read(self._log_of, info, number)
        return log

    async def stage_log(self, info: TopicInfo, number: int) -> DurableLog:
        """The stage log of a partition, opened or made."""
        log: DurableLog = await self._threads.read(self._stage_log_of, info, number)
        return log

    async def drop(self, info: TopicInfo, number: int, epoch: int) -> None:
        """Delete what is here of a partition that others hold, because the cluster says so as of an epoch."""
        key = (info.uuid, number)
        if key in self._dropped:
            return
        if await self._threads.read(self._store.holds_partition, info, number):
            if not await self._may_delete():
                return
            await self._threads.write(self._delete, info, number, epoch)
        self._dropped.add(key)

    def _log_of(self, info: TopicInfo, number: int) -> DurableLog:
        partition = self._store.partition(info, number)
        assert isinstance(partition, DirectoryPartition)
        return DurableLog(partition)

    def _stage_log_of(self, info: TopicInfo, number: int) -> DurableLog:
        return DurableLog(self._store.stage_partition(info, number))

    def _delete(self, info: TopicInfo, number: int, epoch: int) -> None:
        """In a thread. A log that knows of later epochs was in use later: then etcd was taken back in time."""
        last = self._log_of(info, number).last_epoch
        if last > epoch:
            _log.error(
                "%s/%d belongs to other brokers as of epoch %d, but has records of epoch %d here: it is not deleted",
                *(info.name, number, epoch, last),
            )
            return
        self._store.drop_partition(info, number)
        _log.info("%s/%d is held by others, and deleted here", info.name, number)
