"""The coordinator of a group in an embedded store.

There is no server. A change of a group holds its lock for some microseconds. Everything about members and positions
is decided here, by the same rules wherever the group is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager

from headwater.core.errors import CommitRefused, StaleMember
from headwater.log.clock import Clock
from headwater.log.elapsed import IsOld
from headwater.log.entropy import random_bytes
from headwater.streams.group import FORGOTTEN, Assignment, Commit, GroupInfo, PartitionsOf, TopicKey, was_reset
from headwater.streams.membership import Member, Membership
from headwater.streams.position import Position
from headwater.streams.topic import TopicPartition


class EmbeddedGroup(ABC):
    """The coordinator of a group that this program keeps, alone or together with others. Thread-safe.

    The rules are here, written once over two things that kinds of groups differ in: how the membership is kept and
    changed with nobody else changing it, and how one knows that a member lives.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock

    # Members.

    def join(
        self,
        topics: list[str],
        partitions_of: PartitionsOf,
        client: str = "",
        member_id: str | None = None,
        *,
        static: bool = False,
    ) -> str:
        """Become a member; returns the member's id, which is a new one unless it is named."""
        member_id = member_id or random_bytes(16).hex()
        self._begin_life(member_id)
        try:
            with self._changing() as membership:
                for other in [key for key, member in membership.members.items() if member.static]:
                    if not self._lives(other, 0):
                        membership.remove(other)  # nobody else looks: those with fixed shares do not rebalance
                membership.join(member_id, Member(topics, self._clock.now_ns(), client, static))
                membership.assign(partitions_of)
        except BaseException:
            self._end_life(member_id)
            raise
        return member_id

    def leave(self, member_id: str, partitions_of: PartitionsOf) -> None:
        try:
            with self._changing() as membership:
                if membership.remove(member_id):
                    membership.assign(partitions_of)
        finally:
            # Even if nothing can be written: the others take out who lives no more.
            self._end_life(member_id)

    def rebalance(
        self,
        member_id: str,
        partitions_of: PartitionsOf,
        max_poll_interval: float,
        holding: Iterable[TopicPartition] = (),
    ) -> Assignment:
        with self._changing() as membership:
            if member_id not in membership.members:
                raise StaleMember(f"this member of group {self.name!r} did not poll in time and was taken out")
            oldest = self._clock.boot_ns() - int(max_poll_interval * 1e9)
            for other in list(membership.members):
                if other != member_id and not self._lives(other, oldest):
                    membership.remove(other)
            membership.assign(partitions_of)
            rebalanced = membership.rebalance(member_id, holding)
            return Assignment(membership.generation, rebalanced)

    def describe(self) -> GroupInfo:
        membership = self._read()
        return GroupInfo(
            self.name,
            membership.generation,
            membership.members,
            membership.owners,
            membership.target,
            self.committed(),
        )

    # Positions.

    def commit(
        self,
        member_id: str | None,
        commits: dict[TopicPartition, Commit],
        *,
        known: Mapping[TopicKey, int] | None = None,
    ) -> frozenset[TopicPartition]:
        refused: list[TopicPartition] = []
        with self._unchanged() as membership:
            moves: list[tuple[TopicKey, int, Position | None]] = []
            for partition, (key, offset) in commits.items():
                is_reset = known is not None and was_reset(self.position(key), known[key])
                if is_reset or membership.owners.get(partition) != member_id:
                    refused.append(partition)
                else:
                    moves.append((key, offset, self._checked(partition, key, offset)))
            for key, offset, before in moves:
                self._set(key, offset, membership.generation if known is None else known[key], before)
        return frozenset(refused)

    def _checked(self, partition: TopicPartition, key: TopicKey, offset: int) -> Position | None:
        """The position as it is; raises CommitRefused when `offset` would move it back."""
        before = self.position(key)
        if before is not None and offset < before.offset:
            raise CommitRefused(
                f"group {self.name!r} is at {before.offset} in {partition}; {offset} would move it back: use reset"
            )
        return before

    @contextmanager
    def deciding(
        self,
        member_id: str | None,
        commits: dict[TopicPartition, Commit],
        *,
        known: Mapping[TopicKey, int] | None = None,
    ) -> Iterator[int]:
        """The right to decide that these positions will be set, for the length of a block; gives the generation.

        Raises StaleMember when one of the partitions is not the member's any more, or was reset (see `commit`).
        """
        with self._unchanged() as membership:
            lost = [
                str(partition)
                for partition, commit in commits.items()
                if membership.owners.get(partition) != member_id
                or (known is not None and was_reset(self.position(commit.key), known[commit.key]))
            ]
            if lost:
                raise StaleMember(f"this consumer no longer owns {', '.join(sorted(lost))} in group {self.name!r}")
            for partition, (key, offset) in commits.items():
                self._checked(partition, key, offset)
            yield self._newest_generation(membership, commits)

    def carry_out(self, commits: dict[TopicPartition, Commit], generation: int) -> None:
        """Set positions that were decided in a generation, durably, unless they are passed or were set anew since."""
        with self._unchanged():
            for key, offset in commits.values():
                before = self.position(key)
                # One that is there already is written again: a sync that has failed would not write it a second time.
                if before is None or (before.offset <= offset and before.generation <= generation):
                    self._set(key, offset, generation)
        self._make_durable()

    def _newest_generation(self, membership: Membership, commits: dict[TopicPartition, Commit]) -> int:
        """The generation, and none that is older than a position's: a power loss takes members, but not positions."""
        known = [self.position(key) for key, _ in commits.values()]
        return max([membership.generation, *(position.generation for position in known if position is not None)])

    def reset(self, positions: dict[TopicPartition, Commit]) -> None:
        with self._changing() as membership:
            membership.generation = self._newest_generation(membership, positions) + 1
            for partition in positions:
                membership.owners.pop(partition, None)
            before = {key: self.position(key) for key, _ in positions.values()}
            try:
                for key, offset in positions.values():
                    self._set(key, offset, membership.generation)
                # Last: by the new generation others know that there are positions to look at.
                self._keep(membership)
            except BaseException:
                self._take_back(before)
                raise

    def _take_back(self, positions: Mapping[TopicKey, Position | None]) -> None:
        """Set positions to what they were: not all of those that belong together could be set."""
        for key, before in positions.items():
            if before is not None:
                self._set(key, before.offset, before.generation)
            elif self.position(key) is not None:
                self._unset(key)

    def clamp(self, commits: dict[TopicPartition, Commit]) -> None:
        with self._unchanged() as membership:
            for key, offset in commits.values():
                before = self.position(key)
                if before is not None and offset < before.offset:
                    self._set(key, offset, membership.generation)

    def expire(self, before_ns: int, *, dry_run: bool = False) -> bool:
        return self.expire_unused(lambda committed_ns: committed_ns < before_ns, dry_run=dry_run)

    def expire_unused(self, is_old: IsOld, *, dry_run: bool = False) -> bool:
        """Forget a group with no living member whose last commit is too old; whether it was one."""
        with self._changing() as membership:
            dead = [member_id for member_id in membership.members if not self._lives(member_id, 0)]
            known = self.committed() if len(dead) == len(membership.members) else {}
            forgotten = bool(known) and all(is_old(position.committed_ns) for position in known.values())
            if not dry_run:
                for member_id in dead:
                    membership.remove(member_id)
                for key in known if forgotten else ():
                    self._set(key, FORGOTTEN, membership.generation)
            return forgotten

    def prune(self, topics: AbstractSet[bytes], is_old: IsOld, *, dry_run: bool = False) -> int:
        """Forget positions in other topics than these, where the last commit is too old; return their number."""
        with self._unchanged():
            gone = [
                key
                for key, position in self._remembered().items()
                if key[0] not in topics and is_old(position.committed_ns)
            ]
            for key in () if dry_run else gone:
                self._unset(key)
            return len(gone)

    # The parts in which kinds of groups differ.

    @abstractmethod
    def _changing(self) -> AbstractContextManager[Membership]:
        """The membership, to be changed and kept, with nobody else changing it."""

    def _keep(self, membership: Membership) -> None:  # noqa: B027 - memory has kept it already
        """Keep the membership as it is now, in the middle of a change of it."""

    @abstractmethod
    def _unchanged(self) -> AbstractContextManager[Membership]:
        """The membership, only to be looked at, with nobody changing it."""

    @abstractmethod
    def _read(self) -> Membership: ...

    @abstractmethod
    def generation(self) -> int:
        """Return the present generation, by one small read."""

    @abstractmethod
    def touch(self, member_id: str) -> None:
        """Note that the member has polled."""

    @abstractmethod
    def position(self, key: TopicKey) -> Position | None:
        """Return the position in one partition, None when there is none."""

    @abstractmethod
    def close(self) -> None:
        """Give the resources back; members that did not leave are dead from now on."""

    @abstractmethod
    def _begin_life(self, member_id: str) -> None: ...

    @abstractmethod
    def _end_life(self, member_id: str) -> None: ...

    @abstractmethod
    def _lives(self, member_id: str, oldest_ns: int) -> bool:
        """Return whether a member is there and has polled since that time, by the boot clock, which nobody can set."""

    def committed(self) -> dict[TopicKey, Position]:
        return {key: position for key, position in self._remembered().items() if position.offset != FORGOTTEN}

    @abstractmethod
    def _remembered(self) -> dict[TopicKey, Position]:
        """All positions, and what takes the place of those that were forgotten."""

    @abstractmethod
    def _set(self, key: TopicKey, offset: int, generation: int, before: Position | None = None) -> None:
        """Set one position. `before` saves a look at it, when that was taken under the same hold of the lock."""

    @abstractmethod
    def _unset(self, key: TopicKey) -> None:
        """Nothing is left of the position."""

    @abstractmethod
    def _make_durable(self) -> None:
        """Return when the positions are on the device."""
