"""The topics of a cluster over the wire: any broker tells of them, and makes, changes and removes them for all."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from headwater.broker.core import Core
from headwater.broker.rpc.call import Call
from headwater.broker.rpc.topics import Topics, schema_from
from headwater.cluster.control.assignment import default_min_insync
from headwater.cluster.control.metadata import NOBODY
from headwater.cluster.etcd.keys import ClusterTopic
from headwater.cluster.internal import INTERNAL
from headwater.cluster.node import ClusterNode
from headwater.core.address import Address, parse_address
from headwater.core.errors import InvalidConfiguration, SchemaError, TopicExists
from headwater.core.names import check_name
from headwater.core.schema import RAW, Schema
from headwater.core.version import __version__
from headwater.log.entropy import random_bytes
from headwater.streams.catalog import TopicInfo, grown
from headwater.streams.configuring import configured
from headwater.streams.topic import check_evolution
from headwater.v1 import broker_pb2 as pb
from headwater.wire.topics import options_from_text, pack_topic

_NO_LEADER: Final = 0xFFFFFFFF


class ClusterTopicMethods(Topics):
    """The methods about topics, in a cluster."""

    def __init__(self, core: Core, address: Address, node: ClusterNode) -> None:
        super().__init__(core, address)
        self._node = node

    async def get_metadata(self, request: pb.GetMetadataRequest, call: Call) -> pb.Metadata:
        members = self._node.membership.view.members.values()
        addresses = {member.id: parse_address(member.address) for member in members}
        topics = []
        if request.topics:
            topics = [await self._topic(name) for name in request.topics if call.sees(name)]
        elif not request.brokers_only:
            topics = self._topics(call, internal=True)
        return pb.Metadata(
            cluster_id=self._node.cluster,
            broker_id=self._node.broker,
            brokers=[pb.BrokerAddress(id=one, host=where.host, port=where.port) for one, where in addresses.items()],
            topics=[pb.TopicMetadata(topic=_packed(topic), partitions=self._partitions(topic)) for topic in topics],
            version=__version__,
        )

    def _partitions(self, topic: ClusterTopic) -> list[pb.PartitionMetadata]:
        found = []
        for number in range(topic.info.partitions):
            state, _ = self._node.membership.view.partitions.get((topic.info.uuid, number), (None, 0))
            if state is None:
                found.append(pb.PartitionMetadata(partition=number, leader=_NO_LEADER))
                continue
            found.append(
                pb.PartitionMetadata(
                    partition=number,
                    leader=_NO_LEADER if state.leader == NOBODY else state.leader,
                    leader_epoch=state.epoch,
                    replicas=state.replicas,
                    in_sync=sorted(state.in_sync),
                    moving_to=() if state.move is None else state.move.to,
                )
            )
        return found

    def _topics(self, call: Call, *, internal: bool) -> list[ClusterTopic]:
        known = sorted(self._node.membership.view.topics.items())
        return [topic for name, topic in known if call.sees(name) and (internal or not name.startswith("__"))]

    async def _topic(self, name: str) -> ClusterTopic:
        """A topic; one that this broker has not heard of yet may have been made by another just now."""
        known = self._node.membership.view.topics.get(name)
        return known if known is not None else await self._node.topics.get(check_name("topic", name, internal=True))

    async def list_topics(self, request: pb.ListTopicsRequest, call: Call) -> pb.ListTopicsResponse:
        found = self._topics(call, internal=request.internal)
        return pb.ListTopicsResponse(topics=[_packed(topic) for topic in found])

    async def describe_topic(self, request: pb.DescribeTopicRequest, call: Call) -> pb.Topic:
        call.check_seen(request.name)
        return _packed(await self._topic(request.name))

    async def get_schema(self, request: pb.GetSchemaRequest, call: Call) -> pb.Schema:
        call.check_seen(request.topic)
        topic = await self._topic(request.topic)
        if request.schema_id and request.schema_id not in topic.info.schemas:
            topic = await self._node.topics.get(request.topic)
        wanted = request.schema_id or topic.info.schemas[-1]
        for schema in topic.schemas:
            if schema.id == wanted:
                return pb.Schema(id=schema.id, schema=b"" if schema.raw else schema.serialize())
        raise SchemaError(f"topic {request.topic!r} has no schema {wanted:016x}")

    async def create_topic(self, request: pb.CreateTopicRequest, call: Call) -> pb.Topic:
        call.check("admin", "topic", request.name)
        _check_yours(request.name)
        name = check_name("topic", request.name, internal=request.internal)
        schema = Schema(schema_from(request.schema)) if request.schema else RAW
        config = configured(self._store.defaults.topic, None, options_from_text(request.options))
        info = TopicInfo(name, random_bytes(16), request.partitions or 1, (schema.id,), config, time.time_ns())
        wanted = request.replication or self._core.config.replication
        replication = await self._node.topics.replicas_of_new(name, wanted)
        topic = ClusterTopic(info, (schema,), replication, default_min_insync(replication))
        try:
            await self._node.topics.create(topic)
        except TopicExists:
            if not request.exist_ok and not request.internal:
                raise
            return _packed(await self._node.topics.get(name))
        return _packed(topic)

    async def alter_topic(self, request: pb.AlterTopicRequest, call: Call) -> pb.Topic:
        call.check("admin", "topic", request.name)
        _check_yours(request.name)
        options = options_from_text(request.options)

        def change(topic: ClusterTopic) -> ClusterTopic:
            info = replace(topic.info, config=configured(topic.info.config, None, options))
            return replace(topic, info=grown(info, request.partitions) if request.partitions else info)

        return _packed(await self._node.topics.change(request.name, change))

    async def evolve_topic(self, request: pb.EvolveTopicRequest, call: Call) -> pb.Topic:
        call.check("admin", "topic", request.name)
        _check_yours(request.name)
        schema = Schema(schema_from(request.schema))

        def change(topic: ClusterTopic) -> ClusterTopic:
            current = topic.schemas[-1]
            if schema == current:
                return topic
            if current.raw:
                raise SchemaError(f"topic {request.name!r} is raw: its records have no columns to add to")
            check_evolution(current, schema)
            info = replace(topic.info, schemas=(*topic.info.schemas, schema.id))
            return replace(topic, info=info, schemas=(*topic.schemas, schema))

        return _packed(await self._node.topics.change(request.name, change))

    async def delete_topic(self, request: pb.DeleteTopicRequest, call: Call) -> pb.DeleteTopicResponse:
        call.check("admin", "topic", request.name)
        _check_yours(request.name)
        topic = await self._node.topics.delete(request.name)
        self._core.arrivals.tell((request.name, number) for number in range(topic.info.partitions))
        return pb.DeleteTopicResponse()


def _check_yours(name: str) -> None:
    if name in INTERNAL:
        raise InvalidConfiguration(f"{name!r} is the cluster's own topic: brokers make it, and it stays as it is")


def _packed(topic: ClusterTopic) -> pb.Topic:
    packed = pack_topic(topic.info)
    packed.replication = topic.replication
    return packed
