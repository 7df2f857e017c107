"""The groups of a broker that is in no cluster: its store keeps them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from headwater.broker.arrivals import GROUP, Key
from headwater.broker.backend import NamedMember, NamedPartition, PolledPartition
from headwater.broker.runtime import Runtime
from headwater.broker.sessions import Session, Sessions, sessions_of
from headwater.core.errors import HeadwaterError, StaleMember, StoreClosed, UnknownTopic
from headwater.core.options import MIB
from headwater.core.record import Record
from headwater.streams.group import GroupInfo
from headwater.streams.membership import Member
from headwater.streams.store import Store
from headwater.streams.subscription import partitions_of
from headwater.streams.topic import TopicPartition

_R = TypeVar("_R")
_log = logging.getLogger(__name__)
_SWEEP: Final = 0.5
"""Seconds between two looks for dead members."""
_POLLED_BYTES: Final = MIB


class StoredGroups:
    """The groups of a store. Rules run in threads. See `GroupHome`."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        self._runtime = runtime
        self._store = store
        self._topic_names: dict[bytes, str] = {}
        self._problems: set[str] = set()
        """The problems of the last look after groups. They are logged once for as long as they last."""

    async def names(self) -> list[str]:
        """See GroupHome."""
        return await self._runtime.read(self._store.group_names)

    async def look(self, group: str, work: Callable[[], _R]) -> _R:  # noqa: ARG002 - all are here
        """See GroupHome."""
        return await self._runtime.read(work)

    async def change(self, group: str, work: Callable[[], _R]) -> _R:  # noqa: ARG002
        """See GroupHome."""
        return await self._runtime.write(work)

    async def confirm(self, group: str) -> None:
        """Return at once: nobody else could keep it."""

    def forget_empty(self, group: str) -> None:
        """Do nothing: the store has done it."""

    def described(self) -> Mapping[str, GroupInfo]:
        """See GroupHome."""
        groups: dict[str, GroupInfo] = {}
        for name in self._store.group_names():
            with suppress(HeadwaterError):
                groups[name] = self._store.group(name).describe()
        return groups

    def generation(self, group: str) -> int:
        """See GroupHome."""
        return self.get(group).generation() if self.has(group) else 0

    def polled(self, group: str, member_id: str, owner: str, known: int) -> int:  # noqa: ARG002 - it is known here
        """See GroupHome."""
        if not self.has(group):
            return 0
        sessions = self.get(group)
        sessions.polled_by(member_id, owner)
        return sessions.generation()

    # For rules.

    def has(self, name: str) -> bool:
        """See GroupShelf."""
        return self._store.has_group(name)

    def get(self, name: str) -> Sessions:
        """See GroupShelf."""
        return sessions_of(self._store, name)

    def topic_uuid(self, topic: str) -> bytes:
        """See GroupShelf."""
        return self._store.describe_topic(topic).uuid

    def topic_names(self, uuids: Iterable[bytes]) -> Mapping[bytes, str]:
        """See GroupShelf. A topic keeps its name and its uuid until it is deleted."""
        wanted = set(uuids)
        if not wanted <= self._topic_names.keys():
            names: dict[bytes, str] = {}
            for name in self._store.topic_names():
                with suppress(UnknownTopic):  # deleted since its name was read
                    names[self.topic_uuid(name)] = name
            self._topic_names = names
        known = self._topic_names
        return {uuid: known[uuid] for uuid in wanted if uuid in known}

    def partitions_of(self, member: Member) -> list[TopicPartition]:
        """See GroupShelf."""
        return partitions_of(self._store, member)

    # Polling.

    async def read_for(
        self, member: NamedMember, partitions: Sequence[TopicPartition], max_records: int, wait: float
    ) -> Sequence[PolledPartition]:
        """See GroupHome."""
        keys: list[Key] = [*partitions, (member.group, GROUP)]
        with self._runtime.arrivals.expecting(keys) as waiter:
            polled = await self._runtime.read(self._read_for, member, max_records)
            if not polled and wait:
                await waiter.wait(wait)
            return polled

    def _read_for(self, member: NamedMember, max_records: int) -> list[PolledPartition]:
        if not self.has(member.group):
            raise StaleMember(f"group {member.group!r} does not exist: join it first")
        group = self.get(member.group)
        session = group.session(member.member_id, member.owner)
        owned = [partition for partition, owner in group.describe().owners.items() if owner == member.member_id]
        # The one that was read longest ago comes first.
        turns = {partition: turn for turn, partition in enumerate(session.reading)}
        partitions: list[PolledPartition] = []
        for partition in sorted(owned, key=lambda tp: turns.get(tp, -1)):
            polled = self._read(group, session, partition, max_records) if max_records else None
            if polled is not None:
                max_records -= len(polled.records)
                partitions.append(polled)
        return partitions

    def _read(
        self, group: Sessions, session: Session, partition: TopicPartition, max_records: int
    ) -> PolledPartition | None:
        try:
            info = self._store.describe_topic(partition.topic)
        except UnknownTopic:
            return None  # the member loses it with its next rebalance
        log = self._store.partition(info, partition.partition)
        start, end, _ = log.bounds()
        uuid, offset = session.reading.pop(partition, (b"", -1))
        if uuid != info.uuid:
            position = group.position((info.uuid, partition.partition))
            offset = start if position is None else min(position.offset, end)
        offset = max(offset, start)
        records: list[Record] = []
        if offset < end:
            for frame in log.read(offset, max_bytes=_POLLED_BYTES):
                for record in frame.records(offset, None):
                    records.append(record)
                    if len(records) == max_records:
                        break
                if len(records) == max_records:
                    break
            offset = records[-1].offset + 1 if records else end
        session.reading[partition] = (info.uuid, offset)
        if not records:
            return None
        return PolledPartition(NamedPartition(*partition, info.uuid), records, offset, max(end - offset, 0))

    # Dead members.

    async def sweep(self) -> None:
        """Take dead members out, for ever, so that the others notice without having to look for them."""
        while True:
            await asyncio.sleep(_SWEEP)
            changed = await self._runtime.read(self._take_dead_out)
            self._runtime.arrivals.tell((name, GROUP) for name in changed)

    def _take_dead_out(self) -> list[str]:
        changed: list[str] = []
        problems: set[str] = set()
        try:
            for name in self._store.group_names():
                try:
                    if self.get(name).take_dead_out(self.partitions_of):
                        changed.append(name)
                except StoreClosed:
                    return changed
                except (HeadwaterError, OSError) as error:
                    problems.add(f"group {name!r} cannot be looked after: {error}")
        except (HeadwaterError, OSError) as error:
            problems.add(f"groups cannot be looked after: {error}")
        for problem in problems - self._problems:
            _log.error(problem)
        self._problems = problems
        return changed
