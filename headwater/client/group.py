"""A group behind a broker: all that is decided about members and positions is decided there."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from headwater.client.connection import Connection
from headwater.errors import HeadwaterError, StaleMember, StoreError
from headwater.log.clock import Clock
from headwater.store.group import Assignment, Commit, Group, GroupInfo, PartitionsOf, TopicKey
from headwater.store.membership import Member, Membership, Settled
from headwater.store.offsets import Position
from headwater.store.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb

_FAREWELL: Final = 5.0
"""How long leaving a group is tried. A member that could not is taken out when its session ends. Seconds."""


class RemoteGroup(Group):
    """A group as its broker keeps it. Thread-safe."""

    def __init__(self, connection: Connection, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self._connection = connection
        self._mutex = threading.Lock()
        self._members: set[str] = set()
        self._followers = 0
        self._generation = 0

    # What is heard of the group besides.

    def follow(self) -> None:
        """Someone fetches in the name of the group, and hears of its generation thereby."""
        with self._mutex:
            self._followers += 1

    def unfollow(self) -> None:
        """It does no more."""
        with self._mutex:
            self._followers -= 1

    def hear(self, generation: int) -> None:
        """An answer has told the generation."""
        with self._mutex:
            self._generation = max(self._generation, generation)

    def generation(self) -> int:
        if not self._members and not self._followers:
            return self.describe().generation
        return self._generation

    @property
    def members(self) -> list[str]:
        """Those of this process."""
        with self._mutex:
            return list(self._members)

    def heartbeat(self) -> None:
        """Tell that the members of this process live."""
        for member_id in self.members:
            try:
                request = pb.HeartbeatRequest(group=self.name, member_id=member_id)
                self.hear(self._connection.call("Heartbeat", request, timeout=_FAREWELL).generation)
            except StaleMember:
                with self._mutex:
                    self._generation += 1  # it settles with its next poll, and finds out
                    self._members.discard(member_id)

    def ask(self, member_id: str | None) -> None:
        """Ask for the generation now; from a member, that is a poll."""
        if member_id is None:
            self.hear(self.describe().generation)
            return
        request = pb.HeartbeatRequest(group=self.name, member_id=member_id, polled=True)
        with suppress(StaleMember):  # it settles next, and finds out
            self.hear(self._connection.call("Heartbeat", request).generation)

    # Members.

    def join(self, topics: list[str], partitions_of: PartitionsOf, client: str = "") -> str:  # noqa: ARG002
        request = pb.JoinGroupRequest(group=self.name, topics=topics, client=client)
        response = self._connection.call("JoinGroup", request)
        self.hear(response.generation)
        member_id: str = response.member_id
        with self._mutex:
            self._members.add(member_id)
        return member_id

    def leave(self, member_id: str, partitions_of: PartitionsOf) -> None:  # noqa: ARG002
        with self._mutex:
            self._members.discard(member_id)
        request = pb.LeaveGroupRequest(group=self.name, member_id=member_id)
        self._connection.call("LeaveGroup", request, timeout=_FAREWELL)

    def settle(
        self,
        member_id: str,
        partitions_of: PartitionsOf,  # noqa: ARG002 - the broker knows its topics
        max_poll_interval: float,
        holding: Iterable[TopicPartition] = (),
    ) -> Assignment:
        lost = False

        def repeated() -> None:
            nonlocal lost
            lost = True

        request = pb.SettleGroupRequest(
            group=self.name,
            member_id=member_id,
            max_poll_interval_ms=max(int(max_poll_interval * 1000), 1),
            holding=[pb.TopicPartition(topic=place.topic, partition=place.partition) for place in holding],
        )
        response = self._connection.call("SettleGroup", request, on_repeat=repeated)
        self.hear(response.generation)
        owned = _places(response.owned)
        # Where the first answer was lost, nobody knows what it said was taken: then all of it is read anew.
        taken = owned if lost else _places(response.taken)
        return Assignment(response.generation, Settled(owned, taken, _places(response.leaving), response.waiting))

    def touch(self, member_id: str) -> None:
        """Settling and asking for records tell the broker of it."""

    def describe(self) -> GroupInfo:
        found = self._connection.call("DescribeGroup", pb.DescribeGroupRequest(group=self.name))
        places = {TopicPartition(one.topic, one.partition): one for one in found.partitions}
        return GroupInfo(
            self.name,
            found.generation,
            {one.id: Member(list(one.topics), one.joined_ns, one.client) for one in found.members},
            {place: one.owner for place, one in places.items() if one.owner},
            {place: one.target for place, one in places.items() if one.target},
            {(one.topic_uuid, one.partition): _position(one) for one in found.positions},
        )

    # Positions.

    def commit(
        self,
        member_id: str | None,
        commits: dict[TopicPartition, Commit],
        *,
        known: Mapping[TopicKey, int] | None = None,
    ) -> frozenset[TopicPartition]:
        request = pb.CommitRequest(group=self.name, member_id=member_id or "", positions=advances(commits, known))
        return _places(self._connection.call("Commit", request).refused)

    @contextmanager
    def deciding(
        self,
        member_id: str | None,
        commits: dict[TopicPartition, Commit],
        *,
        known: Mapping[TopicKey, int] | None = None,
    ) -> Iterator[int]:
        raise _at_the_broker("decided over")
        yield 0

    def carry_out(self, commits: dict[TopicPartition, Commit], generation: int) -> None:
        raise _at_the_broker("set by transactions")

    def reset(self, positions: dict[TopicPartition, Commit]) -> None:
        self._connection.call("ResetGroup", pb.ResetGroupRequest(group=self.name, positions=advances(positions)))

    def clamp(self, commits: dict[TopicPartition, Commit]) -> None:
        request = pb.ResetGroupRequest(group=self.name, positions=advances(commits), clamp=True)
        self._connection.call("ResetGroup", request)

    def committed(self) -> dict[TopicKey, Position]:
        return self.describe().positions

    def position(self, key: TopicKey) -> Position | None:
        return self.committed().get(key)

    def expire(self, before_ns: int, *, dry_run: bool = False) -> bool:
        raise _at_the_broker("expired")

    def prune(self, topics: AbstractSet[bytes], before_ns: int, *, dry_run: bool = False) -> int:
        raise _at_the_broker("forgotten")

    def watched(self) -> list[Path]:
        return []

    def close(self) -> None:
        with self._mutex:
            members, self._members = self._members, set()
        for member_id in members:
            try:
                request = pb.LeaveGroupRequest(group=self.name, member_id=member_id)
                self._connection.call("LeaveGroup", request, timeout=_FAREWELL)
            except HeadwaterError:
                continue  # it is taken out when its session ends

    # What the rules of other groups stand on is not here.

    def _changing(self) -> AbstractContextManager[Membership]:
        raise _at_the_broker("changed")

    def _unchanged(self) -> AbstractContextManager[Membership]:
        raise _at_the_broker("looked at")

    def _read(self) -> Membership:
        raise _at_the_broker("read")

    def _begin_life(self, member_id: str) -> None:
        raise _at_the_broker("joined")

    def _end_life(self, member_id: str) -> None:
        raise _at_the_broker("left")

    def _lives(self, member_id: str, oldest_ns: int) -> bool:
        raise _at_the_broker("known")

    def _remembered(self) -> dict[TopicKey, Position]:
        raise _at_the_broker("remembered")

    def _set(self, key: TopicKey, offset: int, generation: int, before: Position | None = None) -> None:
        raise _at_the_broker("set")

    def _unset(self, key: TopicKey) -> None:
        raise _at_the_broker("unset")

    def _make_durable(self) -> None:
        raise _at_the_broker("made durable")


def advances(commits: dict[TopicPartition, Commit], known: Mapping[TopicKey, int] | None = None) -> list[pb.Advance]:
    """Positions as messages; from who is no member, with the generations that it knows them of."""
    return [
        pb.Advance(
            topic=place.topic,
            partition=place.partition,
            topic_uuid=one.key[0],
            offset=one.offset,
            known_generation=None if known is None else known[one.key],
        )
        for place, one in commits.items()
    ]


def _places(found: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(one.topic, one.partition) for one in found)


def _position(found: pb.Position) -> Position:
    return Position(found.topic_uuid, found.partition, 0, found.offset, found.committed_ns, found.generation)


def _at_the_broker(done: str) -> StoreError:
    return StoreError(f"the positions and members of this group are {done} at its broker")
