"""The status of a cluster, as its brokers tell it: leaders, in-sync replicas, and how far followers lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from headwater.client.connection import Connection
from headwater.client.credentials import Credentials
from headwater.core.address import Address
from headwater.core.config import DEFAULT_REPLICATION, ClientConfig
from headwater.core.errors import BrokerUnavailable, HeadwaterError, StoreError
from headwater.v1 import broker_pb2 as pb

_TIMEOUT: Final = 5.0
Ends = dict[tuple[bytes, int], int]


def look(addresses: list[Address], credentials: Credentials) -> dict[str, Any]:
    """The cluster that these brokers are of; raises StoreError when they are in none."""
    metadata: pb.Metadata = call(addresses, credentials, "GetMetadata", pb.GetMetadataRequest())
    if not metadata.cluster_id:
        raise StoreError(f"the broker at {addresses[0]} is in no cluster: `hw broker status` shows its state")
    brokers = {broker.id: Address(broker.host, broker.port) for broker in metadata.brokers}
    ends: dict[int, Ends] = {}
    problems: dict[int, str] = {}
    for number, address in sorted(brokers.items()):
        try:
            ends[number] = _ends_at(number, address, credentials, metadata)
        except HeadwaterError as error:
            problems[number] = "not reached" if isinstance(error, BrokerUnavailable) else str(error)
    return _document(metadata, brokers, ends, problems)


def standing_of(metadata: pb.Metadata) -> dict[str, Any]:
    """The same by what one broker knows: it is not told how far followers are behind."""
    return _document(metadata, {broker.id: Address(broker.host, broker.port) for broker in metadata.brokers}, {}, {})


def call(
    addresses: list[Address], credentials: Credentials, method: str, request: object, timeout: float = _TIMEOUT
) -> Any:
    """The answer of the first of the brokers that gives one."""
    connection = Connection(addresses, ClientConfig(timeout=timeout), credentials)
    try:
        return connection.call(method, request)
    finally:
        connection.close()


def _ends_at(number: int, address: Address, credentials: Credentials, metadata: pb.Metadata) -> Ends:
    """The ends of the logs that a broker holds."""
    held = [
        pb.TopicPartition(topic_uuid=topic.topic.uuid, partition=partition.partition)
        for topic in metadata.topics
        for partition in topic.partitions
        if number in partition.replicas
    ]
    answer = call([address], credentials, "ListLogEnds", pb.ListLogEndsRequest(partitions=held))
    return {(log.topic_uuid, log.partition): log.end for log in answer.ends}


def _document(
    metadata: pb.Metadata, brokers: Mapping[int, Address], ends: Mapping[int, Ends], problems: Mapping[int, str]
) -> dict[str, Any]:
    topics: list[dict[str, Any]] = [
        {
            "name": topic.topic.name,
            "partitions": [_partition(topic.topic.uuid, partition, brokers, ends) for partition in topic.partitions],
        }
        for topic in metadata.topics
    ]
    partitions = [
        (f"{topic['name']}/{partition['partition']}", partition)
        for topic in topics
        for partition in topic["partitions"]
    ]
    leads = Counter(partition["leader"] for _, partition in partitions)
    holds = Counter(replica for _, partition in partitions for replica in partition["replicas"])
    return {
        "cluster": metadata.cluster_id,
        "version": metadata.version,
        "brokers": [
            {
                "id": number,
                "address": str(brokers[number]) if number in brokers else None,
                "leads": leads[number],
                "replicas": holds[number],
                "problem": problems.get(number) if number in brokers else "away",
            }
            for number in sorted(brokers.keys() | holds.keys())
        ],
        "topics": topics,
        "under_replicated": [
            name for name, partition in partitions if len(partition["in_sync"]) < len(partition["replicas"])
        ],
        "moving": [name for name, partition in partitions if partition["moving_to"]],
        "leaderless": [name for name, partition in partitions if partition["leader"] is None],
        "thinly_kept": [
            name
            for name, partition in partitions
            if name.startswith("__") and len(partition["replicas"]) < min(len(brokers), DEFAULT_REPLICATION)
        ],
    }


def _partition(
    uuid: bytes, partition: pb.PartitionMetadata, brokers: Mapping[int, Address], ends: Mapping[int, Ends]
) -> dict[str, Any]:
    """A partition; a leader that is away is none. Lag is how many records a replica lacks, None where nobody knows."""
    leader = partition.leader if partition.leader in brokers else None
    known = {replica: ends.get(replica, {}).get((uuid, partition.partition)) for replica in partition.replicas}
    last = known.get(leader) if leader is not None else None
    lag = {
        str(replica): None if last is None or end is None else max(last - end, 0)
        for replica, end in known.items()
        if replica != leader
    }
    return {
        "partition": partition.partition,
        "leader": leader,
        "epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "in_sync": list(partition.in_sync),
        "moving_to": list(partition.moving_to),
        "lag": lag,
    }
