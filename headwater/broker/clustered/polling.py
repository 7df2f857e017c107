"""Polls of plain records, in a cluster: whoever coordinates a group fetches for its members, from all who lead.

Clients that know nothing of leaders ask one broker, and that one asks the others. It is no more than a reader: what a
member was given and has not committed comes again when another one coordinates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headwater.broker.rpc.reading import Reading
from headwater.cluster.control.metadata import NOBODY
from headwater.cluster.node import ClusterNode
from headwater.core.errors import BrokerUnavailable, NotLeader, OffsetOutOfRange, PartitionDeleted, UnknownTopic
from headwater.core.options import KIB, MIB
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error

_BYTES: Final = MIB
_RECORD_BYTES: Final = 64 * KIB
"""As much is fetched for a record that is asked for, at most; of long ones one comes anyway."""
_MARGIN: Final = 5.0
"""How much longer an answer of another broker may take than it was asked to wait. Seconds."""
_AGAIN: Final = 0.05
_ELSEWHERE: Final = (NotLeader, BrokerUnavailable, UnknownTopic, PartitionDeleted)
"""What is wrong with a partition that has just moved, or gone: the next look finds it where it is then, or not."""

Start = tuple[bytes, int]
"""A topic's uuid, and the offset to read from."""


class ClusterPolling:
    """Fetches for members. For the event loop."""

    def __init__(self, node: ClusterNode, reading: Reading) -> None:
        self._node = node
        self._reading = reading

    async def fetch(
        self, starts: Mapping[TopicPartition, Start], most: int, wait: float
    ) -> dict[TopicPartition, pb.FetchedPartition]:
        """What is there behind these offsets, or comes within so many seconds; raises what is wrong with a partition.

        One that cannot be reached now is left out.
        """
        tasks = [
            asyncio.create_task(self._fetch(leader, request, wait))
            for leader, request in self._requests(starts, most, wait).items()
        ]
        found: dict[TopicPartition, pb.FetchedPartition] = {}
        try:
            for task in asyncio.as_completed(tasks):
                found |= _usable((await task).partitions)
                if found:
                    break  # others would make it wait
            for one in tasks:
                if one.done() and not one.cancelled() and one.exception() is None:
                    found |= _usable(one.result().partitions)
        finally:
            for one in tasks:
                one.cancel()
        if not found:
            await asyncio.sleep(min(_AGAIN, wait))  # whatever was wrong is not asked for in vain at once
        return found

    def _requests(self, starts: Mapping[TopicPartition, Start], most: int, wait: float) -> dict[int, pb.FetchRequest]:
        """What to ask whom."""
        found: dict[int, pb.FetchRequest] = {}
        view = self._node.membership.view
        for place, (uuid, offset) in starts.items():
            state = view.partitions.get((uuid, place.partition))
            leader = NOBODY if state is None else state[0].leader
            if leader == NOBODY:
                continue
            request = found.setdefault(
                leader,
                pb.FetchRequest(
                    as_records=True, max_bytes=min(_BYTES, most * _RECORD_BYTES), max_wait_ms=round(wait * 1000)
                ),
            )
            named = pb.TopicPartition(topic=place.topic, partition=place.partition, topic_uuid=uuid)
            request.positions.append(pb.FetchPosition(partition=named, offset=offset))
        return found

    async def _fetch(self, leader: int, request: pb.FetchRequest, wait: float) -> pb.FetchResponse:
        if leader == self._node.broker:
            return await self._reading.fetch_here(request, wait)
        try:
            answer: Any = await self._node.call_broker(leader, "Fetch", request, wait + _MARGIN)
        except _ELSEWHERE:
            return pb.FetchResponse()
        found: pb.FetchResponse = answer
        return found


def _usable(partitions: Iterable[pb.FetchedPartition]) -> dict[TopicPartition, pb.FetchedPartition]:
    """Those with records, or with another place to go on from; raises what is wrong with one, unless it has moved."""
    found: dict[TopicPartition, pb.FetchedPartition] = {}
    for one in partitions:
        error = unpack_error(one.error) if one.HasField("error") else None
        if isinstance(error, OffsetOutOfRange):
            one.next_offset = one.log_start  # what was before it is gone
        elif isinstance(error, _ELSEWHERE):
            continue
        elif error is not None:
            raise error
        if one.records or error is not None:
            found[TopicPartition(one.topic, one.partition)] = one
    return found
