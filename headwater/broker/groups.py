"""Consumer groups: the coordinator that both backends have. They differ in where groups are kept."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from headwater.broker.arrivals import GROUP
from headwater.broker.backend import (
    JoinedMember,
    NamedMember,
    NewMember,
    NewPosition,
    PolledPartition,
    PolledRecords,
)
from headwater.broker.group_rules import GroupRules, GroupShelf, check_member_id
from headwater.broker.runtime import Runtime
from headwater.broker.security.access import Access
from headwater.core.config import BrokerConfig
from headwater.streams.group import GroupInfo
from headwater.streams.membership import Rebalanced
from headwater.streams.topic import TopicPartition

_R = TypeVar("_R")
_POLL_STEP: Final = 1.0
"""A poll asks for its partitions anew after so many seconds: nobody tells when others have given some up."""


class GroupHome(GroupShelf, Protocol):
    """The place where groups are kept."""

    async def names(self) -> list[str]:
        """The names of all groups."""

    async def look(self, group: str, work: Callable[[], _R]) -> _R:
        """Do work that looks at a group; raises NotLeader if it is not kept here."""

    async def change(self, group: str, work: Callable[[], _R]) -> _R:
        """Do work that may change a group, and return when the change is durable; raises NotLeader."""

    async def confirm(self, group: str) -> None:
        """Return when it is sure that nobody else keeps the group by now; raises NotLeader."""

    def forget_empty(self, group: str) -> None:
        """A group was expired: forget it, if nothing is left of it. Part of a change."""

    def described(self) -> Mapping[str, GroupInfo]:
        """See GroupService."""

    def polled(self, group: str, member_id: str, owner: str, known: int) -> int:
        """See GroupService."""

    def generation(self, group: str) -> int:
        """See GroupService."""

    def read_for(
        self, member: NamedMember, partitions: Sequence[TopicPartition], max_records: int, wait: float
    ) -> Awaitable[Sequence[PolledPartition]]:
        """Read records for a member behind those that it was given.

        If there are none, it waits up to `wait` seconds for news, and may return without them.
        """


class Groups:
    """The consumer groups of a broker. See `GroupService`."""

    def __init__(self, runtime: Runtime, home: GroupHome, config: BrokerConfig, access: Access) -> None:
        self._runtime = runtime
        self._home = home
        self.rules = GroupRules(home, config, access)

    async def names(self) -> list[str]:
        """See GroupService."""
        return await self._home.names()

    async def describe(self, group: str) -> GroupInfo | None:
        """See GroupService."""
        await self._home.confirm(group)
        home = self._home
        return await home.look(group, lambda: home.get(group).describe() if home.has(group) else None)

    async def topic_names(self, uuids: Collection[bytes]) -> Mapping[bytes, str]:
        """See GroupService."""
        return await self._runtime.read(self._home.topic_names, uuids)

    async def join(self, group: str, member: NewMember) -> JoinedMember:
        """See GroupService."""
        check_member_id(member.member_id)
        joined = await self._home.change(group, lambda: self.rules.join(group, member))
        self._tell(group)
        return joined

    async def rebalance(
        self, member: NamedMember, max_poll_interval: float | None, holding: Collection[TopicPartition]
    ) -> tuple[int, Rebalanced]:
        """See GroupService."""
        before, generation, rebalanced = await self._home.change(
            member.group, lambda: self.rules.rebalance(member, max_poll_interval, holding)
        )
        if generation != before:
            self._tell(member.group)
        return generation, rebalanced

    async def heartbeat(self, member: NamedMember, known: int, wait: float, *, polled: bool) -> int:
        """See GroupService."""
        deadline = time.monotonic() + wait
        with self._runtime.arrivals.expecting([(member.group, GROUP)]) as waiter:
            while True:
                waiter.clear()
                generation = await self._home.look(member.group, lambda: self.rules.heartbeat(member, polled=polled))
                left = deadline - time.monotonic()
                if generation != known or left <= 0 or self._runtime.draining.is_set():
                    return generation
                await waiter.wait(left)

    async def leave(self, member: NamedMember) -> None:
        """See GroupService."""
        await self._home.change(member.group, lambda: self.rules.leave(member))
        self._tell(member.group)

    async def commit(self, member: NamedMember, positions: Sequence[NewPosition]) -> Collection[TopicPartition]:
        """See GroupService."""
        return await self._home.change(member.group, lambda: self.rules.commit(member, positions))

    async def reset(self, group: str, positions: Sequence[NewPosition], *, clamp: bool) -> None:
        """See GroupService."""
        await self._home.change(group, lambda: self.rules.reset(group, positions, clamp=clamp))
        self._tell(group)

    async def expire(self, group: str, before_ns: int, *, dry_run: bool) -> bool:
        """See GroupService."""

        def expire() -> bool:
            expired = self.rules.expire(group, before_ns, dry_run=dry_run)
            if expired and not dry_run:
                self._home.forget_empty(group)
            return expired

        expired = await self._home.change(group, expire)
        self._tell(group)
        return expired

    async def poll(
        self, member: NamedMember, max_records: int, wait: float, check: Callable[[str], None], *, again: bool
    ) -> PolledRecords:
        """See GroupService."""
        deadline = time.monotonic() + wait
        if again:
            await self._home.look(member.group, lambda: self.rules.forget_polled(member))
        while True:
            generation, partitions = await self._home.change(member.group, lambda: self.rules.assigned(member))
            for partition in partitions:
                check(partition.topic)
            left = max(min(deadline - time.monotonic(), _POLL_STEP), 0.0)
            polled = await self._home.read_for(member, partitions, max_records, left)
            if polled or not left or self._runtime.draining.is_set():
                return PolledRecords(generation, polled)

    def polled(self, group: str, member_id: str, owner: str, known: int) -> int:
        """See GroupService."""
        return self._home.polled(group, member_id, owner, known)

    def generation(self, group: str) -> int:
        """See GroupService."""
        return self._home.generation(group)

    def described(self) -> Mapping[str, GroupInfo]:
        """See GroupService."""
        return self._home.described()

    def _tell(self, group: str) -> None:
        self._runtime.arrivals.tell([(group, GROUP)])
