"""The topics of a cluster: any broker describes them, and creates, changes and deletes them for all."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from headwater.broker.backend import BrokerInfo, NewTopic, PartitionPlacement, Sees, ServedTopic, TopicChange
from headwater.broker.runtime import Runtime
from headwater.cluster.control.assignment import default_min_insync
from headwater.cluster.control.metadata import NOBODY
from headwater.cluster.control.replication_factor import with_replication
from headwater.cluster.etcd.keys import ClusterTopic
from headwater.cluster.internal import INTERNAL
from headwater.cluster.node import ClusterNode
from headwater.core.address import parse_address
from headwater.core.errors import HeadwaterError, InvalidConfiguration, SchemaError, TopicExists
from headwater.core.names import check_name
from headwater.core.schema import Schema
from headwater.log.entropy import random_bytes
from headwater.streams.catalog import TopicInfo, check_replication, grown
from headwater.streams.configuring import configured
from headwater.streams.topic import check_evolution

_log = logging.getLogger(__name__)


class ClusterCatalog:
    """The topics of a cluster, as etcd has them. See `TopicService`."""

    def __init__(self, runtime: Runtime, node: ClusterNode, replication: int | None) -> None:
        """Topics get so many replicas unless their creator says otherwise."""
        self._runtime = runtime
        self._node = node
        self._replication = replication
        self.cluster_id = node.cluster
        self.broker_id = node.broker

    def brokers(self) -> list[BrokerInfo]:
        """See TopicService."""
        members = self._node.membership.view.members.values()
        return [BrokerInfo(member.id, parse_address(member.address)) for member in members]

    async def topics(self, sees: Sees, *, internal: bool) -> list[ServedTopic]:
        """See TopicService."""
        known = sorted(self._node.membership.view.topics.items())
        return [_served(topic) for name, topic in known if sees(name) and (internal or not name.startswith("__"))]

    async def named(self, names: Sequence[str], sees: Sees) -> list[ServedTopic]:
        """See TopicService."""
        return [await self.describe(name) for name in names if sees(name)]

    async def describe(self, name: str) -> ServedTopic:
        """See TopicService."""
        return _served(await self._topic(name))

    async def _topic(self, name: str) -> ClusterTopic:
        """A topic. If this broker does not know it, another one may have created it just now."""
        known = self._node.membership.view.topics.get(name)
        return known if known is not None else await self._node.topics.get(check_name("topic", name, internal=True))

    def placements(self, topic: ServedTopic) -> list[PartitionPlacement]:
        """See TopicService."""
        partitions = self._node.membership.view.partitions
        placements: list[PartitionPlacement] = []
        for number in range(topic.info.partitions):
            state, _ = partitions.get((topic.info.uuid, number), (None, 0))
            if state is None:
                placements.append(PartitionPlacement(number, None))
                continue
            leader = None if state.leader == NOBODY else state.leader
            moving_to = () if state.move is None else state.move.to
            placements.append(
                PartitionPlacement(number, leader, state.epoch, state.replicas, sorted(state.in_sync), moving_to)
            )
        return placements

    async def create(self, topic: NewTopic) -> ServedTopic:
        """See TopicService."""
        _check_not_internal(topic.name)
        name, schema = check_name("topic", topic.name, internal=topic.internal), topic.schema
        config = configured(self._node.store.defaults.topic, None, dict(topic.options))
        info = TopicInfo(name, random_bytes(16), topic.partitions, (schema.id,), config, time.time_ns())
        replication = await self._node.topics.replicas_of_new(name, topic.replication or self._replication)
        created = ClusterTopic(info, (schema,), replication, topic.min_insync or default_min_insync(replication))
        try:
            await self._node.topics.create(created)
        except TopicExists:
            if not topic.exist_ok and not topic.internal:
                raise
            return _served(await self._node.topics.get(name))
        return _served(created)

    async def alter(self, name: str, change: TopicChange) -> ServedTopic:
        """See TopicService."""
        _check_not_internal(name)
        check_replication(name, change.replication, change.min_insync)
        if change.replication is not None and change.replication > (await self._node.topics.get(name)).replication:
            await self._node.topics.replicas_of_new(name, change.replication)

        def changed(topic: ClusterTopic) -> ClusterTopic:
            info = replace(topic.info, config=configured(topic.info.config, None, dict(change.options)))
            topic = replace(topic, info=grown(info, change.partitions) if change.partitions else info)
            return with_replication(topic, change.replication, change.min_insync)

        topic = await self._node.topics.change(name, changed)
        if change.replication is None and change.min_insync is None:
            return _served(topic)
        try:
            await self._node.membership.view.refresh()
            await self._node.replication_factors.step(name)
            topic = await self._node.topics.get(name)
        except HeadwaterError as error:
            _log.debug("the controller changes the replicas of %s later: %s", name, error)
        return _served(topic)

    async def evolve(self, name: str, schema: Schema) -> ServedTopic:
        """See TopicService."""
        _check_not_internal(name)

        def change(topic: ClusterTopic) -> ClusterTopic:
            current = topic.schemas[-1]
            if schema == current:
                return topic
            if current.raw:
                raise SchemaError(f"topic {name!r} is raw: its records have no columns to add to")
            check_evolution(current, schema)
            info = replace(topic.info, schemas=(*topic.info.schemas, schema.id))
            return replace(topic, info=info, schemas=(*topic.schemas, schema))

        return _served(await self._node.topics.change(name, change))

    async def delete(self, name: str) -> None:
        """See TopicService."""
        _check_not_internal(name)
        topic = await self._node.topics.delete(name)
        self._runtime.arrivals.tell((name, number) for number in range(topic.info.partitions))

    async def schema(self, name: str, schema_id: int | None) -> Schema:
        """See TopicService."""
        topic = await self._topic(name)
        if schema_id is not None and schema_id not in topic.info.schemas:
            topic = await self._node.topics.get(name)
        wanted = schema_id or topic.info.schemas[-1]
        for schema in topic.schemas:
            if schema.id == wanted:
                return schema
        raise SchemaError(f"topic {name!r} has no schema {wanted:016x}")

    def schema_by_id(self, topic: TopicInfo, schema_id: int) -> Schema:
        """See TopicService."""
        return self._node.store.schema_by_id(topic, schema_id)


def _check_not_internal(name: str) -> None:
    if name in INTERNAL:
        raise InvalidConfiguration(
            f"{name!r} is the cluster's own topic: only brokers create it, and nobody can change or delete it"
        )


def _served(topic: ClusterTopic) -> ServedTopic:
    return ServedTopic(topic.info, topic.replication, topic.min_insync)
