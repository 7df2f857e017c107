"""A store behind a broker: the same topics, producers, consumers and groups, over a network."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from headwater.client.catalog import RemoteCatalog
from headwater.client.cleaner import RemoteCleaner
from headwater.client.cluster_sender import ClusterSender
from headwater.client.connection import Connection
from headwater.client.credentials import NAMES, Credentials
from headwater.client.fetcher import RemoteFetcher
from headwater.client.group import RemoteGroup
from headwater.client.heartbeats import Heartbeats
from headwater.client.leaders import Leaders
from headwater.client.partition import RemotePartition
from headwater.client.sender import Sender
from headwater.client.transaction import RemoteTransactionCoordinator
from headwater.core.address import Address, parse_store
from headwater.core.config import ClientConfig, ConsumerConfig
from headwater.core.environment import options_said
from headwater.core.errors import InvalidConfiguration, StoreError
from headwater.core.names import GROUPS
from headwater.core.presets import DEFAULT, Preset
from headwater.log.clock import REAL_CLOCK
from headwater.log.elapsed import Elapsed
from headwater.streams.catalog import TopicInfo
from headwater.streams.configuring import partition_config
from headwater.streams.ports import Appender
from headwater.streams.store import Store
from headwater.streams.topic import TopicStatistics
from headwater.v1 import broker_pb2 as pb
from headwater.wire.statistics import unpack_statistics


class RemoteBackend:
    """Topics, groups and transactions of a broker, or of whichever of several answers."""

    clock = REAL_CLOCK

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.leaders = Leaders(connection)
        self.catalog = RemoteCatalog(connection)
        self.elapsed = Elapsed(REAL_CLOCK)
        self._mutex = threading.Lock()
        self._groups: dict[str, RemoteGroup] = {}
        self._heartbeats = Heartbeats(self.opened_groups, connection.config.heartbeat)

    def __str__(self) -> str:
        return str(self.connection)

    def transactions(self, store: Store) -> RemoteTransactionCoordinator:  # noqa: ARG002 - the broker has a store
        return RemoteTransactionCoordinator(self.leaders)

    # Partitions.

    def holds_partition(self, info: TopicInfo, number: int) -> bool:  # noqa: ARG002 - the broker knows
        return True

    def open_partition(self, info: TopicInfo, number: int) -> RemotePartition:
        connection = self.leaders.of(info.name, number)
        config, schemas = partition_config(info.config), self.catalog.schemas(info)
        return RemotePartition(connection, info, number, config, schemas)

    # Groups.

    def coordinator(self, name: str) -> RemoteGroup:
        with self._mutex:
            group = self._groups.get(name)
            if group is None:
                self._heartbeats.begin()
                connection = self.leaders.coordinator(GROUPS, name)
                group = self._groups[name] = RemoteGroup(
                    connection, name, lambda: self.leaders.clustered, self._heartbeats.hurry
                )
            return group

    def opened_groups(self) -> list[RemoteGroup]:
        """Return the coordinators that are in use."""
        with self._mutex:
            return list(self._groups.values())

    def has_group(self, name: str) -> bool:
        return name in self._groups or name in self.group_names()

    def group_names(self) -> list[str]:
        return sorted(self.connection.call("ListGroups", pb.ListGroupsRequest()).groups)

    # Producing, consuming and cleaning.

    def new_appender(self) -> Appender:
        if self.leaders.clustered:
            return ClusterSender(self.leaders)
        appender = Sender(self.connection)
        appender.open()
        return appender

    def new_fetcher(self, config: ConsumerConfig, group: str | None) -> RemoteFetcher:
        coordinator = None if group is None else self.coordinator(group)
        return RemoteFetcher(self.connection, self.leaders, self.catalog, config, coordinator)

    def new_cleaner(self, store: Store) -> RemoteCleaner:  # noqa: ARG002 - the broker cleans its own
        return RemoteCleaner(self.connection)

    def stewarding(self) -> AbstractContextManager[None]:
        raise StoreError(f"{self} is cleaned by its broker: use steward()")

    def statistics(self) -> list[TopicStatistics]:
        response = self.connection.call("GetStatistics", pb.GetStatisticsRequest())
        return [
            TopicStatistics.of(topic.name, map(unpack_statistics, topic.partitions))
            for topic in sorted(response.topics, key=lambda topic: topic.name)
            if not topic.name.startswith("__")
        ]

    def close(self) -> None:
        try:
            for group in self.opened_groups():
                group.close()
        finally:
            self._heartbeats.close()
            self.connection.close()


class RemoteStore(Store):
    """Topics of a broker, or of whichever of several answers."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        config: ClientConfig | None = None,
        credentials: Credentials | None = None,
        defaults: Preset = DEFAULT,
    ) -> None:
        self._connection = Connection(addresses, config or ClientConfig(), credentials or Credentials())
        backend = RemoteBackend(self._connection)
        self.leaders = backend.leaders
        """The brokers that lead each partition of a cluster."""
        super().__init__(backend, defaults)


def connect(where: str, defaults: Preset, client: ClientConfig | None, options: dict[str, Any]) -> RemoteStore:
    """Return the store at these brokers, by what the program says over what the environment says.

    Nothing is sent before it is first used.
    """
    unknown = [name for name in options if name not in NAMES]
    if unknown:
        raise InvalidConfiguration(f"unknown options {unknown}; there are {', '.join(NAMES)}")
    if client is not None and not isinstance(client, ClientConfig):
        raise InvalidConfiguration(f"client must be a ClientConfig, not {client!r:.60}")
    credentials = Credentials.from_environment(os.environ).overridden(options)
    return RemoteStore(
        parse_store(where),
        config=client or ClientConfig(**options_said("client", ClientConfig, os.environ, besides=NAMES)),
        credentials=credentials,
        defaults=defaults,
    )
