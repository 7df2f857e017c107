"""Questions that a broker asks the other brokers of its cluster.

This is the only part of the backend that knows messages: brokers call each other by the same gRPC service as clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from headwater.broker.backend import NamedPartition
from headwater.broker.rpc.messages import (
    pack_partition,
    pack_record,
    pack_stages,
    unpack_range,
    unpack_record,
)
from headwater.broker.waiting_reader import PartitionOffsets, PartitionRead, ReadPosition
from headwater.cluster.etcd.keys import PartitionKey
from headwater.cluster.node import ClusterNode
from headwater.cluster.replication.carrier import Portion
from headwater.cluster.transactions.transaction_log import PartitionWrites, StageRange
from headwater.core.config import Acks
from headwater.core.record import Record
from headwater.log import Appended, Bounds
from headwater.streams.topic import TopicPartition, TopicStatistics
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error
from headwater.wire.statistics import unpack_statistics

_ASKING: Final = 5.0
"""Seconds for an answer that needs no more than a look."""
_APPLYING: Final = 30.0
"""Seconds for a leader to write what is decided, before it is asked again."""
_MARGIN: Final = 5.0
"""Seconds that an answer may take beyond the time that the other broker was asked to wait."""
_ACKS: Final = {"all": pb.ACKS_ALL, "leader": pb.ACKS_LEADER, "none": pb.ACKS_NONE}


class GroupReader(NamedTuple):
    """The progress of a group in one partition."""

    group: str
    key: PartitionKey
    offset: int | None
    """Its position; None if it has none, and reads the partition all the same."""


class GroupReaders(NamedTuple):
    """The progress of the groups that a broker coordinates."""

    coordinated: Sequence[int]
    """The partitions of the internal topic of groups that it speaks for."""
    groups: Sequence[str]
    readers: Sequence[GroupReader]


class UndoneWrites(NamedTuple):
    """Writes to a partition that are decided, and not appended yet."""

    coordinated: Sequence[TopicPartition]
    """The partitions of internal topics that the answer speaks for."""
    ranges: Sequence[StageRange]


class Peers:
    """The other brokers. Each method raises what the other broker raises, and BrokerUnavailable.

    Methods that call the leader of a partition raise NotLeader if there is none, or if it is this broker.
    """

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    async def append_records(
        self, partition: TopicPartition, topic_uuid: bytes, records: Sequence[Record], acks: Acks, timeout: float
    ) -> Appended:
        """Have the leader of a partition append plain records."""
        request = pb.ProduceRequest(
            topic=partition.topic,
            topic_uuid=topic_uuid,
            partition=partition.partition,
            records=map(pack_record, records),
            acks=_ACKS[acks],
        )
        places = (await self._node.call_leader(partition, "Produce", request, timeout)).places
        return Appended(places[0].offset, places[-1].offset + 1)

    async def fetch_records(
        self, broker: int, positions: Sequence[ReadPosition], max_bytes: int, wait: float
    ) -> list[PartitionRead]:
        """The records at these positions, or those that come within `wait` seconds."""
        request = pb.FetchRequest(as_records=True, max_bytes=max_bytes, max_wait_ms=round(wait * 1000))
        for position in positions:
            where = "" if position.where is None else position.where.text
            packed = request.positions.add(partition=pack_partition(position.partition), end=position.end, where=where)
            if position.timestamp_ns is None:
                packed.offset = position.offset
            else:
                packed.timestamp_ns = position.timestamp_ns
        answer: pb.FetchResponse = await self._node.call_broker(broker, "Fetch", request, wait + _MARGIN)
        return [_read(*both) for both in zip(answer.partitions, positions, strict=True)]  # they are in the same order

    async def offsets(
        self, broker: int, partitions: Iterable[NamedPartition], timestamp_ns: int | None
    ) -> list[PartitionOffsets]:
        """The offsets of partitions as a broker has them, and where a time begins in them."""
        request = pb.ListOffsetsRequest(partitions=map(pack_partition, partitions), timestamp_ns=timestamp_ns)
        answer: pb.ListOffsetsResponse = await self._node.call_broker(broker, "ListOffsets", request, _ASKING)
        return [
            PartitionOffsets(
                TopicPartition(offsets.topic, offsets.partition),
                Bounds(offsets.log_start, offsets.log_end, offsets.durable_end),
                (offsets.markers_until, offsets.markers_state),
                offsets.offset_at if offsets.HasField("offset_at") else None,
                unpack_error(offsets.error) if offsets.HasField("error") else None,
            )
            for offsets in answer.partitions
        ]

    async def statistics(self, broker: int) -> list[TopicStatistics]:
        """The numbers of all topics as a broker has them."""
        request = pb.GetStatisticsRequest()
        answer: pb.Statistics = await self._node.call_broker(broker, "GetStatistics", request, _ASKING)
        return [TopicStatistics.of(topic.name, map(unpack_statistics, topic.partitions)) for topic in answer.topics]

    async def group_readers(self, broker: int) -> GroupReaders:
        """The progress of the groups that a broker coordinates."""
        request = pb.ListReadersRequest()
        answer: pb.ListReadersResponse = await self._node.call_broker(broker, "ListReaders", request, _ASKING)
        readers = [
            GroupReader(
                reader.group, (reader.topic_uuid, reader.partition), None if reader.offset < 0 else reader.offset
            )
            for reader in answer.readers
        ]
        return GroupReaders(list(answer.coordinated), list(answer.groups), readers)

    # Transactions.

    async def drop_stages(self, partition: TopicPartition, tokens: Sequence[bytes]) -> None:
        """Have the leader of a partition remove what is staged there under tokens."""
        request = pb.DropStagesRequest(staged=[pb.Staged(token=token) for token in tokens])
        await self._node.call_leader(partition, "DropStages", request, _ASKING)

    async def hold_stages(self, writes: PartitionWrites, timeout: float) -> None:
        """Have the leader of a partition keep what is staged for these writes; raises TransactionAborted."""
        request = pack_stages(writes, b"", [Portion(0, writes.ranges)])
        await self._node.call_leader(TopicPartition(writes.topic, writes.partition), "HoldStages", request, timeout)

    async def apply_stages(
        self, writes: PartitionWrites, writer: bytes, portions: Sequence[Portion]
    ) -> Sequence[int | None]:
        """Have the leader of a partition append what is decided; return the first offset of each portion."""
        request = pack_stages(writes, writer, portions)
        partition = TopicPartition(writes.topic, writes.partition)
        answer: pb.ApplyStagesResponse = await self._node.call_leader(partition, "ApplyStages", request, _APPLYING)
        return [applied.base_offset if applied.HasField("base_offset") else None for applied in answer.applied]

    async def undone(self, broker: int, partition: TopicPartition, topic_uuid: bytes) -> UndoneWrites:
        """The writes to a partition that a broker has decided, and that are not appended yet."""
        named = pb.TopicPartition(topic=partition.topic, topic_uuid=topic_uuid, partition=partition.partition)
        request = pb.ListUndoneRequest(partition=named)
        answer: pb.ListUndoneResponse = await self._node.call_broker(broker, "ListUndone", request, _ASKING)
        coordinated = [TopicPartition(tp.topic, tp.partition) for tp in answer.coordinated]
        return UndoneWrites(coordinated, list(map(unpack_range, answer.undone)))


def _read(fetched: pb.FetchedPartition, asked: ReadPosition) -> PartitionRead:
    """The answer of a leader for one partition."""
    bounds = Bounds(fetched.log_start, fetched.log_end, fetched.durable_end)
    read = PartitionRead(asked.partition.tp, bounds, asked.offset)
    if fetched.HasField("error"):
        read.error = unpack_error(fetched.error)
        return read
    read.records = list(map(unpack_record, fetched.records))
    read.next_offset, read.filtered = fetched.next_offset, fetched.filtered
    if asked.timestamp_ns is not None:
        read.start = read.records[0].offset if read.records else fetched.next_offset
    return read
