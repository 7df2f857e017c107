"""A store in memory: for tests, and for data that need not outlive its process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.core.config import ConsumerConfig
from headwater.core.errors import PartitionBusy
from headwater.core.presets import DEFAULT, Preset
from headwater.embedded.appender import PartitionAppender
from headwater.embedded.cleaner import EmbeddedCleaner
from headwater.embedded.fetcher import PartitionFetcher
from headwater.embedded.groups import OpenGroups
from headwater.embedded.memory_catalog import MemoryCatalog
from headwater.embedded.memory_group import MemoryGroup
from headwater.embedded.memory_ledger import MemoryLedger
from headwater.embedded.transactions import LedgerCoordinator
from headwater.log import MemoryPartition
from headwater.log.clock import REAL_CLOCK, Clock
from headwater.log.elapsed import Elapsed
from headwater.streams.catalog import TopicInfo, partition_uuid
from headwater.streams.configuring import partition_config
from headwater.streams.store import Store


class MemoryBackend:
    """Topics, groups and transactions in this process's memory."""

    def __init__(self, clock: Clock, open_group: Callable[[str], MemoryGroup]) -> None:
        self.catalog = MemoryCatalog()
        self.clock = clock
        self.elapsed = Elapsed(clock)
        self.groups = OpenGroups(open_group)
        self._cleaning = threading.Lock()

    def __str__(self) -> str:
        return "memory:"

    def transactions(self, store: Store) -> LedgerCoordinator:
        return LedgerCoordinator(store, self.groups.get, MemoryLedger())

    def holds_partition(self, info: TopicInfo, number: int) -> bool:  # noqa: ARG002 - only files can be missing
        return True

    def open_partition(self, info: TopicInfo, number: int) -> MemoryPartition:
        return MemoryPartition(
            partition_config(info.config),
            schemas=self.catalog.schemas(info),
            uuid=partition_uuid(info.uuid, number),
            clock=self.clock,
            elapsed=self.elapsed,
        )

    def coordinator(self, name: str) -> MemoryGroup:
        return self.groups.get(name)

    def has_group(self, name: str) -> bool:
        return name in self.groups

    def group_names(self) -> list[str]:
        return self.groups.names()

    def new_fetcher(self, config: ConsumerConfig, group: str | None) -> PartitionFetcher:  # noqa: ARG002
        return PartitionFetcher(None if group is None else self.groups.get(group))

    def new_appender(self) -> PartitionAppender:
        return PartitionAppender()

    def new_cleaner(self, store: Store) -> EmbeddedCleaner:
        return EmbeddedCleaner(store, self.groups.get, self.clock, self.stewarding)

    @contextmanager
    def stewarding(self) -> Iterator[None]:
        if not self._cleaning.acquire(blocking=False):
            raise PartitionBusy(Path(str(self)), os.getpid(), None, 0)
        try:
            yield
        finally:
            self._cleaning.release()

    def statistics(self) -> None:
        """Leave it to the store."""

    def close(self) -> None:
        self.groups.close()


class MemoryStore(Store):
    """Topics in this process's memory, gone when the store is closed."""

    group_kind: Callable[[str, Clock], MemoryGroup] = MemoryGroup
    """Opens a group. A broker has a kind of its own: it hears from members that live."""

    def __init__(self, *, clock: Clock = REAL_CLOCK, defaults: Preset = DEFAULT) -> None:
        self._memory = MemoryBackend(clock, lambda name: self.group_kind(name, clock))
        super().__init__(self._memory, defaults)

    def reopen_groups(self) -> None:
        """Close the groups: from now on they are opened by the present `group_kind`."""
        self._memory.groups.close()
