"""Reads plain records for members of groups from all leaders.

Clients that know nothing of leaders ask one broker, the coordinator of their group, and that one asks the others. It is
no more than a reader: records that a member was given and has not committed come again from the next coordinator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headwater.broker.backend import NamedPartition
from headwater.broker.clustered.peers import FetchedRecords, Peers, Start
from headwater.broker.reader import PartitionRead, ReadPosition, ReadRequest, Unlimited, WaitingReader
from headwater.cluster.control.metadata import NOBODY
from headwater.cluster.node import ClusterNode
from headwater.core.errors import (
    BrokerUnavailable,
    HeadwaterError,
    NotLeader,
    OffsetOutOfRange,
    PartitionDeleted,
    UnknownTopic,
)
from headwater.core.options import KIB, MIB
from headwater.streams.topic import TopicPartition

_BYTES: Final = MIB
_RECORD_BYTES: Final = 64 * KIB
"""At most so many bytes are fetched for each record that is asked for. A longer record comes anyway."""
_AGAIN: Final = 0.05
_ELSEWHERE: Final = (NotLeader, BrokerUnavailable, UnknownTopic, PartitionDeleted)
"""Errors of a partition that has just moved, or is gone: the next look finds it where it is then, or not at all."""


class ClusterPolling:
    """Fetches for members. For the event loop."""

    def __init__(self, node: ClusterNode, peers: Peers, reader: WaitingReader) -> None:
        self._node = node
        self._peers = peers
        self._reader = reader

    async def fetch(
        self, starts: Mapping[TopicPartition, Start], max_records: int, wait: float
    ) -> dict[TopicPartition, FetchedRecords]:
        """The records behind these offsets, or those that come within `wait` seconds.

        Partitions that cannot be reached now are left out. Raises what is wrong with a partition otherwise.
        """
        max_bytes = min(_BYTES, max_records * _RECORD_BYTES)
        tasks = [
            asyncio.create_task(self._fetch(leader, led, max_bytes, wait))
            for leader, led in self._by_leader(starts).items()
        ]
        fetched: dict[TopicPartition, FetchedRecords] = {}
        try:
            for task in asyncio.as_completed(tasks):
                fetched |= _usable(await task)
                if fetched:
                    break  # others would make it wait
            for answered in tasks:
                if answered.done() and not answered.cancelled() and answered.exception() is None:
                    fetched |= _usable(answered.result())
        finally:
            for task in tasks:
                task.cancel()
        if not fetched:
            await asyncio.sleep(min(_AGAIN, wait))  # whatever was wrong is not asked for in vain at once
        return fetched

    def _by_leader(self, starts: Mapping[TopicPartition, Start]) -> dict[int, dict[TopicPartition, Start]]:
        """The partitions by the brokers that lead them."""
        by_leader: dict[int, dict[TopicPartition, Start]] = {}
        partitions = self._node.membership.view.partitions
        for partition, (uuid, offset) in starts.items():
            state = partitions.get((uuid, partition.partition))
            if state is not None and state[0].leader != NOBODY:
                by_leader.setdefault(state[0].leader, {})[partition] = (uuid, offset)
        return by_leader

    async def _fetch(
        self, leader: int, starts: Mapping[TopicPartition, Start], max_bytes: int, wait: float
    ) -> Sequence[FetchedRecords]:
        if leader == self._node.broker:
            return await self._fetch_here(starts, max_bytes, wait)
        try:
            return await self._peers.fetch_records(leader, starts, max_bytes, wait)
        except _ELSEWHERE:
            return ()

    async def _fetch_here(
        self, starts: Mapping[TopicPartition, Start], max_bytes: int, wait: float
    ) -> Sequence[FetchedRecords]:
        positions = [
            ReadPosition(NamedPartition(*partition, uuid), offset) for partition, (uuid, offset) in starts.items()
        ]
        request = ReadRequest(positions, max_bytes, _records_of)
        with self._reader.expecting(request) as waiter:
            answer, _ = await self._reader.read(request, waiter, time.monotonic() + wait, Unlimited())
        return answer.content


def _records_of(reads: Sequence[PartitionRead], generation: int) -> list[FetchedRecords]:  # noqa: ARG001 - no group reads
    partitions: list[FetchedRecords] = []
    for read in reads:
        fetched = FetchedRecords(
            read.partition, (), read.bounds.start, read.bounds.end, read.next_offset or 0, read.error
        )
        if read.error is None:
            try:
                records = [record for frame in read.frames for record in frame.records(read.start, read.end)]
                fetched = fetched._replace(records=records)
            except HeadwaterError as error:
                fetched = fetched._replace(error=error)
        partitions.append(fetched)
    return partitions


def _usable(answer: Iterable[FetchedRecords]) -> dict[TopicPartition, FetchedRecords]:
    """Partitions with records, or with another offset to go on from; raises what is wrong unless they have moved."""
    usable: dict[TopicPartition, FetchedRecords] = {}
    for fetched in answer:
        if isinstance(fetched.error, OffsetOutOfRange):
            usable[fetched.partition] = fetched._replace(next_offset=fetched.log_start)  # older records are gone
        elif fetched.error is not None:
            if not isinstance(fetched.error, _ELSEWHERE):
                raise fetched.error
        elif fetched.records:
            usable[fetched.partition] = fetched
    return usable
