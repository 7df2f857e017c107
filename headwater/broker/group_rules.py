"""The rules of consumer groups at a broker. They are the same wherever groups are kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

from headwater.broker.backend import JoinedMember, NamedMember, NewMember, NewPosition
from headwater.broker.security.access import Access
from headwater.broker.sessions import Sessions
from headwater.core.config import BrokerConfig
from headwater.core.errors import InvalidConfiguration, StaleMember
from headwater.core.options import HOUR
from headwater.streams.group import Commit, TopicKey
from headwater.streams.membership import Member, Rebalanced
from headwater.streams.ports import GroupCoordinator
from headwater.streams.topic import TopicPartition

_MEMBER_ID: Final = re.compile(r"[0-9a-f]{32}")
_LONGEST_SESSION: Final = HOUR
"""The most that a member gets, whatever it asks for: others have to read the partitions of one that is gone."""
_MAX_POLL_INTERVAL: Final = 300.0


class GroupShelf(Protocol):
    """The groups that rules work on."""

    def has(self, name: str) -> bool:
        """Return whether there is such a group."""

    def get(self, name: str) -> Sessions:
        """A group, made if need be."""

    def topic_uuid(self, topic: str) -> bytes:
        """The uuid of a topic; raises UnknownTopic."""

    def topic_names(self, uuids: Iterable[bytes]) -> Mapping[bytes, str]:
        """The names of topics by their uuids, without topics that are gone."""

    def partitions_of(self, member: Member) -> list[TopicPartition]:
        """The partitions of all topics that a member reads."""


class GroupRules:
    """The rules of groups and their members. Rules do not wait: they run where the groups are kept."""

    def __init__(self, shelf: GroupShelf, config: BrokerConfig, access: Access) -> None:
        self._shelf = shelf
        self._config = config
        self._access = access

    def known(self, name: str) -> Sessions:
        """A group that exists. Raises StaleMember if it does not: then nobody can be a member of it."""
        if not self._shelf.has(name):
            raise StaleMember(f"group {name!r} does not exist: join it first")
        return self._shelf.get(name)

    def generation(self, name: str) -> int:
        """The generation of a group; 0 if there is none."""
        return self._shelf.get(name).generation() if self._shelf.has(name) else 0

    def join(self, name: str, member: NewMember) -> JoinedMember:
        """See GroupService."""
        timeout = min(member.session_timeout or self._config.session_timeout, _LONGEST_SESSION)
        group, member_id = self._shelf.get(name), member.member_id
        if not member_id or not group.has_session(member_id):  # else it has joined, and has not heard of it
            member_id = group.join(
                list(member.topics), self._shelf.partitions_of, member.client, member_id or None, static=member.static
            )
            group.begin_session(member_id, timeout)
        group.session(member_id, member.owner)
        interval = min(self._config.heartbeat_interval, timeout / 3)
        return JoinedMember(member_id, group.generation(), timeout, interval)

    def rebalance(
        self, member: NamedMember, max_poll_interval: float | None, holding: Iterable[TopicPartition]
    ) -> tuple[int, int, Rebalanced]:
        """Return the generation before, the generation after, and the outcome. See GroupService."""
        group = self.known(member.group)
        session = group.session(member.member_id, member.owner)
        session.max_poll_interval = interval = max_poll_interval or _MAX_POLL_INTERVAL
        group.heard(member.member_id, polled=True)
        before = group.generation()
        generation, rebalanced = group.rebalance(member.member_id, self._shelf.partitions_of, interval, holding)
        return before, generation, rebalanced

    def heartbeat(self, member: NamedMember, *, polled: bool) -> int:
        """See GroupService."""
        if not member.member_id:
            return self.generation(member.group)
        group = self.known(member.group)
        group.session(member.member_id, member.owner)
        group.heard(member.member_id, polled=polled)
        return group.generation()

    def leave(self, member: NamedMember) -> None:
        """See GroupService."""
        if not self._shelf.has(member.group):
            return
        group = self._shelf.get(member.group)
        if group.has_session(member.member_id):  # a member that was taken out has left already
            group.session(member.member_id, member.owner)
            group.leave(member.member_id, self._shelf.partitions_of)

    # Positions.

    def commit(self, member: NamedMember, positions: Collection[NewPosition]) -> Collection[TopicPartition]:
        """See GroupService."""
        group = self._shelf.get(member.group)
        commits, known = self.commits_of(group, positions)
        if member.member_id and not group.has_session(member.member_id):
            return commits
        if member.member_id:
            group.session(member.member_id, member.owner)
            group.heard(member.member_id, polled=False)
        return group.commit(member.member_id or None, commits, known=None if member.member_id else known)

    def commits_of(
        self, group: GroupCoordinator, positions: Collection[NewPosition]
    ) -> tuple[dict[TopicPartition, Commit], dict[TopicKey, int]]:
        """The positions to set, and for non-members the generation of each position that they resume from.

        Rights are checked by the names of topics, and positions are kept by their uuids. So a name and a uuid that
        belong to different topics are refused.
        """
        if self._access.enforced:
            names = self._shelf.topic_names(uuid for (_, _, uuid), _, _ in positions if uuid)
            for (topic, _, uuid), _, _ in positions:
                if names.get(uuid, topic) != topic:
                    raise InvalidConfiguration(f"a position in topic {topic!r} has the uuid of another topic")
        commits: dict[TopicPartition, Commit] = {}
        known: dict[TopicKey, int] = {}
        for (topic, number, named_uuid), offset, generation in positions:
            uuid = named_uuid or self._shelf.topic_uuid(topic)
            if len(uuid) != 16 or offset < 0:
                raise InvalidConfiguration("a position needs a topic's uuid of 16 bytes and an offset of 0 or more")
            key = (uuid, number)
            commits[TopicPartition(topic, number)] = Commit(key, offset)
            known[key] = _present(group, key) if generation is None else generation
        return commits, known

    def reset(self, name: str, positions: Collection[NewPosition], *, clamp: bool) -> None:
        """See GroupService."""
        group = self._shelf.get(name)
        commits, _ = self.commits_of(group, positions)
        if clamp:
            group.clamp(commits)
        else:
            group.reset(commits)

    def expire(self, name: str, before_ns: int, *, dry_run: bool) -> bool:
        """See GroupService."""
        return self._shelf.has(name) and self._shelf.get(name).expire(before_ns, dry_run=dry_run)

    # Polling.

    def forget_polled(self, member: NamedMember) -> None:
        """A member has not received what it was given last: its next poll goes on from the committed positions."""
        self.known(member.group).session(member.member_id, member.owner).reading.clear()

    def assigned(self, member: NamedMember) -> tuple[int, list[TopicPartition]]:
        """The generation, and the partitions that a member owns in it. It is done with the records of its last poll."""
        group = self.known(member.group)
        session = group.session(member.member_id, member.owner)
        _, generation, rebalanced = self.rebalance(member, session.max_poll_interval, ())
        for partition in set(session.reading) - (rebalanced.owned - rebalanced.taken):
            del session.reading[partition]
        return generation, sorted(rebalanced.owned)


def _present(group: GroupCoordinator, key: TopicKey) -> int:
    """The generation for non-members that do not say which one they know: that of the position."""
    position = group.position(key)
    return group.generation() if position is None else position.generation


def check_member_id(member_id: str) -> None:
    """Raise InvalidConfiguration for text that cannot be the id of a member."""
    if member_id and not _MEMBER_ID.fullmatch(member_id):
        raise InvalidConfiguration("the id of a member is 16 bytes, in hexadecimal")
