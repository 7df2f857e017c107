"""The catalog of a store in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headwater.core.errors import TopicExists, UnknownTopic
from headwater.core.schema import Schema
from headwater.log import Schemas
from headwater.streams.catalog import TopicInfo, check_kept_once
from headwater.streams.topic import altered, evolved


class MemoryCatalog:
    """Topics that exist in this process only."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._topics: dict[str, TopicInfo] = {}
        self._schemas: dict[bytes, Schemas] = {}

    def names(self) -> list[str]:
        return sorted(self._topics)

    def get(self, name: str) -> TopicInfo:
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopic(name, "memory") from None

    recall = refresh = get

    def schemas(self, info: TopicInfo) -> Schemas:
        return self._schemas.setdefault(info.uuid, Schemas())

    def create(self, info: TopicInfo, schema: Schema) -> None:
        check_kept_once(info.name, info.replication, info.min_insync)
        info = replace(info, replication=None, min_insync=None)
        with self._mutex:
            if info.name in self._topics:
                raise TopicExists(info.name, "memory")
            self.schemas(info).put(schema)
            self._topics[info.name] = info

    def alter(
        self,
        name: str,
        partitions: int | None,
        options: Mapping[str, Any],
        replication: int | None = None,
        min_insync: int | None = None,
    ) -> TopicInfo:
        return self._change(name, lambda info: altered(info, partitions, options, replication, min_insync))

    def evolve(self, name: str, schema: Schema) -> TopicInfo:
        return self._change(name, lambda info: evolved(info, schema, self.schemas(info)))

    def _change(self, name: str, change: Callable[[TopicInfo], TopicInfo]) -> TopicInfo:
        with self._mutex:
            self._topics[name] = change(self.get(name))
            return self._topics[name]

    def delete(self, name: str) -> bytes:
        with self._mutex:
            info = self.get(name)
            del self._topics[name]
            return info.uuid

    def sweep(self, *, dry_run: bool = False) -> int:  # noqa: ARG002 - nothing half-done outlives the process
        return 0
