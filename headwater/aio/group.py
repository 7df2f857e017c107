"""A group in an event loop: who is in it, and how far it is."""

from __future__ import annotations

from headwater.aio.threads import Threads
from headwater.streams.group import Commit, GroupInfo, TopicKey
from headwater.streams.group import Group as SyncGroup
from headwater.streams.position import Position
from headwater.streams.topic import TopicPartition


class Group:
    """A group of consumers. Its members join and commit by themselves; this is for those who look after it."""

    def __init__(self, group: SyncGroup, threads: Threads) -> None:
        self._group = group
        self._threads = threads

    @property
    def name(self) -> str:
        """Its name."""
        return self._group.name

    async def describe(self) -> GroupInfo:
        """The group as it is now."""
        return await self._threads.run(self._group.describe)

    async def generation(self) -> int:
        """The present generation."""
        return await self._threads.run(self._group.generation)

    async def committed(self) -> dict[TopicKey, Position]:
        """All positions."""
        return await self._threads.run(self._group.committed)

    async def position(self, key: TopicKey) -> Position | None:
        """The position in one partition, None when there is none."""
        return await self._threads.run(lambda: self._group.position(key))

    async def reset(self, positions: dict[TopicPartition, Commit]) -> None:
        """Set positions on purpose, forwards or backwards. Members go on from there with their next poll."""
        await self._threads.run(lambda: self._group.reset(positions))

    async def expire(self, before_ns: int, *, dry_run: bool = False) -> bool:
        """Forget the group if it has no living member and its last commit was before that time; whether it was one."""
        return await self._threads.run(lambda: self._group.expire(before_ns, dry_run=dry_run))
