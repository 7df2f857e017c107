"""A group: consumers that share the partitions of some topics, and how far they are.

There is no coordinator. The group is a small directory, and whoever changes it holds its lock for some microseconds: a
document for the members, a table for the positions, and one file for each member, which the member keeps locked for as
long as it lives. Whoever can take that lock knows that the member is dead, in whatever container it ran.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4
from weakref import WeakSet

from headwater.errors import CommitRefused, PartitionForked, StaleMember, StoreClosed, WriteFailed
from headwater.log.clock import Clock
from headwater.log.disk import Disk, read_plain
from headwater.store.membership import Member, Membership, Settled
from headwater.store.offsets import OffsetTable, Position
from headwater.store.topic import TopicPartition

_DOCUMENT: Final = "group.json"
OFFSETS_FILE: Final = "offsets"
_LOCK: Final = "lock"
_MEMBERS: Final = "members"
_POLLED = struct.Struct("<q")
_VERSION = struct.Struct("<qq")
"""In the lock's file: the generation, and a number that rises with every change of the document."""

FORGOTTEN: Final = -1
"""In place of an offset: the group has no position here any more. Its slot stays its own, as others remember it."""

TopicKey = tuple[bytes, int]
"""A topic's uuid and a partition's number: a topic made again under its old name is another one."""

PartitionsOf = Callable[[Member], Iterable[TopicPartition]]
"""Which partitions there are now for what a member wants."""


class Commit(NamedTuple):
    """A position to be set: everything before `offset` is done."""

    key: TopicKey
    offset: int


