"""A broker's part in its cluster in numbers. `headwater.broker.metrics` says what each of them means."""

from __future__ import annotations

import time
from collections.abc import Mapping

from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.node import ClusterNode
from headwater.core.errors import StoreError


def cluster_gauges(node: ClusterNode) -> Mapping[str, float]:
    """In any thread: how this broker sees its cluster; empty if it has not joined yet."""
    try:
        membership = node.membership
    except StoreError:
        return {}
    view = membership.view
    alive = dict(view.alive)
    minima = {topic.info.uuid: topic.min_insync for topic in list(view.topics.values())}
    states = [(key, state) for key, (state, _) in list(view.partitions.items()) if key[0] in minima]
    led = [(key, state) for key, state in states if state.leader == node.broker]
    followed = [state for _, state in states if state.leader != node.broker and node.broker in state.replicas]
    return {
        "brokers": len(alive),
        "controller": bool(membership.controller.since),
        "leader_partitions": len(led),
        "follower_partitions": len(followed),
        "under_replicated_partitions": sum(_living(state, alive) < len(state.replicas) for _, state in led),
        "under_min_insync_partitions": sum(_living(state, alive) < minima[key[0]] for key, state in led),
        "leaderless_partitions": sum(state.leader not in alive for _, state in states),
        "moving_partitions": sum(state.move is not None for _, state in states),
        "unconfirmed_seconds": max(time.monotonic() - membership.registration.confirmed, 0.0),
    }


def _living(state: PartitionState, alive: Mapping[int, int]) -> int:
    return sum(alive.get(broker) == since for broker, since in state.in_sync.items())
