"""Membership: who belongs to a group, and whose each partition is. Pure state, no files and no clock.

Two tables make hand-over safe. `target` says who *should* have a partition: it changes with every join and leave.
`owners` says who *has* it: a partition passes from one to the other only when the old owner has let it go, or is gone.
So a join alone never makes two members read one partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    assigned: int = -1
    """The generation in which the targets were last spread; as long as it lasts, the members are the same."""

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
        """Spread the partitions evenly over the members that want them, and move few; whether anything changed.

        A partition stays where it is if its member still wants it, and moves only to a member that has at least two
        fewer. So partitions that come or go move no others unless members become uneven, and a join moves only what
        the new member gets.
        """
        wanted = self._wanted(partitions_of)
        everything = frozenset[TopicPartition]().union(*wanted.values())
        shares: dict[str, set[TopicPartition]] = {member_id: set() for member_id in wanted}
        left: list[TopicPartition] = []
        for partition in sorted(everything):
            member_id = self.target.get(partition)
            if member_id is not None and partition in wanted.get(member_id, ()):
                shares[member_id].add(partition)
            else:
                left.append(partition)
        if self.assigned == self.generation and not left and len(everything) == len(self.target):
            return False  # the members and the partitions are those of the last time
        for partition in left:
            owner = self.owners.get(partition)
            takers = [member_id for member_id, wishes in wanted.items() if partition in wishes]
            shares[min(takers, key=lambda taker: (len(shares[taker]), taker != owner, taker))].add(partition)
        self._even_out(shares, wanted)
        target = {partition: member_id for member_id, share in shares.items() for partition in share}
        changed = target != self.target
        if changed:
            self.target = {partition: target[partition] for partition in sorted(target)}
            self.owners = {partition: owner for partition, owner in self.owners.items() if partition in target}
            self.generation += 1
        self.assigned = self.generation
        return changed

    def _wanted(
        self, partitions_of: Callable[[Member], Iterable[TopicPartition]]
    ) -> dict[str, frozenset[TopicPartition]]:
        """Return the partitions that each member wants. Members that want the same topics are looked up once."""
        by_topics: dict[tuple[str, ...], frozenset[TopicPartition]] = {}
        wanted: dict[str, frozenset[TopicPartition]] = {}
        for member_id, member in sorted(self.members.items()):
            if not member.static:
                topics = tuple(member.topics)
                if topics not in by_topics:
                    by_topics[topics] = frozenset(partitions_of(member))
                wanted[member_id] = by_topics[topics]
        return wanted

    def _even_out(
        self, shares: dict[str, set[TopicPartition]], wanted: Mapping[str, frozenset[TopicPartition]]
    ) -> None:
        """Move partitions from members with many to members with few, one at a time, while that makes them evener."""
        offers: dict[str, list[TopicPartition]] = {}
        while True:
            by_load = sorted(shares, key=lambda member_id: (len(shares[member_id]), member_id))
            for giver, taker in _uneven(by_load, shares):
                if giver not in offers:
                    offers[giver] = self._offered(giver, shares[giver])
                partition = next((offer for offer in offers[giver] if offer in wanted[taker]), None)
                if partition is not None:
                    break
            else:
                return
            offers[giver].remove(partition)
            offers.pop(taker, None)
            shares[giver].remove(partition)
            shares[taker].add(partition)

    def _offered(self, member_id: str, share: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions of a member in the order in which it gives them up.

        First come those that it has not taken yet, then those of the topics of which it has most: so the partitions of
        each topic stay spread over the members.
        """
        ranks: Counter[str] = Counter()
        order: list[tuple[bool, int, TopicPartition]] = []
        for partition in sorted(share):
            ranks[partition.topic] += 1
            order.append((self.owners.get(partition) == member_id, -ranks[partition.topic], partition))
        return [partition for _, _, partition in sorted(order)]

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
            "assigned": self.assigned,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Membership:
        """The reverse of `to_dict`."""
        return cls(
            content["generation"],
            {key: Member(**member) for key, member in content["members"].items()},
            {TopicPartition(topic, number): member for topic, number, member in content["target"]},
            {TopicPartition(topic, number): member for topic, number, member in content["owners"]},
            content.get("assigned", -1),
        )


def _uneven(by_load: list[str], shares: Mapping[str, set[TopicPartition]]) -> Iterator[tuple[str, str]]:
    """Yield the members that should give a partition to others, with each of those, the most uneven pairs first."""
    for taker in by_load:
        for giver in reversed(by_load):
            if len(shares[giver]) - len(shares[taker]) < 2:
                break
            yield giver, taker
