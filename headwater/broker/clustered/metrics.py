"""A broker's part in its cluster in numbers, for Prometheus. All are 0 for a broker that is in none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headwater.cluster.control.metadata import PartitionState
from headwater.core.errors import StoreError
from headwater.core.exposition import Family, Sample

if TYPE_CHECKING:
    from headwater.cluster.node import ClusterNode

_PREFIX: Final = "headwater_cluster_"


def cluster_metrics(node: ClusterNode | None) -> Iterator[Family]:
    """What this broker sees of its cluster, and what it does there. In any thread."""
    numbers = dict.fromkeys(_MEANINGS, 0.0)
    with suppress(StoreError):  # it has not joined yet
        numbers = numbers if node is None else _numbers(node)
    for name, meaning in _MEANINGS.items():
        yield Family(_PREFIX + name, "gauge", meaning, [Sample((), numbers[name])])


_MEANINGS: Final = {
    "brokers": "Brokers that are alive, as this one sees it.",
    "controller": "1 for the broker that is the controller.",
    "leader_partitions": "Partitions that are led here.",
    "follower_partitions": "Partitions that are followed here.",
    "under_replicated_partitions": "Partitions that are led here, and have fewer replicas in sync than wanted.",
    "under_min_insync_partitions": "Partitions that are led here, and take no writes: too few replicas are in sync.",
    "leaderless_partitions": "Partitions of the cluster that nobody leads, as this broker sees it.",
    "moving_partitions": "Partitions of the cluster whose replicas move.",
    "unconfirmed_seconds": "How long ago etcd has last confirmed that this broker is registered.",
}


def _numbers(node: ClusterNode) -> dict[str, float]:
    membership = node.membership
    view = membership.view
    alive = dict(view.alive)
    minima = {topic.info.uuid: topic.min_insync for topic in list(view.topics.values())}
    found = dict.fromkeys(_MEANINGS, 0.0)
    found["brokers"] = len(alive)
    found["controller"] = bool(membership.controller.since)
    found["unconfirmed_seconds"] = max(time.monotonic() - membership.registration.confirmed, 0.0)
    for key, (state, _) in list(view.partitions.items()):
        if key[0] not in minima:
            continue
        if state.leader == node.broker:
            living = _living(state, alive)
            found["leader_partitions"] += 1
            found["under_replicated_partitions"] += living < len(state.replicas)
            found["under_min_insync_partitions"] += living < minima[key[0]]
        elif node.broker in state.replicas:
            found["follower_partitions"] += 1
        found["leaderless_partitions"] += state.leader not in alive
        found["moving_partitions"] += state.move is not None
    return found


def _living(state: PartitionState, alive: dict[int, int]) -> int:
    return sum(alive.get(broker) == since for broker, since in state.in_sync.items())
