"""Reads plain records for members of groups from all leaders.

Clients that know nothing of leaders ask one broker, the coordinator of their group, and that one asks the others. It is
no more than a reader: records that a member was given and has not committed come again from the next coordinator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from headwater.broker.backend import NamedPartition
from headwater.broker.clustered.reading import LeadersReader
from headwater.broker.waiting_reader import PartitionRead, ReadPosition
from headwater.core.errors import BrokerUnavailable, NotLeader, OffsetOutOfRange, PartitionDeleted, UnknownTopic
from headwater.core.options import KIB, MIB
from headwater.streams.topic import TopicPartition

_BYTES: Final = MIB
_RECORD_BYTES: Final = 64 * KIB
"""At most so many bytes are fetched for each record that is asked for. A longer record comes anyway."""
_AGAIN: Final = 0.05
_ELSEWHERE: Final = (NotLeader, BrokerUnavailable, UnknownTopic, PartitionDeleted)
"""Errors of a partition that has just moved, or is gone: the next look finds it where it is then, or not at all."""

Start = tuple[bytes, int]
"""A topic's uuid, and the offset to read from."""


class ClusterPolling:
    """Fetches for members. For the event loop."""

    def __init__(self, reader: LeadersReader) -> None:
        self._reader = reader

    async def fetch(
        self, starts: Mapping[TopicPartition, Start], max_records: int, wait: float
    ) -> dict[TopicPartition, PartitionRead]:
        """The records behind these offsets, or those that come within `wait` seconds.

        Partitions that cannot be reached now are left out. Raises what is wrong with a partition otherwise.
        """
        max_bytes = min(_BYTES, max_records * _RECORD_BYTES)
        positions = [ReadPosition(NamedPartition(*tp, uuid), offset) for tp, (uuid, offset) in starts.items()]
        deadline = time.monotonic() + wait
        reads = await self._reader.records(positions, max_bytes, deadline, deadline) if positions else []
        fetched = {read.partition: read for read in reads if _is_usable(read, starts[read.partition][1])}
        if not fetched:
            await asyncio.sleep(min(_AGAIN, wait))  # whatever was wrong is not asked for in vain at once
        return fetched


def _is_usable(read: PartitionRead, offset: int) -> bool:
    """Return whether there are records, or another offset to go on from; raise what is wrong unless it has moved."""
    if isinstance(read.error, OffsetOutOfRange):
        read.next_offset = read.bounds.start  # older records are gone
        return True
    if read.error is not None and not isinstance(read.error, _ELSEWHERE):
        raise read.error
    return read.error is None and read.next_offset != offset
