"""A group: consumers that share the partitions of some topics, and how far they are.

This module is the part that users hold, and the values that consumers and coordinators exchange. A backend implements
the coordinator (`GroupCoordinator` in `ports.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.streams.membership import Member, Rebalanced
from headwater.streams.position import Position
from headwater.streams.topic import TopicPartition

if TYPE_CHECKING:
    from headwater.streams.ports import GroupCoordinator

FORGOTTEN: Final = -1
"""In place of an offset: the group has no position here any more. Its slot stays its own, as others remember it."""

TopicKey = tuple[bytes, int]
"""A topic's uuid and a partition's number: a topic made again under its old name is another one."""

PartitionsOf = Callable[[Member], Iterable[TopicPartition]]
"""Returns the partitions of the topics that a member wants, as they are now."""


class Commit(NamedTuple):
    """A position to be set: everything before `offset` is done."""

    key: TopicKey
    offset: int


class PositionClaim(NamedTuple):
    """Positions that a transaction is to set together with its writes, and the consumer that may set them."""

    group: str
    member: str | None
    commits: dict[TopicPartition, Commit]
    known: Mapping[TopicKey, int] | None
    """From non-members: the generation of each position they resume from."""


class Assignment(NamedTuple):
    """The partitions of a member, as of a generation."""

    generation: int
    rebalanced: Rebalanced


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group as it is now."""

    name: str
    generation: int
    members: dict[str, Member]
    owners: dict[TopicPartition, str]
    target: dict[TopicPartition, str]
    positions: dict[TopicKey, Position]

    @property
    def commits(self) -> int:
        """The number of times that the group has set its positions: by acknowledgements and, seldom, by resets."""
        return sum(position.commits for position in self.positions.values())


class Group:
    """A group of consumers. Its members join and commit by themselves; this is for programs that look after it.

    Thread-safe.
    """

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self.name = coordinator.name
        self.coordinator = coordinator
        """The members of the group talk to it."""

    def describe(self) -> GroupInfo:
        """Return the group as it is now."""
        return self.coordinator.describe()

    def generation(self) -> int:
        """Return the present generation, which rises with every change of members or assignments."""
        return self.coordinator.generation()

    def committed(self) -> dict[TopicKey, Position]:
        """Return all positions."""
        return self.coordinator.committed()

    def position(self, key: TopicKey) -> Position | None:
        """Return the position in one partition, None when there is none."""
        return self.coordinator.position(key)

    def commit(
        self,
        member_id: str | None,
        commits: dict[TopicPartition, Commit],
        *,
        known: Mapping[TopicKey, int] | None = None,
    ) -> frozenset[TopicPartition]:
        """Set positions, as a member or as nobody's; return the partitions of others, where nothing was set.

        Non-members pass in `known` the generation of each position they resume from. Positions do not move back:
        raises CommitRefused when one of them would, and sets none then.
        """
        return self.coordinator.commit(member_id, commits, known=known)

    def reset(self, positions: dict[TopicPartition, Commit]) -> None:
        """Set positions on purpose, forwards or backwards. Members go on from there with their next poll.

        Records that they handled before and have not committed count no more: until members have noticed, their commits
        are refused.
        """
        self.coordinator.reset(positions)

    def expire(self, before_ns: int, *, dry_run: bool = False) -> bool:
        """Forget the group if it has no living member and its last commit was before that time; whether it was one."""
        return self.coordinator.expire(before_ns, dry_run=dry_run)


def was_reset(position: Position | None, generation: int) -> bool:
    """Return whether a position is of another generation than a non-member knows, so that somebody has set it."""
    return position is not None and position.generation != generation


def commit_now(
    group: GroupCoordinator,
    member: str | None,
    commits: dict[TopicPartition, Commit],
    known: dict[TopicKey, int] | None,
) -> tuple[dict[TopicPartition, Commit], frozenset[TopicPartition]]:
    """Set positions and wait for it; return those that are set, and the partitions that were refused."""
    refused = group.commit(member, commits, known=known)
    if not refused:
        return commits, refused
    return {partition: commit for partition, commit in commits.items() if partition not in refused}, refused
