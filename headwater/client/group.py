"""A group behind a broker: all that is decided about members and positions is decided there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final
from weakref import ref

from headwater.client.connection import Connection, Repeats
from headwater.client.joint_commits import commit
from headwater.core.errors import HeadwaterError, PartitionForked, StaleMember, StoreClosed
from headwater.log.entropy import random_bytes
from headwater.streams.group import Assignment, Commit, GroupInfo, PartitionsOf, TopicKey
from headwater.streams.membership import Member, Rebalanced
from headwater.streams.position import Position
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb

_log = logging.getLogger(__name__)
_AGAIN: Final = 1.0
_FAREWELL: Final = 5.0
"""The seconds for which leaving a group is tried. A member that could not leave ends with its session."""


class RemoteGroup:
    """A group as its broker keeps it. Thread-safe."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        clustered: Callable[[], bool] = lambda: False,
        hurry: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`clustered` says whether whoever keeps the group may be another one than who has the records.

        `hurry` is told the seconds between two heartbeats that the broker asks for.
        """
        self.name = name
        self._hurry = hurry
        self._connection = connection
        self._clustered = clustered
        self._mutex = threading.Lock()
        self._members: set[str] = set()
        self._followers: list[Callable[[], None]] = []
        self._watching = False
        self._generation = 0
        self._told = 0
        """The last generation that was told, for who waits for another one."""

    # The news of the group besides.

    @property
    def kept_elsewhere(self) -> bool:
        """True if the leaders of the partitions know nothing of the group."""
        return self._clustered()

    def follow(self, ring: Callable[[], None]) -> None:
        """Someone reads in the name of the group: `ring` is called when its generation has changed."""
        with self._mutex:
            self._followers.append(ring)
        self._watch()

    def unfollow(self, ring: Callable[[], None]) -> None:
        """It does no more."""
        with self._mutex:
            self._followers.remove(ring)

    def hear(self, generation: int) -> None:
        """An answer has told the generation."""
        with self._mutex:
            news = generation > self._generation
            self._generation = max(self._generation, generation)
            followers = list(self._followers) if news else []
        for ring in followers:
            ring()

    def generation(self) -> int:
        if not self._members and not self._followers:
            return self._asked_for()
        return self._generation

    def _asked_for(self, member_id: str = "") -> int:
        """The generation as it is now; from a member, that is a poll."""
        request = pb.HeartbeatRequest(group=self.name, member_id=member_id, polled=bool(member_id))
        generation: int = self._connection.call("Heartbeat", request).generation
        return generation

    # The coordinator tells of changes in the group, if the leaders of its partitions do not.

    def _watch(self) -> None:
        """Have a thread that waits for changes, in a cluster, for as long as somebody reads in the group's name."""
        if not self.kept_elsewhere:
            return
        with self._mutex:
            if self._watching:
                return
            self._watching = True
        waiting = threading.Thread(target=_wait_for_changes, args=(ref(self),), daemon=True)
        waiting.name = f"headwater-group-{self.name}"
        waiting.start()

    def watch_once(self) -> bool:
        """Wait for a change, for a while; whether somebody still needs it."""
        with self._mutex:
            members, needed = list(self._members), bool(self._followers)
            self._watching = needed
        if not needed:
            return False
        wait = min(self._connection.config.heartbeat, self._connection.config.attempt_timeout / 2)
        request = pb.HeartbeatRequest(
            group=self.name,
            member_id=members[0] if members else "",
            generation=self._told,
            max_wait_ms=round(wait * 1000),
        )
        try:
            self._told = self._connection.call("Heartbeat", request).generation
            self.hear(self._told)
        except StaleMember:
            self._lost(members[0])
        except (StoreClosed, PartitionForked):
            return False
        except HeadwaterError as error:
            _log.warning("the broker does not tell how group %r changes: %s", self.name, error)
            time.sleep(_AGAIN)
        return True

    def _lost(self, member_id: str) -> None:
        """The member was taken out: it settles with its next poll, and finds out."""
        with self._mutex:
            self._generation += 1
            self._members.discard(member_id)
            followers = list(self._followers)
        for ring in followers:
            ring()

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
                self._lost(member_id)

    def ask(self, member_id: str | None) -> None:
        """Ask for the generation now; from a member, that is a poll."""
        with suppress(StaleMember):  # it settles next, and finds out
            self.hear(self._asked_for(member_id or ""))

    # Members.

    def join(
        self,
        topics: list[str],
        partitions_of: PartitionsOf,  # noqa: ARG002 - the broker knows its topics
        client: str = "",
        *,
        static: bool = False,
    ) -> str:
        # Under an id of its own: whoever has to ask again is one member, not two.
        member = random_bytes(16).hex()
        request = pb.JoinGroupRequest(
            group=self.name,
            topics=topics,
            client=client,
            member_id=member,
            static=static,
            session_timeout_ms=round((self._connection.config.session_timeout or 0) * 1000),
        )
        response = self._connection.call("JoinGroup", request)
        self._hurry(response.heartbeat_interval_ms / 1000)
        with self._mutex:
            if not self._members and not self._followers:
                self._generation = 0  # the group may have been forgotten since, and begin anew
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

    def rebalance(
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
            holding=[pb.TopicPartition(topic=tp.topic, partition=tp.partition) for tp in holding],
        )
        response = self._connection.call("SettleGroup", request, on_repeat=repeated)
        with self._mutex:
            self._generation = response.generation  # whatever was believed before
        owned = _partitions(response.owned)
        # Where the first answer was lost, nobody knows what it said was taken: then all of it is read anew.
        taken = owned if lost else _partitions(response.taken)
        return Assignment(
            response.generation, Rebalanced(owned, taken, _partitions(response.leaving), response.waiting)
        )

    def touch(self, member_id: str) -> None:
        """Settling and asking for records tell the broker of it."""

    def describe(self) -> GroupInfo:
        group = self._connection.call("DescribeGroup", pb.DescribeGroupRequest(group=self.name))
        ownerships = {TopicPartition(ownership.topic, ownership.partition): ownership for ownership in group.partitions}
        return GroupInfo(
            self.name,
            group.generation,
            {
                member.id: Member(list(member.topics), member.joined_ns, member.client, member.static)
                for member in group.members
            },
            {tp: ownership.owner for tp, ownership in ownerships.items() if ownership.owner},
            {tp: ownership.target for tp, ownership in ownerships.items() if ownership.target},
            {(position.topic_uuid, position.partition): _position(position) for position in group.positions},
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
        return _partitions(commit(request, self._connection).refused)

    def reset(self, positions: dict[TopicPartition, Commit]) -> None:
        self._connection.call("ResetGroup", pb.ResetGroupRequest(group=self.name, positions=advances(positions)))

    def clamp(self, commits: dict[TopicPartition, Commit]) -> None:
        request = pb.ResetGroupRequest(group=self.name, positions=advances(commits), clamp=True)
        self._connection.call("ResetGroup", request)

    def expire(self, before_ns: int, *, dry_run: bool = False) -> bool:
        repeats = Repeats()
        request = pb.ExpireGroupRequest(group=self.name, before_ns=before_ns, dry_run=dry_run)
        expired: bool = self._connection.call("ExpireGroup", request, on_repeat=repeats).expired
        return expired or (bool(repeats) and not self.describe().positions)  # by the first attempt, perhaps

    def committed(self) -> dict[TopicKey, Position]:
        return self.describe().positions

    def position(self, key: TopicKey) -> Position | None:
        return self.committed().get(key)

    def close(self) -> None:
        with self._mutex:
            members, self._members = self._members, set()
        for member_id in members:
            try:
                request = pb.LeaveGroupRequest(group=self.name, member_id=member_id)
                self._connection.call("LeaveGroup", request, timeout=_FAREWELL)
            except HeadwaterError:
                continue  # it is taken out when its session ends


def _wait_for_changes(group: ref[RemoteGroup]) -> None:
    """In a thread: wait for changes of a group, for as long as somebody needs it."""
    needed = True
    while needed:
        watched = group()
        needed = watched is not None and watched.watch_once()
        del watched


def advances(commits: dict[TopicPartition, Commit], known: Mapping[TopicKey, int] | None = None) -> list[pb.Advance]:
    """Positions as messages; from who is no member, with the generations that it knows them of."""
    return [
        pb.Advance(
            topic=tp.topic,
            partition=tp.partition,
            topic_uuid=commit.key[0],
            offset=commit.offset,
            known_generation=None if known is None else known[commit.key],
        )
        for tp, commit in commits.items()
    ]


def _partitions(messages: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(message.topic, message.partition) for message in messages)


def _position(message: pb.Position) -> Position:
    return Position(
        message.topic_uuid,
        message.partition,
        message.commits,
        message.offset,
        message.committed_ns,
        message.generation,
    )
