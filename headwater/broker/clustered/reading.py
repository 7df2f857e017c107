"""Reads plain records and offsets of any partition of the cluster, at the brokers that lead them.

Clients that know nothing of leaders ask any broker. It reads what it leads itself, asks the other leaders for the rest,
and looks for a leader anew when one has moved.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final, TypeVar

from headwater.broker.arrivals import ArrivalWaiter
from headwater.broker.backend import NamedPartition
from headwater.broker.clustered.peers import Peers
from headwater.broker.limits.budget import Hold
from headwater.broker.runtime import Runtime
from headwater.broker.waiting_reader import (
    CallLimits,
    PartitionOffsets,
    PartitionRead,
    ReadAnswer,
    ReadPosition,
    ReadRequest,
    Unlimited,
    WaitingReader,
    answer_of,
)
from headwater.cluster.node import ClusterNode
from headwater.core.errors import BrokerUnavailable, HeadwaterError, InvalidConfiguration, NotLeader
from headwater.streams.topic import TopicPartition

_Content = TypeVar("_Content", bound=Sized)
_LEADERLESS: Final = 5.0
"""A caller that would not wait for records waits so many seconds for a leader."""
_AGAIN: Final = 0.05
"""Seconds between two looks for a leader, at least."""
_STEP: Final = 0.2
"""Seconds that others are waited for before the next look for a leader."""
_MOVED: Final = (NotLeader, BrokerUnavailable)
"""Errors of a partition that has just moved: the next look finds it where it is then."""


class LeadersReader:
    """Reads at all leaders. For the event loop."""

    def __init__(self, runtime: Runtime, node: ClusterNode, peers: Peers, here: WaitingReader) -> None:
        """`here` reads what this broker leads."""
        self._runtime = runtime
        self._node = node
        self._peers = peers
        self._here = here

    def expecting(self, request: ReadRequest[_Content]) -> AbstractContextManager[ArrivalWaiter]:
        """See WaitingReader."""
        return self._here.expecting(request)

    async def read(
        self,
        request: ReadRequest[_Content],
        waiter: ArrivalWaiter,  # noqa: ARG002 - other leaders wait too, and each wait has its own
        deadline: float,
        limits: CallLimits,
    ) -> tuple[ReadAnswer[_Content], Hold]:
        """Read what there is, after waiting for it until the deadline. See WaitingReader.

        A partition that has no leader is left out while others have records. It is told when the wait is over.
        """
        hold = await limits.hold_response(request.max_bytes)
        try:
            led_until = max(deadline, time.monotonic() + limits.within_deadline(_LEADERLESS))
            reads = await self.records(request.positions, request.max_bytes, deadline, led_until)
            has_news = any(_is_news(read) for read in reads)
            told: list[PartitionRead] = []
            following: list[int | None] = []
            for position, read in zip(request.positions, reads, strict=True):
                # A time cannot be gone on from, so such a position is told in any case.
                if has_news and isinstance(read.error, _MOVED) and position.timestamp_ns is None:
                    following.append(position.offset)
                else:
                    told.append(read)
                    following.append(read.next_offset)
            answer = await self._runtime.read(
                lambda: answer_of(request, told, request.generation, has_news=has_news, next_offsets=following)
            )
        except BaseException:
            hold.give_back()
            raise
        hold.shrink(len(answer.content))
        return answer, hold

    async def records(
        self, positions: Sequence[ReadPosition], max_bytes: int, deadline: float, led_until: float
    ) -> list[PartitionRead]:
        """The records at these positions, in their order, or those that come until the deadline.

        The wait ends when there is something in one partition. A partition whose leader is not known is looked for
        until `led_until`, unless there is something in another one.
        """
        asked = [replace(position) for position in positions]
        reads: list[PartitionRead] = []
        wait = 0.0
        while True:
            reads = await self._read_once(asked, reads, max_bytes, wait)
            for position, read in zip(asked, reads, strict=True):
                if read.error is None and read.next_offset is not None and not read.records:
                    position.offset, position.timestamp_ns = read.next_offset, None
            if any(map(_is_news, reads)) or self._runtime.draining.is_set():
                return reads
            moved = any(isinstance(read.error, _MOVED) for read in reads)
            left = (led_until if moved else deadline) - time.monotonic()
            if left <= 0:
                return reads
            if moved:
                await asyncio.sleep(min(_AGAIN, left))
            wait = min(left, _STEP) if moved else left

    async def _read_once(
        self, positions: Sequence[ReadPosition], before: Sequence[PartitionRead], max_bytes: int, wait: float
    ) -> list[PartitionRead]:
        """One look at all leaders. With a wait, the first that has something ends it; others stay as they were."""
        parts = self._by_leader([position.partition for position in positions])
        share = max(max_bytes // len(parts), 1)
        tasks = {
            asyncio.create_task(self._read_at(leader, [positions[index] for index in indexes], share, wait)): indexes
            for leader, indexes in parts.items()
        }
        reads = dict(enumerate(before))
        pending = set(tasks)
        try:
            while pending and not (wait and any(map(_is_news, reads.values()))):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    reads |= dict(zip(tasks[task], task.result(), strict=True))
        finally:
            for task in pending:
                task.cancel()
        return [reads[index] for index in range(len(positions))]

    def _by_leader(self, partitions: Sequence[NamedPartition]) -> Mapping[int, list[int]]:
        """The indexes of partitions by the brokers to ask: their leaders, or this one where no other leads."""
        by_leader: dict[int, list[int]] = {}
        for index, partition in enumerate(partitions):
            member = self._node.leadership.leader_elsewhere(partition.tp)
            by_leader.setdefault(self._node.broker if member is None else member.id, []).append(index)
        return by_leader

    async def _read_at(
        self, leader: int, positions: list[ReadPosition], max_bytes: int, wait: float
    ) -> list[PartitionRead]:
        if leader != self._node.broker:
            try:
                return await self._peers.fetch_records(leader, positions, max_bytes, wait)
            except HeadwaterError as error:
                return [PartitionRead(position.partition.tp, error=error) for position in positions]
        request = ReadRequest([replace(position) for position in positions], max_bytes, _with_records)
        with self._here.expecting(request) as waiter:
            answer, _ = await self._here.read(request, waiter, time.monotonic() + wait, Unlimited())
        return [await self._explained(read) for read in answer.content]

    async def _explained(self, read: PartitionRead) -> PartitionRead:
        """The same, with a better error if no broker will ever lead the partition."""
        if isinstance(read.error, NotLeader):
            try:
                await self._check_exists(read.partition)
            except HeadwaterError as error:
                return replace(read, error=error)
        return read

    async def _check_exists(self, partition: TopicPartition) -> None:
        """Raise UnknownTopic or InvalidConfiguration unless the cluster has the partition."""
        topics = self._node.membership.view.topics
        topic = topics.get(partition.topic)
        if topic is None or partition.partition >= topic.info.partitions:
            topic = await self._node.topics.get(partition.topic)  # another broker may just have made it
        if partition.partition >= topic.info.partitions:
            last = topic.info.partitions - 1
            raise InvalidConfiguration(
                f"topic {partition.topic!r} has partitions 0 to {last}, not {partition.partition}"
            )

    async def offsets(
        self, partitions: Sequence[NamedPartition], timestamp_ns: int | None, limits: CallLimits
    ) -> list[PartitionOffsets]:
        """The offsets of partitions, and where a time begins in them. See WaitingReader."""
        known: dict[int, PartitionOffsets] = {}
        deadline = time.monotonic() + limits.within_deadline(_LEADERLESS)
        while True:
            missing = [index for index in range(len(partitions)) if index not in known or _has_moved(known[index])]
            parts = self._by_leader([partitions[index] for index in missing])
            asked = {leader: [missing[index] for index in indexes] for leader, indexes in parts.items()}
            answers = await asyncio.gather(
                *(
                    self._offsets_at(leader, [partitions[index] for index in indexes], timestamp_ns, limits)
                    for leader, indexes in asked.items()
                )
            )
            for indexes, answer in zip(asked.values(), answers, strict=True):
                known |= dict(zip(indexes, answer, strict=True))
            waits = any(map(_has_moved, known.values()))
            if not waits or time.monotonic() >= deadline or self._runtime.draining.is_set():
                return [known[index] for index in range(len(partitions))]
            await asyncio.sleep(_AGAIN)

    async def _offsets_at(
        self, leader: int, partitions: list[NamedPartition], timestamp_ns: int | None, limits: CallLimits
    ) -> list[PartitionOffsets]:
        if leader != self._node.broker:
            try:
                return await self._peers.offsets(leader, partitions, timestamp_ns)
            except HeadwaterError as error:
                return [PartitionOffsets(partition.tp, error=error) for partition in partitions]
        results = await self._here.offsets(partitions, timestamp_ns, limits)
        for index, offsets in enumerate(results):
            if isinstance(offsets.error, NotLeader):
                try:
                    await self._check_exists(offsets.partition)
                except HeadwaterError as error:
                    results[index] = offsets._replace(error=error)
        return results


def _with_records(reads: Sequence[PartitionRead], generation: int) -> list[PartitionRead]:  # noqa: ARG001 - no group reads
    """In a thread: the results with records in place of frames."""
    results: list[PartitionRead] = []
    for read in reads:
        try:
            results.append(replace(read, frames=[], records=list(read.plain_records())))
        except HeadwaterError as error:
            results.append(replace(read, frames=[], next_offset=None, error=error))
    return results


def _is_news(read: PartitionRead) -> bool:
    """Return whether there is a reason to answer that is not the lack of a leader."""
    return read.has_news and not isinstance(read.error, _MOVED)


def _has_moved(offsets: PartitionOffsets) -> bool:
    return isinstance(offsets.error, _MOVED)
