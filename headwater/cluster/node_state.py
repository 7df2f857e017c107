"""The state that the parts of a cluster's node share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import grpc

from headwater.cluster.control.membership import ClusterMembership
from headwater.cluster.etcd.keys import PartitionKey
from headwater.cluster.link import Links
from headwater.cluster.replication.following import DiskThreads
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.core.errors import StoreError
from headwater.streams.topic import TopicPartition

_log = logging.getLogger(__name__)


class NodeState:
    """The membership, the replicas and the running tasks of a broker in a cluster. For one event loop."""

    def __init__(self, broker: int, threads: DiskThreads, credentials: grpc.ChannelCredentials | None) -> None:
        """With `credentials` the other brokers are called over TLS."""
        self.broker = broker
        self.threads = threads
        self.links = Links(credentials)
        self.replicas: dict[PartitionKey, LocalReplica] = {}
        """All replicas that are here, those of stage logs too."""
        self.by_partition: dict[TopicPartition, LocalReplica] = {}
        """The replicas of partitions, by the names of their topics."""
        self.joined: ClusterMembership | None = None
        """The membership; None before the broker has begun to join."""
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def membership(self) -> ClusterMembership:
        """The membership of the cluster; raises StoreError before the broker has begun to join."""
        if self.joined is None:
            raise StoreError("the broker has not joined its cluster yet: try again")
        return self.joined

    def is_deleted(self, local: LocalReplica) -> bool:
        """Return whether the topic of a replica is gone: then errors of its files say nothing about this broker."""
        return self.membership.view.topic_of((local.partition or local).key[0]) is None

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something for as long as it takes, at most until the node leaves."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error(
                "a background task of the cluster node has failed, and is not run again", exc_info=task.exception()
            )

    async def end_tasks(self) -> None:
        """Cancel everything that was begun, and wait for its end."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
