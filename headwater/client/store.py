"""A store behind a broker: the same topics, producers, consumers and groups, over a network."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any

from headwater.client.catalog import RemoteCatalog, RemoteSchemas
from headwater.client.cleaner import RemoteCleaner
from headwater.client.cluster_sender import ClusterSender
from headwater.client.connection import Connection, Repeats
from headwater.client.credentials import Credentials
from headwater.client.fetcher import RemoteFetcher
from headwater.client.group import RemoteGroup
from headwater.client.heartbeats import Heartbeats
from headwater.client.leaders import Leaders
from headwater.client.partition import RemotePartition, unpack_statistics
from headwater.client.sender import Sender
from headwater.client.transaction import RemoteTransactionCoordinator
from headwater.core.address import Address
from headwater.core.config import ClientConfig, ConsumerConfig, TopicConfig
from headwater.core.errors import StoreError, TopicExists, UnknownTopic
from headwater.core.names import GROUPS, check_name
from headwater.core.presets import DEFAULT, Preset
from headwater.core.schema import RAW, Schema
from headwater.log import Partition, Schemas
from headwater.log.clock import REAL_CLOCK
from headwater.streams.catalog import TopicInfo, grown
from headwater.streams.ports import Appender, Fetcher
from headwater.streams.store import Store, StoreStatistics, partition_config
from headwater.streams.topic import TopicStatistics
from headwater.v1 import broker_pb2 as pb
from headwater.wire.topics import options_to_text


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
        self.leaders = Leaders(self._connection)
        self._remote = RemoteCatalog(self._connection)
        super().__init__(self._remote, lambda _: RemoteTransactionCoordinator(self.leaders), REAL_CLOCK, defaults)
        self._known: dict[bytes, Schemas] = {}
        self._heartbeats = Heartbeats(self._remote_groups, self._connection.config.heartbeat)

    def __str__(self) -> str:
        return str(self._connection)

    # Topics.

    def _create(self, info: TopicInfo, schema: Schema) -> None:
        repeats = Repeats()
        request = pb.CreateTopicRequest(
            name=info.name,
            partitions=info.partitions,
            schema=b"" if schema is RAW else schema.serialize(),
            options=_written(info.config),
            internal=info.name.startswith("__"),
        )
        try:
            response = self._connection.call("CreateTopic", request, on_repeat=repeats)
        except TopicExists:
            # The first attempt may have made it, and only its answer was lost.
            found = self._catalog.get(info.name) if repeats else None
            if found is None or (found.partitions, found.schemas, found.config) != (
                info.partitions,
                info.schemas,
                info.config,
            ):
                raise
        else:
            self._remote.learn(response)

    def recall_topic(self, name: str) -> TopicInfo:
        self._check_open()
        return self._remote.recall(name)

    def topic_names(self) -> list[str]:
        self._check_open()
        return super().topic_names()

    def alter_topic(self, name: str, *, partitions: int | None = None, **options: Any) -> TopicInfo:
        self._check_open()
        request = pb.AlterTopicRequest(
            name=check_name("topic", name, internal=True),
            partitions=0 if partitions is None else grown(self._catalog.get(name), partitions).partitions,
            options=options_to_text(options),
        )
        return self._remote.learn(self._connection.call("AlterTopic", request))

    def evolve_topic(self, name: str, schema: Schema) -> TopicInfo:
        self._check_open()
        request = pb.EvolveTopicRequest(name=name, schema=schema.serialize())
        return self._remote.learn(self._connection.call("EvolveTopic", request))

    def delete_topic(self, name: str) -> None:
        self._check_open()
        repeats = Repeats()
        try:
            self._connection.call("DeleteTopic", pb.DeleteTopicRequest(name=name), on_repeat=repeats)
        except UnknownTopic:
            if not repeats:  # the first attempt may have deleted it, and only its answer was lost
                raise
        finally:
            self.forget_topic(name)

    def forget_topic(self, name: str) -> None:
        """What is known of a topic is wrong: ask the next time."""
        self._remote.forget(name)

    def _schemas(self, info: TopicInfo) -> Schemas:
        return self._known.setdefault(info.uuid, RemoteSchemas(self._connection, info.name))

    def partition(self, info: TopicInfo, number: int) -> Partition:
        if number >= info.partitions:  # the broker may have told of more than what is remembered here
            self.forget_topic(info.name)
            info = self.describe_topic(info.name)
        return super().partition(info, number)

    def _open_partition(self, info: TopicInfo, number: int) -> Partition:
        connection = self.leaders.of(info.name, number)
        return RemotePartition(connection, info, number, partition_config(info.config), self._schemas(info))

    # Producing and consuming.

    def _new_appender(self) -> Appender:
        if self.leaders.clustered:
            return ClusterSender(self.leaders)
        appender = Sender(self._connection)
        appender.open()
        return appender

    def _new_fetcher(self, config: ConsumerConfig, group: str | None) -> Fetcher:
        coordinator = None if group is None else self.coordinator(group)
        assert coordinator is None or isinstance(coordinator, RemoteGroup)
        return RemoteFetcher(self, self._connection, config, coordinator)

    def _open_group(self, name: str) -> RemoteGroup:
        self._heartbeats.begin()
        return RemoteGroup(self.leaders.coordinator(GROUPS, name), name, lambda: self.leaders.clustered)

    def _remote_groups(self) -> list[RemoteGroup]:
        with self._mutex:
            return [group for group in self._groups.values() if isinstance(group, RemoteGroup)]

    def group_names(self) -> list[str]:
        self._check_open()
        return sorted(self._connection.call("ListGroups", pb.ListGroupsRequest()).groups)

    # Cleaning.

    def _new_cleaner(self) -> RemoteCleaner:
        return RemoteCleaner(self._connection)

    def stewarding(self) -> AbstractContextManager[None]:
        raise StoreError(f"{self} is cleaned by its broker: use steward()")

    # The handle.

    def statistics(self) -> StoreStatistics:
        """The store in numbers. Of a cluster, without topics of which a partition is led by nobody who answers."""
        self._check_open()
        response = self._connection.call("GetStatistics", pb.GetStatisticsRequest())
        return StoreStatistics.of(
            TopicStatistics.of(topic.name, map(unpack_statistics, topic.partitions))
            for topic in sorted(response.topics, key=lambda one: one.name)
            if not topic.name.startswith("__")
        )

    def close(self) -> None:
        if self._closed:
            return
        try:
            super().close()
        finally:
            self._heartbeats.close()
            self._connection.close()


def _written(config: TopicConfig) -> dict[str, str]:
    return options_to_text({field.name: getattr(config, field.name) for field in fields(config)})
