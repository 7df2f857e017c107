"""Assignment: which brokers hold the replicas of a partition.

Leaders go round all brokers, and so do the followers, at another pace: so when a broker dies, what it led is spread
over all the others, not put on its neighbour.
"""

from __future__ import annotations

from collections.abc import Collection

from headwater.cluster.control.metadata import Members, PartitionState
from headwater.cluster.etcd.keys import ClusterTopic
from headwater.core.errors import InvalidConfiguration


def replicas_of(topic: bytes, number: int, replication: int, brokers: Collection[int]) -> tuple[int, ...]:
    """The brokers for a partition, its first leader first. The topic's uuid says where the round begins."""
    ring = sorted(brokers)
    if replication > len(ring):
        raise InvalidConfiguration(f"{replication} replicas need {replication} brokers, and only {len(ring)} are alive")
    turn = int.from_bytes(topic[:4], "big") + number
    first = turn % len(ring)
    others = len(ring) - 1
    pace = turn // len(ring)
    return tuple(
        ring[first] if position == 0 else ring[(first + 1 + (pace + position - 1) % others) % len(ring)]
        for position in range(replication)
    )


def first_state(topic: ClusterTopic, number: int, alive: Members) -> PartitionState | None:
    """A new partition: all its replicas are empty, so all are in sync. None while there are too few brokers."""
    if topic.replication > len(alive):
        return None
    replicas = replicas_of(topic.info.uuid, number, topic.replication, alive)
    in_sync = {broker: alive[broker] for broker in replicas}
    return PartitionState(replicas, in_sync, replicas[0], alive[replicas[0]], 1)


def default_min_insync(replication: int) -> int:
    """So many replicas that one of them may be away: 2 of 3, but 1 of 2."""
    return (replication + 1) // 2
