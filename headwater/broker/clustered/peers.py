"""Questions that a broker asks the other brokers of its cluster.

This is the only part of the backend that knows messages: brokers call each other by the same gRPC service as clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headwater.broker.rpc.messages import (
    pack_record,
    pack_stages,
    unpack_range,
    unpack_record,
    unpack_statistics,
)
from headwater.cluster.etcd.keys import PartitionKey
from headwater.cluster.node import ClusterNode
from headwater.cluster.replication.carrier import Portion
from headwater.cluster.transactions.transaction_log import PartitionWrites, StageRange
from headwater.core.config import Acks
from headwater.core.errors import HeadwaterError
from headwater.core.record import Record
from headwater.log import Appended
from headwater.streams.topic import TopicPartition, TopicStatistics
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error

_ASKING: Final = 5.0
"""Seconds for an answer that needs no more than a look."""
_APPLYING: Final = 30.0
"""Seconds for a leader to write what is decided, before it is asked again."""
_MARGIN: Final = 5.0
"""Seconds that an answer may take beyond the time that the other broker was asked to wait."""
_ACKS: Final = {"all": pb.ACKS_ALL, "leader": pb.ACKS_LEADER, "none": pb.ACKS_NONE}

Start = tuple[bytes, int]
"""A topic's uuid, and the offset to read from."""


class FetchedRecords(NamedTuple):
    """Records of a partition, as its leader has them."""

    partition: TopicPartition
    records: Sequence[Record]
    log_start: int
    log_end: int
    next_offset: int
    error: HeadwaterError | None = None


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
        self, broker: int, starts: Mapping[TopicPartition, Start], max_bytes: int, wait: float
    ) -> list[FetchedRecords]:
        """The records behind these offsets, or those that come within `wait` seconds."""
        request = pb.FetchRequest(as_records=True, max_bytes=max_bytes, max_wait_ms=round(wait * 1000))
        for (topic, number), (uuid, offset) in starts.items():
            named = pb.TopicPartition(topic=topic, partition=number, topic_uuid=uuid)
            request.positions.append(pb.FetchPosition(partition=named, offset=offset))
        answer: pb.FetchResponse = await self._node.call_broker(broker, "Fetch", request, wait + _MARGIN)
        return [
            FetchedRecords(
                TopicPartition(fetched.topic, fetched.partition),
                list(map(unpack_record, fetched.records)),
                fetched.log_start,
                fetched.log_end,
                fetched.next_offset,
                unpack_error(fetched.error) if fetched.HasField("error") else None,
            )
            for fetched in answer.partitions
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
