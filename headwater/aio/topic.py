"""A topic in an event loop."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headwater.aio.scan import Scan
from headwater.aio.threads import Threads
from headwater.core.record import Record
from headwater.core.schema import Schema
from headwater.log import Bounds
from headwater.streams.catalog import TopicInfo
from headwater.streams.start import Start
from headwater.streams.topic import Topic as SyncTopic
from headwater.streams.topic import TopicStatistics


class Topic:
    """A topic of a store. Cheap to make; it always shows the topic as it is now."""

    def __init__(self, topic: SyncTopic, threads: Threads) -> None:
        self._topic = topic
        self._threads = threads

    @property
    def name(self) -> str:
        """Its name."""
        return self._topic.name

    async def info(self) -> TopicInfo:
        """The topic's description."""
        return await self._threads.run(lambda: self._topic.info)

    async def schema(self) -> Schema:
        """The schema that new records have."""
        return await self._threads.run(lambda: self._topic.schema)

    async def bounds(self) -> dict[int, Bounds]:
        """For each partition which offsets can be read now."""
        return await self._threads.run(self._topic.bounds)

    async def offset_of(self, position: Start, partition: int) -> int:
        """The offset that a position means in a partition now: `"earliest"`, `"latest"`, `headwater.time(…)`, …"""
        return await self._threads.run(lambda: self._topic.offset_of(position, partition))

    # Reading without a consumer.

    def scan(
        self,
        start: Start = "earliest",
        end: Start = "latest",
        *,
        partitions: Sequence[int] | None = None,
        columns: list[str] | None = None,
        where: str | None = None,
    ) -> Scan:
        """The records from `start` up to `end` as Arrow batches, partition by partition: `async for batch in ...`.

        All of what is there when the first one is asked for, or an error. `await ...read_all()` is a table of them.
        With `where`, only records that match a filter.
        """
        return Scan(
            lambda: self._topic.scan(start, end, partitions=partitions, columns=columns, where=where), self._threads
        )

    async def recent(self, count: int = 10, *, where: str | None = None) -> list[Record]:
        """The last `count` records by time, over all partitions; no group's position is touched.

        With `where`, the last ones that match a filter.
        """
        return await self._threads.run(lambda: self._topic.recent(count, where=where))

    # Looking after it.

    async def evolve(self, schema: pa.Schema) -> None:
        """Add nullable columns to the schema; older records read back with nulls there. Anything else is refused."""
        await self._threads.run(lambda: self._topic.evolve(schema))

    async def statistics(self) -> TopicStatistics:
        """The topic in numbers."""
        return await self._threads.run(self._topic.statistics)

    def __repr__(self) -> str:
        return repr(self._topic)
