"""Cleaning: replicas lose what their topics no longer want.

The leader decides what retention deletes, and followers hear of it with what they fetch. Compaction is every replica's
own: what it leaves depends on nothing but acknowledged records, which are the same everywhere, so replicas that have
been compacted differ only in what none of them has to keep. Delete markers go with the leader's leave, which followers
hear of too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from headwater.cluster.etcd.keys import PartitionKey
from headwater.cluster.internal import COORDINATED
from headwater.cluster.replication.following import DiskThreads
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.core.config import StewardConfig, TopicConfig
from headwater.log.elapsed import Elapsed

_log = logging.getLogger(__name__)

Readers = Mapping[PartitionKey, int] | None
"""Before which offset all groups are done, in each partition that they read; None when nobody knows."""
Work = Callable[[LocalReplica], Awaitable[None]]


class Cleaning:
    """Cleans the replicas that a broker holds. For the event loop."""

    def __init__(
        self,
        threads: DiskThreads,
        elapsed: Elapsed,
        steward: StewardConfig,
        for_each: Callable[[Work], Awaitable[None]],
        config_of: Callable[[LocalReplica], TopicConfig | None],
    ) -> None:
        """`for_each` does something for each replica, `config_of` tells what a topic wants that is still there."""
        self._threads = threads
        self._elapsed = elapsed
        self._steward = steward
        self._for_each = for_each
        self._config_of = config_of

    async def run(self, readers: Callable[[], Awaitable[Readers]]) -> None:
        """Clean now and then, for ever."""
        while True:
            await asyncio.sleep(self._steward.interval)
            await self._threads.write(self._look)
            unread: Readers = await readers() if self._steward.protect_unread else {}
            await self._for_each(partial(self.clean, unread))

    def _look(self) -> None:
        """In a thread: compare the clocks, and keep what was found for whoever serves this directory next."""
        self._elapsed.look()
        try:
            self._elapsed.keep()
        except OSError as error:
            _log.warning("the readings of the clock cannot be stored: %s", error)

    async def clean(self, readers: Readers, local: LocalReplica) -> None:
        """Remove from a replica what its topic no longer wants."""
        config = self._config_of(local)
        if local.partition is not None or local.tp.topic in COORDINATED or config is None:
            return  # a stage log, or one that brokers clean by themselves
        if config.compact and (local.leads or local.replica.in_sync):
            await self._compact(local)
        if local.leads:
            await self._retain(readers, local, compacts=config.compact)

    async def _compact(self, local: LocalReplica) -> None:
        if local.leads:
            # Delete markers go when all replicas have them. A replica that comes back without one would have to begin
            # anew.
            local.log.forgettable = local.log.watermark if local.replica.all_in_sync else 0
        report = await self._threads.write(local.log.compact)
        if report is not None and report.removed_records:
            _log.info("%s: compaction has removed %d records", local, report.removed_records)

    async def _retain(self, readers: Readers, local: LocalReplica, *, compacts: bool) -> None:
        acknowledged = local.replica.high_watermark
        unread = 0 if readers is None else readers.get(local.key, acknowledged)
        retain = partial(local.log.retain, compacts=compacts)
        await self._threads.write(retain, acknowledged, unread, self._steward)
        local.log.refresh()