class Assignment(NamedTuple):
    """What a member has, as of a generation."""

    generation: int
    settled: Settled


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group as it is now."""

    name: str
    generation: int
    members: dict[str, Member]
    owners: dict[TopicPartition, str]
    target: dict[TopicPartition, str]
    positions: dict[TopicKey, Position]


class Group(ABC):
    """What a consumer needs of its group. Thread-safe.

    The rules are here, written once over two things that kinds of groups differ in: how the membership is kept and
    changed with nobody else changing it, and how one knows that a member lives.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock

    # Members.

    def join(self, topics: list[str], partitions_of: PartitionsOf, client: str = "") -> str:
        """Become a member; returns the member's id."""
        member_id = uuid4().hex
        self._begin_life(member_id)
        with self._changing() as membership:
            membership.join(member_id, Member(topics, self._clock.now_ns(), client))
            membership.assign(partitions_of)
        return member_id

    def leave(self, member_id: str, partitions_of: PartitionsOf) -> None:
        """Stop being a member; what it had goes to the others."""
        with self._changing() as membership:
            if membership.remove(member_id):
                membership.assign(partitions_of)
        self._end_life(member_id)

    def settle(
        self,
        member_id: str,
        partitions_of: PartitionsOf,
        max_poll_interval: float,
        holding: Iterable[TopicPartition] = (),
    ) -> Assignment:
        """Take what is free, let go what is no longer the member's, and take the dead out.

        What the member is `holding` stays its own until it calls again without it: so it can commit what it has done
        before the next one begins there. Raises StaleMember when it was taken out: it may join again.
        """
        with self._changing() as membership:
            if member_id not in membership.members:
                raise StaleMember(f"this member of group {self.name!r} did not poll in time and was taken out")
            oldest = self._clock.now_ns() - int(max_poll_interval * 1e9)
            for other in list(membership.members):
                if other != member_id and not self._lives(other, oldest):
                    membership.remove(other)
            membership.assign(partitions_of)
            settled = membership.settle(member_id, holding)
            return Assignment(membership.generation, settled)

    def describe(self) -> GroupInfo:
        """The group as it is now."""
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
        """Set the positions of the partitions that the member owns; returns the others, where nothing was set.

        Who is no member says for each key of which generation the position is that it goes on from, as far as `known`
        to it. Nothing is set where it is of another one by now, because of a reset.
        Positions do not move back: all are refused, with CommitRefused, when one of them would.
        """
        with self._unchanged() as membership:
            owned = {place: one for place, one in commits.items() if membership.owners.get(place) == member_id}
            if known is not None:
                owned = {place: one for place, one in owned.items() if not self.was_reset(one.key, known[one.key])}
            self._refuse_moving_back(owned)
            for key, offset in owned.values():
                self._set(key, offset, membership.generation if known is None else known[key])
        return frozenset(commits.keys() - owned.keys())

    def was_reset(self, key: TopicKey, generation: int) -> bool:
        """Whether the position is of another generation than it was: set on purpose, not by who goes on from it."""
        found = self.position(key)
        return found is not None and found.generation != generation

    def _refuse_moving_back(self, commits: dict[TopicPartition, Commit]) -> None:
        for place, (key, offset) in commits.items():
            before = self.position(key)
            if before is not None and offset < before.offset:
                raise CommitRefused(
                    f"group {self.name!r} is at {before.offset} in {place}; {offset} would move it back: use reset"
                )

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
                str(place)
                for place, one in commits.items()
                if membership.owners.get(place) != member_id
                or (known is not None and self.was_reset(one.key, known[one.key]))
            ]
            if lost:
                raise StaleMember(f"{', '.join(sorted(lost))}: no longer this consumer's in group {self.name!r}")
            self._refuse_moving_back(commits)
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
        return max([membership.generation, *(one.generation for one in known if one is not None)])

    def reset(self, positions: dict[TopicPartition, Commit]) -> None:
        """Set positions on purpose, forwards or backwards. Members go on from there with their next poll.

        What they did before and have not committed counts no more: until they have noticed, their commits are refused.
        """
        with self._changing() as membership:
            membership.generation = self._newest_generation(membership, positions) + 1
            for place, (key, offset) in positions.items():
                membership.owners.pop(place, None)
                self._set(key, offset, membership.generation)

    def clamp(self, commits: dict[TopicPartition, Commit]) -> None:
        """Bring positions back to where their partitions end: a power loss has taken what was not synced."""
        with self._unchanged() as membership:
            for key, offset in commits.values():
                before = self.position(key)
                if before is not None and offset < before.offset:
                    self._set(key, offset, membership.generation)

    def expire(self, before_ns: int, *, dry_run: bool = False) -> bool:
        """Forget a group with no living member whose last commit was before that time; whether it was one.

        Its files stay, with nothing in them: others may have them open, and come back as members at any moment.
        """
        with self._changing() as membership:
            if any(self._lives(member_id, 0) for member_id in membership.members):
                return False
            known = self.committed()
            forgotten = bool(known) and max(one.committed_ns for one in known.values()) < before_ns
            if not dry_run:
                for member_id in list(membership.members):
                    membership.remove(member_id)
                for key in known if forgotten else ():
                    self._set(key, FORGOTTEN, membership.generation)
            return forgotten

    def prune(self, topics: AbstractSet[bytes], before_ns: int, *, dry_run: bool = False) -> int:
        """Forget positions in other topics than these, where the last commit was before that time; how many."""
        with self._unchanged():
            gone = [
                key for key, one in self._remembered().items() if key[0] not in topics and one.committed_ns < before_ns
            ]
            for key in () if dry_run else gone:
                self._unset(key)
            return len(gone)

    # What kinds of groups differ in.

    @abstractmethod
    def _changing(self) -> AbstractContextManager[Membership]:
        """The membership, to be changed and kept, with nobody else changing it."""

    @abstractmethod
    def _unchanged(self) -> AbstractContextManager[Membership]:
        """The membership, only to be looked at, with nobody changing it."""

    @abstractmethod
    def _read(self) -> Membership: ...

    @abstractmethod
    def _begin_life(self, member_id: str) -> None: ...

    @abstractmethod
    def _end_life(self, member_id: str) -> None: ...

    @abstractmethod
    def _lives(self, member_id: str, oldest_ns: int) -> bool: ...

    @abstractmethod
    def touch(self, member_id: str) -> None:
        """The member has polled: its handler lives."""

    @abstractmethod
    def generation(self) -> int:
        """The present generation: one small read, for every poll."""

    def committed(self) -> dict[TopicKey, Position]:
        """All positions."""
        return {key: one for key, one in self._remembered().items() if one.offset != FORGOTTEN}

    @abstractmethod
    def _remembered(self) -> dict[TopicKey, Position]:
        """All positions, and what takes the place of those that were forgotten."""

    @abstractmethod
    def position(self, key: TopicKey) -> Position | None:
        """The position in one partition, None when there is none."""

    @abstractmethod
    def watched(self) -> list[Path]:
        """The files that change with the generation."""

    @abstractmethod
    def _set(self, key: TopicKey, offset: int, generation: int) -> None: ...

    @abstractmethod
    def _unset(self, key: TopicKey) -> None:
        """Nothing is left of the position."""

    @abstractmethod
    def _make_durable(self) -> None:
        """Return when the positions are on the device."""

    @abstractmethod
    def close(self) -> None:
        """Give the resources back; members that did not leave are dead from now on."""


