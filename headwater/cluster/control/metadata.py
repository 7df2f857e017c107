"""Metadata: the cluster agrees on living brokers, and on the leader of each partition. etcd keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

NOBODY: Final = -1
"""In place of a leader."""

Members = Mapping[int, int]
"""Brokers, each with its incarnation: a broker that was started again is another one."""


@dataclass(frozen=True, slots=True)
class Move:
    """The brokers that are to have a partition's replicas, and those that had them before: a move can be taken back."""

    to: tuple[int, ...]
    back: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The leader of a partition and its in-sync replicas (ISR), as of an epoch.

    The epoch rises with every election, even when the same broker is elected again. A member's incarnation is the one
    in which it was last known to be in sync.
    """

    replicas: tuple[int, ...]
    in_sync: Members
    leader: int = NOBODY
    leader_incarnation: int = 0
    epoch: int = 0
    forced_epoch: int = 0
    """The last that began by an operator's command: what is older may be missing since, even if it was acknowledged."""
    move: Move | None = None
    """The move of the replicas, while it is under way."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_sync", MappingProxyType(dict(self.in_sync)))

    @property
    def wanted(self) -> tuple[int, ...]:
        """The brokers that have the replicas, or will have them when they have moved."""
        return self.replicas if self.move is None else self.move.to

    def with_in_sync(self, members: Members) -> PartitionState:
        """The same with other members in sync."""
        return replace(self, in_sync=members)

    def without(self, broker: int) -> PartitionState:
        """The same without one of them."""
        return self.with_in_sync({member: since for member, since in self.in_sync.items() if member != broker})


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change of the in-sync set that its leader wants; it counts once etcd has taken it.

    It is taken only while the partition's key is still at `revision` and every broker in `alive` still has that
    incarnation.
    """

    state: PartitionState
    revision: int
    alive: Members = field(default_factory=dict)
