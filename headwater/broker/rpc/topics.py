"""The RPCs about topics."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from headwater.broker.backend import NewTopic, PartitionPlacement, ServedTopic, TopicChange
from headwater.broker.core import Core
from headwater.broker.rpc.call import Call
from headwater.core.errors import SchemaError
from headwater.core.schema import RAW, Schema
from headwater.core.version import __version__
from headwater.v1 import broker_pb2 as pb
from headwater.wire.topics import options_from_text, pack_topic

_NO_LEADER: Final = 0xFFFFFFFF


class TopicMethods:
    """The methods about topics."""

    def __init__(self, core: Core) -> None:
        self._runtime = core.runtime
        self._catalog = core.backend.catalog

    async def get_metadata(self, request: pb.GetMetadataRequest, call: Call) -> pb.Metadata:
        catalog = self._catalog
        topics: list[ServedTopic] = []
        if request.topics and not request.brokers_only:
            topics = await catalog.named(request.topics, call.sees)
        elif not request.brokers_only:
            topics = await catalog.topics(call.sees, internal=True)
        placed = [(topic, catalog.placements(topic)) for topic in topics]
        return pb.Metadata(
            cluster_id=catalog.cluster_id,
            broker_id=catalog.broker_id,
            brokers=[
                pb.BrokerAddress(id=broker.id, host=broker.address.host, port=broker.address.port)
                for broker in catalog.brokers()
            ],
            topics=await self._runtime.read(_packed_metadata, placed) if placed else (),
            version=__version__,
        )

    async def create_topic(self, request: pb.CreateTopicRequest, call: Call) -> pb.Topic:
        call.check("admin", "topic", request.name)
        topic = NewTopic(
            request.name,
            request.partitions or 1,
            await self._runtime.read(_schema_from, request.schema) if request.schema else RAW,
            options_from_text(request.options),
            request.replication or None,
            request.min_insync or None,
            request.internal,
            request.exist_ok,
        )
        return _packed(await self._catalog.create(topic))

    async def list_topics(self, request: pb.ListTopicsRequest, call: Call) -> pb.ListTopicsResponse:
        topics = await self._catalog.topics(call.sees, internal=request.internal)
        return pb.ListTopicsResponse(topics=await self._runtime.read(lambda: list(map(_packed, topics))))

    async def describe_topic(self, request: pb.DescribeTopicRequest, call: Call) -> pb.Topic:
        call.check_seen(request.name)
        return _packed(await self._catalog.describe(request.name))

    async def alter_topic(self, request: pb.AlterTopicRequest, call: Call) -> pb.Topic:
        call.check("admin", "topic", request.name)
        change = TopicChange(
            request.partitions or None,
            options_from_text(request.options),
            request.replication or None,
            request.min_insync or None,
        )
        return _packed(await self._catalog.alter(request.name, change))

    async def evolve_topic(self, request: pb.EvolveTopicRequest, call: Call) -> pb.Topic:
        call.check("admin", "topic", request.name)
        schema = await self._runtime.read(_schema_from, request.schema)
        return _packed(await self._catalog.evolve(request.name, schema))

    async def delete_topic(self, request: pb.DeleteTopicRequest, call: Call) -> pb.DeleteTopicResponse:
        call.check("admin", "topic", request.name)
        await self._catalog.delete(request.name)
        return pb.DeleteTopicResponse()

    async def get_schema(self, request: pb.GetSchemaRequest, call: Call) -> pb.Schema:
        call.check_seen(request.topic)
        schema = await self._catalog.schema(request.topic, request.schema_id or None)
        return pb.Schema(id=schema.id, schema=b"" if schema.raw else schema.serialize())


def _schema_from(content: bytes) -> Schema:
    """In a thread: a schema from outside; raises SchemaError for bytes that are anything else."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(content))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SchemaError(f"not an Arrow schema: {error}") from error
    return Schema(schema)


def _packed_metadata(topics: list[tuple[ServedTopic, list[PartitionPlacement]]]) -> list[pb.TopicMetadata]:
    """In a thread: there may be many."""
    return [pb.TopicMetadata(topic=_packed(topic), partitions=map(_placed, placements)) for topic, placements in topics]


def _packed(topic: ServedTopic) -> pb.Topic:
    packed = pack_topic(topic.info)
    packed.replication, packed.min_insync = topic.replication, topic.min_insync
    return packed


def _placed(placement: PartitionPlacement) -> pb.PartitionMetadata:
    return pb.PartitionMetadata(
        partition=placement.partition,
        leader=_NO_LEADER if placement.leader is None else placement.leader,
        leader_epoch=placement.epoch,
        replicas=placement.replicas,
        in_sync=placement.in_sync,
        moving_to=placement.moving_to,
    )
