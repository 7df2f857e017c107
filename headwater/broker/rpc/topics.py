"""Topics over the wire: what there is, and how it is made, changed and removed."""

from __future__ import annotations

import pyarrow as pa

from headwater.broker.core import Core
from headwater.broker.rpc.call import Call
from headwater.core.address import Address
from headwater.core.errors import SchemaError, UnknownTopic
from headwater.core.schema import Schema
from headwater.core.version import __version__
from headwater.streams.catalog import TopicInfo
from headwater.v1 import broker_pb2 as pb
from headwater.wire.topics import options_from_text, pack_topic


class Topics:
    """The methods about topics."""

    def __init__(self, core: Core, address: Address) -> None:
        self._core = core
        self._store = core.store
        self._address = address

    async def get_metadata(self, request: pb.GetMetadataRequest, call: Call) -> pb.Metadata:
        wanted = list(request.topics)
        topics = [] if request.brokers_only else await self._core.read(self._described, wanted, call, True)
        here = self._core.config.broker_id
        return pb.Metadata(
            cluster_id="",
            broker_id=here,
            brokers=[pb.BrokerAddress(id=here, host=self._address.host, port=self._address.port)],
            topics=[
                pb.TopicMetadata(
                    topic=pack_topic(info),
                    partitions=[
                        pb.PartitionMetadata(partition=number, leader=here, replicas=[here], in_sync=[here])
                        for number in range(info.partitions)
                    ],
                )
                for info in topics
            ],
            version=__version__,
        )

    def _described(self, names: list[str], call: Call, internal: bool) -> list[TopicInfo]:
        """The topics of these names, or all that there are, as far as the caller may see them."""
        found = []
        for name in names or (self._store.topic_names() if internal else self._store.topics()):
            if call.sees(name):
                try:
                    found.append(self._store.describe_topic(name))
                except UnknownTopic:
                    continue  # deleted since its name was read, or never there
        return found

    async def create_topic(self, request: pb.CreateTopicRequest, call: Call) -> pb.Topic:
        call.check("admin", "topic", request.name)
        return await self._core.write(self._create, request)

    def _create(self, request: pb.CreateTopicRequest) -> pb.Topic:
        options = options_from_text(request.options)
        if request.internal:
            topic = self._store.internal_topic(request.name, **options)
        else:
            schema = schema_from(request.schema) if request.schema else None
            partitions = request.partitions or 1
            topic = self._store.create_topic(request.name, partitions, schema, exist_ok=request.exist_ok, **options)
        return pack_topic(topic.info)

    async def list_topics(self, request: pb.ListTopicsRequest, call: Call) -> pb.ListTopicsResponse:
        found = await self._core.read(self._described, [], call, request.internal)
        return pb.ListTopicsResponse(topics=[pack_topic(info) for info in found])

    async def describe_topic(self, request: pb.DescribeTopicRequest, call: Call) -> pb.Topic:
        call.check_seen(request.name)
        return pack_topic(await self._core.read(self._store.describe_topic, request.name))

    async def alter_topic(self, request: pb.AlterTopicRequest, call: Call) -> pb.Topic:
        call.check("admin", "topic", request.name)
        return await self._core.write(self._alter, request)

    def _alter(self, request: pb.AlterTopicRequest) -> pb.Topic:
        options = options_from_text(request.options)
        return pack_topic(self._store.alter_topic(request.name, partitions=request.partitions or None, **options))

    async def evolve_topic(self, request: pb.EvolveTopicRequest, call: Call) -> pb.Topic:
        call.check("admin", "topic", request.name)
        return await self._core.write(self._evolve, request)

    def _evolve(self, request: pb.EvolveTopicRequest) -> pb.Topic:
        return pack_topic(self._store.evolve_topic(request.name, Schema(schema_from(request.schema))))

    async def delete_topic(self, request: pb.DeleteTopicRequest, call: Call) -> pb.DeleteTopicResponse:
        call.check("admin", "topic", request.name)
        info = await self._core.read(self._store.describe_topic, request.name)
        await self._core.write(self._store.delete_topic, request.name)
        self._core.arrivals.tell((request.name, number) for number in range(info.partitions))
        return pb.DeleteTopicResponse()

    async def get_schema(self, request: pb.GetSchemaRequest, call: Call) -> pb.Schema:
        call.check_seen(request.topic)
        return await self._core.read(self._get_schema, request)

    def _get_schema(self, request: pb.GetSchemaRequest) -> pb.Schema:
        info = self._store.describe_topic(request.topic)
        schema = self._store.schema_by_id(info, request.schema_id or info.schemas[-1])
        return pb.Schema(id=schema.id, schema=b"" if schema.raw else schema.serialize())


def schema_from(content: bytes) -> pa.Schema:
    """A schema from outside. Nobody else's bytes are read before it is known that they are a schema and no more."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(content))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SchemaError(f"not an Arrow schema: {error}") from error
