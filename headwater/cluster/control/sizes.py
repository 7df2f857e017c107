"""The sizes of logs, here and at other brokers: operators want to know how much a move copies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from headwater.cluster.etcd.keys import BrokerMember, PartitionKey
from headwater.cluster.link import Links
from headwater.cluster.replication.durable_log import DurableLog
from headwater.cluster.replication.following import DiskThreads
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.core.errors import HeadwaterError
from headwater.v1 import broker_pb2 as pb


class Sizes:
    """Asks for the sizes of logs. It belongs to one event loop."""

    def __init__(
        self, broker: int, local: Mapping[PartitionKey, LocalReplica], links: Links, threads: DiskThreads
    ) -> None:
        self._broker = broker
        self._local = local
        self._links = links
        self._threads = threads

    async def here(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        """The number of bytes of the logs that are here."""
        held = {key: local.log for key in keys if (local := self._local.get(key)) is not None}
        sizes: Mapping[PartitionKey, int] = await self._threads.read(_sizes, held)
        return sizes

    async def at(self, member: BrokerMember, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        """The same of a broker, which may be this one; raises BrokerUnavailable."""
        if member.id == self._broker:
            return await self.here(keys)
        partitions = [pb.TopicPartition(topic_uuid=uuid, partition=number) for uuid, number in keys]
        request = pb.ListLogEndsRequest(partitions=partitions, sizes=True)
        response = await self._links.to(member).log_ends(request, timeout=5.0)
        return {(log.topic_uuid, log.partition): log.bytes for log in response.ends}


def _sizes(logs: Mapping[PartitionKey, DurableLog]) -> dict[PartitionKey, int]:
    """In a thread. One that is deleted meanwhile has none."""
    sizes: dict[PartitionKey, int] = {}
    for key, log in logs.items():
        with suppress(HeadwaterError):
            sizes[key] = log.partition.statistics().bytes
    return sizes