class MemoryGroup(Group):
    """A group within one process. Its members live for as long as they do not leave."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self._mutex = threading.RLock()
        self._membership = Membership()
        self._polled: dict[str, int] = {}
        self._positions: dict[TopicKey, Position] = {}

    @contextmanager
    def _changing(self) -> Iterator[Membership]:
        with self._mutex:
            yield self._membership

    _unchanged = _changing

    def _read(self) -> Membership:
        with self._mutex:
            return Membership.from_dict(self._membership.to_dict())

    def _begin_life(self, member_id: str) -> None:
        self._polled[member_id] = self._clock.now_ns()

    def _end_life(self, member_id: str) -> None:
        self._polled.pop(member_id, None)

    def _lives(self, member_id: str, oldest_ns: int) -> bool:
        return self._polled.get(member_id, oldest_ns - 1) >= oldest_ns

    def touch(self, member_id: str) -> None:
        self._polled[member_id] = self._clock.now_ns()

    def generation(self) -> int:
        return self._membership.generation

    def _remembered(self) -> dict[TopicKey, Position]:
        with self._mutex:
            return dict(self._positions)

    def position(self, key: TopicKey) -> Position | None:
        found = self._positions.get(key)
        return None if found is None or found.offset == FORGOTTEN else found

    def watched(self) -> list[Path]:
        return []

    def _set(self, key: TopicKey, offset: int, generation: int) -> None:
        before = self._positions.get(key)
        sequence = before.sequence + 1 if before else 1
        self._positions[key] = Position(*key, sequence, offset, self._clock.now_ns(), generation)

    def _unset(self, key: TopicKey) -> None:
        del self._positions[key]

    def _make_durable(self) -> None:
        """Memory is all there is."""

    def close(self) -> None:
        self._polled.clear()


class DirectoryGroup(Group):
    """A group in a directory, shared by any number of processes."""

    def __init__(self, directory: Path, name: str, disk: Disk, clock: Clock) -> None:
        super().__init__(name, clock)
        self._directory = directory
        self._disk = disk
        disk.make_directory(directory / _MEMBERS)
        self._mutex = threading.RLock()
        self._lock_fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._offsets = OffsetTable(directory / OFFSETS_FILE, disk)
        self._lives_here: dict[str, int] = {}
        self._known: tuple[int, Membership] | None = None
        self._pid = os.getpid()
        self._closed = False
        _open_groups.add(self)

    # The lock, and what it protects.

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._check_open()
        with self._mutex:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    @contextmanager
    def _changing(self) -> Iterator[Membership]:
        with self._locked():
            membership = self._read()
            before = membership.to_dict()
            yield membership
            after = membership.to_dict()
            if after != before:
                # The version first: whoever dies in between leaves a document that others read once more than needed.
                version = _VERSION.pack(membership.generation, self._version()[1] + 1)
                os.pwrite(self._lock_fd, version, 0)
                # Members are gone after a power loss anyway: the document need not be synced.
                self._disk.replace(self._directory / _DOCUMENT, json.dumps(after).encode(), sync=False)

    @contextmanager
    def _unchanged(self) -> Iterator[Membership]:
        with self._locked():
            version = self._version()[1]
            if self._known is None or self._known[0] != version:
                self._known = (version, self._read())
            yield self._known[1]

    def _read(self) -> Membership:
        """The membership; a document that a power loss has damaged is none: its members are dead as well."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            return Membership.from_dict(json.loads(read_plain(self._directory / _DOCUMENT)))
        return Membership(generation=self.generation())

    def _version(self) -> tuple[int, int]:
        content = os.pread(self._lock_fd, _VERSION.size, 0)
        generation, version = _VERSION.unpack(content) if len(content) == _VERSION.size else (0, 0)
        return generation, version

    def generation(self) -> int:
        self._check_open()
        return self._version()[0]

    def watched(self) -> list[Path]:
        return [self._directory / _LOCK]

    # A member's file is locked for as long as the member lives.

    def _member_path(self, member_id: str) -> Path:
        return self._directory / _MEMBERS / member_id

    def _begin_life(self, member_id: str) -> None:
        self._check_open()
        fd = os.open(self._member_path(member_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(fd, fcntl.LOCK_EX)
        self._lives_here[member_id] = fd
        self.touch(member_id)

    def _end_life(self, member_id: str) -> None:
        fd = self._lives_here.pop(member_id, None)
        if fd is not None:
            with suppress(FileNotFoundError):
                self._disk.unlink(self._member_path(member_id))
            os.close(fd)

    def _lives(self, member_id: str, oldest_ns: int) -> bool:
        path = self._member_path(member_id)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            content = os.pread(fd, _POLLED.size, 0)
            return len(content) < _POLLED.size or _POLLED.unpack(content)[0] >= oldest_ns
        else:
            self._disk.unlink(path)
            return False
        finally:
            os.close(fd)

    def touch(self, member_id: str) -> None:
        self._check_open()
        os.pwrite(self._lives_here[member_id], _POLLED.pack(self._clock.now_ns()), 0)

    # Positions.

    def _remembered(self) -> dict[TopicKey, Position]:
        self._check_open()
        return self._offsets.read_all()

    def position(self, key: TopicKey) -> Position | None:
        self._check_open()
        found = self._offsets.read(*key)
        return None if found is None or found.offset == FORGOTTEN else found

    def _set(self, key: TopicKey, offset: int, generation: int) -> None:
        self._offsets.write(*key, offset, self._clock.now_ns(), generation)

    def _unset(self, key: TopicKey) -> None:
        self._offsets.free(*key)

    def _make_durable(self) -> None:
        try:
            self._offsets.sync()
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise WriteFailed(self._directory, error) from error

    # The handle.

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise PartitionForked(f"group {self.name!r}")
        if self._closed:
            raise StoreClosed(f"group {self.name!r}")

    def close(self) -> None:
        """Give the descriptors back; members that did not leave are dead from now on."""
        if self._closed:
            return
        self._closed = True
        for fd in self._lives_here.values():
            os.close(fd)
        self._lives_here.clear()
        self._offsets.close()
        os.close(self._lock_fd)


_open_groups: WeakSet[DirectoryGroup] = WeakSet()


def _close_after_fork() -> None:
    """A child has its parent's locks as well: kept open, they would make dead members look alive."""
    for group in list(_open_groups):
        group.close()
    _open_groups.clear()


os.register_at_fork(after_in_child=_close_after_fork)
