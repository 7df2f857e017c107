"""A store in memory: for tests, and for what need not outlive its process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.core.config import ConsumerConfig
from headwater.core.errors import PartitionBusy
from headwater.core.presets import DEFAULT, Preset
from headwater.core.schema import Schema
from headwater.embedded.appender import PartitionAppender
from headwater.embedded.cleaning import EmbeddedCleaner
from headwater.embedded.fetcher import PartitionFetcher
from headwater.embedded.memory_group import MemoryGroup
from headwater.embedded.memory_ledger import MemoryLedger
from headwater.embedded.transactions import LedgerCoordinator
from headwater.log import MemoryPartition, Partition, Schemas
from headwater.log.clock import REAL_CLOCK, Clock
from headwater.streams.catalog import MemoryCatalog, TopicInfo, partition_uuid
from headwater.streams.ports import Appender, Cleaner, Fetcher
from headwater.streams.store import Store, partition_config


class MemoryStore(Store):
    """Topics in this process's memory, gone when the store is closed."""

    group_kind: Callable[[str, Clock], MemoryGroup] = MemoryGroup
    """How groups are opened. A broker has a kind of its own: it hears from members that live."""

    def __init__(self, *, clock: Clock = REAL_CLOCK, defaults: Preset = DEFAULT) -> None:
        super().__init__(
            MemoryCatalog(),
            lambda store: LedgerCoordinator(store, self._embedded_group, MemoryLedger()),
            clock,
            defaults,
        )
        self._cleaning = threading.Lock()
        self._known: dict[bytes, Schemas] = {}

    def __str__(self) -> str:
        return "memory:"

    def _create(self, info: TopicInfo, schema: Schema) -> None:
        self._catalog.create(info)
        self._schemas(info).put(schema)

    def _schemas(self, info: TopicInfo) -> Schemas:
        return self._known.setdefault(info.uuid, Schemas())

    def _open_partition(self, info: TopicInfo, number: int) -> Partition:
        uuid = partition_uuid(info.uuid, number)
        schemas = self._schemas(info)
        config = partition_config(info.config)
        return MemoryPartition(config, schemas=schemas, uuid=uuid, clock=self._clock, elapsed=self.elapsed)

    def _open_group(self, name: str) -> MemoryGroup:
        return self.group_kind(name, self._clock)

    def group_names(self) -> list[str]:
        with self._mutex:
            return sorted(self._groups)

    @contextmanager
    def stewarding(self) -> Iterator[None]:
        if not self._cleaning.acquire(blocking=False):
            raise PartitionBusy(Path(str(self)), os.getpid(), None, 0)
        try:
            yield
        finally:
            self._cleaning.release()

    def _new_fetcher(self, config: ConsumerConfig, group: str | None) -> Fetcher:  # noqa: ARG002
        return PartitionFetcher(None if group is None else self._embedded_group(group))

    def _embedded_group(self, name: str) -> MemoryGroup:
        """Return the coordinator of a group, with all that transactions and cleaning need of it."""
        coordinator = self.coordinator(name)
        assert isinstance(coordinator, MemoryGroup)
        return coordinator

    def _new_cleaner(self) -> Cleaner:
        return EmbeddedCleaner(self, self._embedded_group, self._clock, self.stewarding)

    def _new_appender(self) -> Appender:
        return PartitionAppender()
