"""A group behind a broker: all that is decided about members and positions is decided there."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

from headwater.client.connection import Connection
from headwater.errors import HeadwaterError, StaleMember, StoreError
from headwater.store.group import Assignment, Commit, Group, GroupInfo, PartitionsOf, TopicKey
from headwater.store.membership import Member, Settled
from headwater.store.offsets import Position
from headwater.store.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb

_FAREWELL: Final = 5.0
"""How long leaving a group is tried. A member that could not is taken out when its session ends. Seconds."""


class RemoteGroup(Group):
    """A group as its broker keeps it. Thread-safe."""

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(name)
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
        with self._mutex:
            self._generation = response.generation  # whatever was believed before
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

    def reset(self, positions: dict[TopicPartition, Commit]) -> None:
        self._connection.call("ResetGroup", pb.ResetGroupRequest(group=self.name, positions=advances(positions)))

    def clamp(self, commits: dict[TopicPartition, Commit]) -> None:
        request = pb.ResetGroupRequest(group=self.name, positions=advances(commits), clamp=True)
        self._connection.call("ResetGroup", request)

    def committed(self) -> dict[TopicKey, Position]:
        return self.describe().positions

    def position(self, key: TopicKey) -> Position | None:
        return self.committed().get(key)

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

    # What is done where a group is kept.

    def deciding(self, *_: Any, **__: Any) -> AbstractContextManager[int]:
        raise self._elsewhere

    def carry_out(self, *_: Any) -> None:
        raise self._elsewhere

    def expire(self, *_: Any, **__: Any) -> bool:
        raise self._elsewhere

    def prune(self, *_: Any, **__: Any) -> int:
        raise self._elsewhere

    @property
    def _elsewhere(self) -> StoreError:
        return StoreError(f"group {self.name!r} is kept by {self._connection}, whose transactions and stewards do that")


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
