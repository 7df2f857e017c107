"""Elections: what the controller makes of a partition when brokers come and go.

The controller only proposes. Whatever it writes is refused by etcd when it is no longer the controller, or when the
partition has changed since it looked; so two controllers do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from headwater.cluster.control.metadata import NOBODY, Members, PartitionState


class LogEnd(NamedTuple):
    """The end of a replica's log, so that two can be compared: the later epoch wins, then the longer log."""

    epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class Election:
    """The rules by which leaders are chosen.

    A leader is one that was in sync, so that it has everything that was acknowledged, and that is alive. There is no
    election of one that was not: that is an operator's decision, `force`.
    """

    min_insync: int

    def is_led(self, state: PartitionState, alive: Members) -> bool:
        """Return whether the leader lives, and is the one that was elected: a new incarnation inherits nothing."""
        return state.leader != NOBODY and alive.get(state.leader) == state.leader_incarnation

    def asks(self, state: PartitionState, alive: Members) -> frozenset[int]:
        """The brokers whose logs must be known before an election: after a total outage, all that were in sync.

        One that has lived on since it was in sync has seen all that was acknowledged; any such one will do, and nobody
        is asked. If there is none, all have been down, and each may be the one whose disk has kept the most.
        """
        return frozenset() if self._lived_on(state, alive) else frozenset(state.in_sync)

    def _lived_on(self, state: PartitionState, alive: Members) -> list[int]:
        return [
            broker
            for broker in state.replicas
            if broker in state.in_sync and alive.get(broker) == state.in_sync[broker]
        ]

    def elect(self, state: PartitionState, alive: Members, ends: Mapping[int, LogEnd]) -> PartitionState | None:
        """The partition with a new leader; None when there is nobody who may lead yet."""
        lived_on = self._lived_on(state, alive)
        if lived_on:
            leader = lived_on[0]
        else:
            known = [
                broker for broker in state.replicas if broker in state.in_sync and broker in alive and broker in ends
            ]
            if not known or len(known) < len(state.in_sync):
                return None
            leader = max(known, key=lambda broker: ends[broker])
        return replace(
            state,
            in_sync=self._kept(state, alive),
            leader=leader,
            leader_incarnation=alive[leader],
            epoch=state.epoch + 1,
        )

    def force(self, state: PartitionState, leader: int, incarnation: int) -> PartitionState:
        """The partition led by a replica that may lack what was acknowledged: by an operator's command alone."""
        epoch = state.epoch + 1
        return replace(
            state,
            in_sync={leader: incarnation},
            leader=leader,
            leader_incarnation=incarnation,
            epoch=epoch,
            forced_epoch=epoch,
        )

    def _kept(self, state: PartitionState, alive: Members) -> Members:
        """The set that stays in sync: the living, and so many of the dead that it does not fall below its minimum."""
        kept = {broker: alive[broker] for broker in state.replicas if broker in state.in_sync and broker in alive}
        for broker, since in state.in_sync.items():
            if len(kept) >= self.min_insync:
                break
            kept.setdefault(broker, since)
        return kept
