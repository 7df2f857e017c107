"""Values of the backend as messages, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headwater.broker.backend import NamedPartition
from headwater.broker.plain import as_bytes
from headwater.cluster.replication.carrier import Portion
from headwater.cluster.transactions.transaction_log import PartitionWrites, StageRange
from headwater.core.config import Acks
from headwater.core.record import NO_HEADERS, Record
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb

_ACKS: Final[dict[int, Acks]] = {pb.ACKS_LEADER: "leader", pb.ACKS_NONE: "none"}


def named_partition(message: pb.TopicPartition) -> NamedPartition:
    """A partition as a caller names it."""
    return NamedPartition(message.topic, message.partition, message.topic_uuid)


def pack_partition(partition: NamedPartition) -> pb.TopicPartition:
    """The reverse."""
    topic, number, uuid = partition
    return pb.TopicPartition(topic=topic, partition=number, topic_uuid=uuid)


def pack_partitions(partitions: Iterable[TopicPartition]) -> list[pb.TopicPartition]:
    """Partitions as messages, in order."""
    return [pb.TopicPartition(topic=topic, partition=number) for topic, number in sorted(partitions)]


def unpack_acks(acks: int) -> Acks:
    """The replicas that a producer waits for: all that are in sync, unless it says otherwise."""
    return _ACKS.get(acks, "all")


def unpack_record(message: pb.Record) -> Record:
    """A plain record. It has its offset only where it is stored."""
    return Record(
        message.offset,
        message.timestamp_ns,
        message.key if message.HasField("key") else None,
        message.value if message.HasField("value") else None,
        dict(message.headers) if message.headers else NO_HEADERS,
    )


def pack_record(record: Record) -> pb.Record:
    """A record as a message; a row becomes JSON."""
    offset, timestamp, key, value, headers = record
    message = pb.Record(key=key, timestamp_ns=timestamp, offset=offset)
    if value is not None:
        message.value = as_bytes(value)
    for name, content in headers.items():
        message.headers[name] = content
    return message


# Stages of transactions, between brokers.


def pack_range(staged: StageRange) -> pb.StageRange:
    """A range of a stage log as a message."""
    return pb.StageRange(epoch=staged.epoch, start=staged.start, end=staged.end)


def unpack_range(message: pb.StageRange) -> StageRange:
    """The reverse."""
    return StageRange(message.epoch, message.start, message.end)


def pack_stages(writes: PartitionWrites, writer: bytes, portions: Iterable[Portion]) -> pb.StagesRequest:
    """Portions of the writes of transactions to a partition as a message."""
    return pb.StagesRequest(
        partition=pb.TopicPartition(topic=writes.topic, topic_uuid=writes.uuid, partition=writes.partition),
        writer=writer,
        portions=[pb.StagedPortion(number=number, ranges=map(pack_range, ranges)) for number, ranges in portions],
    )


def unpack_portions(request: pb.StagesRequest) -> list[Portion]:
    """The portions of a message."""
    return [Portion(portion.number, list(map(unpack_range, portion.ranges))) for portion in request.portions]
