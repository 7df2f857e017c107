"""The topics of a broker that is in no cluster."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.broker.backend import BrokerInfo, NewTopic, PartitionPlacement, Sees, ServedTopic, TopicChange
from headwater.broker.runtime import Runtime
from headwater.core.address import Address
from headwater.core.errors import UnknownTopic
from headwater.core.schema import Schema
from headwater.streams.catalog import TopicInfo
from headwater.streams.store import Store


class StandaloneCatalog:
    """The topics of a store. See `TopicService`."""

    cluster_id = ""

    def __init__(self, runtime: Runtime, store: Store, broker_id: int, address: Address) -> None:
        """Clients reach the broker at `address`."""
        self._runtime = runtime
        self._store = store
        self.broker_id = broker_id
        self._address = address

    def brokers(self) -> list[BrokerInfo]:
        """Return this broker alone."""
        return [BrokerInfo(self.broker_id, self._address)]

    async def topics(self, sees: Sees, *, internal: bool) -> list[ServedTopic]:
        """See TopicService."""
        names = self._store.topic_names if internal else self._store.topics
        return await self._runtime.read(lambda: self._described(names(), sees))

    async def named(self, names: Sequence[str], sees: Sees) -> list[ServedTopic]:
        """See TopicService."""
        return await self._runtime.read(self._described, names, sees)

    def _described(self, names: Sequence[str], sees: Sees) -> list[ServedTopic]:
        topics: list[ServedTopic] = []
        for name in names:
            if sees(name):
                try:
                    topics.append(ServedTopic(self._store.describe_topic(name)))
                except UnknownTopic:
                    continue  # deleted since its name was read, or never there
        return topics

    async def describe(self, name: str) -> ServedTopic:
        """See TopicService."""
        return ServedTopic(await self._runtime.read(self._store.describe_topic, name))

    def placements(self, topic: ServedTopic) -> list[PartitionPlacement]:
        """Return this broker for each partition."""
        here = self.broker_id
        return [PartitionPlacement(number, here, 0, [here], [here]) for number in range(topic.info.partitions)]

    async def create(self, topic: NewTopic) -> ServedTopic:
        """See TopicService."""
        return await self._runtime.write(self._create, topic)

    def _create(self, topic: NewTopic) -> ServedTopic:
        if topic.internal:
            created = self._store.internal_topic(topic.name, **topic.options)
        else:
            schema = None if topic.schema.raw else topic.schema.payload
            created = self._store.create_topic(
                topic.name,
                topic.partitions,
                schema,
                replication=topic.replication,
                min_insync=topic.min_insync,
                exist_ok=topic.exist_ok,
                **topic.options,
            )
        return ServedTopic(created.info)

    async def alter(self, name: str, change: TopicChange) -> ServedTopic:
        """See TopicService."""
        info = await self._runtime.write(
            self._store.alter_topic,
            name,
            partitions=change.partitions,
            replication=change.replication,
            min_insync=change.min_insync,
            **change.options,
        )
        return ServedTopic(info)

    async def evolve(self, name: str, schema: Schema) -> ServedTopic:
        """See TopicService."""
        return ServedTopic(await self._runtime.write(self._store.evolve_topic, name, schema))

    async def delete(self, name: str) -> None:
        """See TopicService."""
        info = await self._runtime.read(self._store.describe_topic, name)
        await self._runtime.write(self._store.delete_topic, name)
        self._runtime.arrivals.tell((name, number) for number in range(info.partitions))

    async def schema(self, name: str, schema_id: int | None) -> Schema:
        """See TopicService."""
        return await self._runtime.read(self._schema, name, schema_id)

    def _schema(self, name: str, schema_id: int | None) -> Schema:
        info = self._store.describe_topic(name)
        return self._store.schema_by_id(info, schema_id or info.schemas[-1])

    def schema_by_id(self, topic: TopicInfo, schema_id: int) -> Schema:
        """See TopicService."""
        return self._store.schema_by_id(topic, schema_id)
