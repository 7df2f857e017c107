"""Membership: who belongs to a group, and whose each partition is. Pure state, no files and no clock.

Two tables make hand-over safe. `target` says who *should* have a partition: it changes with every join and leave.
`owners` says who *has* it: a partition passes from one to the other only when the old owner has let it go, or is gone.
So a join alone never makes two members read one partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headwater.streams.topic import TopicPartition


@dataclass(slots=True)
class Member:
    """One consumer of the group: which topics it wants, and when it joined.

    A `static` one has a fixed share of the partitions, which it takes by itself. It is a member so that the others, and
    stewards, know of it; no partition is assigned to it.
    """

    topics: list[str]
    joined_ns: int
    client: str = ""
    static: bool = False


class Rebalanced(NamedTuple):
    """The partitions of a member."""

    owned: frozenset[TopicPartition]
    """Its partitions."""
    taken: frozenset[TopicPartition]
    """Those of them that were not its own before."""
    leaving: frozenset[TopicPartition]
    """The partitions that it still holds, but should let go."""
    waiting: bool
    """True if there are partitions that it should have and that others still hold."""


@dataclass(slots=True)
class Membership:
    """The members of a group and what is whose. The generation rises with every change of members or targets."""

    generation: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    target: dict[TopicPartition, str] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)

    def join(self, member_id: str, member: Member) -> None:
        """Add a member; it gets partitions at the next `assign`."""
        self.members[member_id] = member
        self.generation += 1

    def remove(self, member_id: str) -> bool:
        """Take a member out, with all that it owns; whether it was there."""
        if self.members.pop(member_id, None) is None:
            return False
        self.owners = {partition: owner for partition, owner in self.owners.items() if owner != member_id}
        self.generation += 1
        return True

    def assign(self, partitions_of: Callable[[Member], Iterable[TopicPartition]]) -> bool:
        """Spread the partitions over the members who want them, round-robin; whether anything changed."""
        wanted: dict[TopicPartition, list[str]] = {}
        for member_id in sorted(member_id for member_id, member in self.members.items() if not member.static):
            for partition in partitions_of(self.members[member_id]):
                wanted.setdefault(partition, []).append(member_id)
        load = dict.fromkeys(self.members, 0)
        target: dict[TopicPartition, str] = {}
        for partition in sorted(wanted):
            chosen = min(wanted[partition], key=lambda member_id: (load[member_id], member_id))
            load[chosen] += 1
            target[partition] = chosen
        if target == self.target:
            return False
        self.target = target
        self.owners = {partition: owner for partition, owner in self.owners.items() if partition in target}
        self.generation += 1
        return True

    def rebalance(self, member_id: str, holding: Iterable[TopicPartition] = ()) -> Rebalanced:
        """Take what is free of what should be this member's, and let go what should not be and it does not hold."""
        mine = {partition for partition, chosen in self.target.items() if chosen == member_id}
        before = {partition for partition, owner in self.owners.items() if owner == member_id}
        leaving = (before - mine).intersection(holding)
        for partition in before - mine - leaving:
            del self.owners[partition]
        for partition in mine:
            self.owners.setdefault(partition, member_id)
        owned = {partition for partition in mine if self.owners[partition] == member_id}
        return Rebalanced(frozenset(owned), frozenset(owned - before), frozenset(leaving), owned != mine)

    # As JSON.

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "generation": self.generation,
            "members": {
                key: {
                    "topics": member.topics,
                    "joined_ns": member.joined_ns,
                    "client": member.client,
                    "static": member.static,
                }
                for key, member in self.members.items()
            },
            "target": [[*partition, member] for partition, member in self.target.items()],
            "owners": [[*partition, member] for partition, member in self.owners.items()],
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Membership:
        """The reverse of `to_dict`."""
        return cls(
            content["generation"],
            {key: Member(**member) for key, member in content["members"].items()},
            {TopicPartition(topic, number): member for topic, number, member in content["target"]},
            {TopicPartition(topic, number): member for topic, number, member in content["owners"]},
        )
