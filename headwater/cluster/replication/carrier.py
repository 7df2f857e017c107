"""Carrying out: what is decided in one log is done at the leaders of the partitions that it writes to.

Each partition gets what is decided for it in the order of the decisions, and the next only when it has the last: by its
number, a decision that comes again is known there for ever. The leader of a partition is asked until it has done its
share, in one epoch or another, so a dead broker is a delay and a dead client is nobody's concern.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from headwater.cluster.transactions.transaction_log import Bases, PartitionWrites, StageRange, TransactionDecision
from headwater.core.errors import HeadwaterError, PartitionDeleted, UnknownTopic

_log = logging.getLogger(__name__)
_AT_ONCE: Final = 64
"""The number of decisions that a partition is given in one call."""
_SHORTEST: Final = 0.02
_LONGEST: Final = 1.0


class Portion(NamedTuple):
    """The writes of one decision to a partition."""

    number: int
    ranges: Sequence[StageRange]


Apply = Callable[[PartitionWrites, bytes, Sequence[Portion]], Awaitable[Sequence[int | None]]]
"""Has the leader of a share's partition write portions, under the name of a log: where each begins, if it is known."""


def log_writer(topic: bytes, partition: int) -> bytes:
    """Under which name partitions know what was decided in a log: a partition of an internal topic, by its uuid."""
    return blake2b(topic + partition.to_bytes(4, "big"), digest_size=16, person=b"headwater rule").digest()


class _WaitingPortion(NamedTuple):
    share: PartitionWrites
    portion: Portion
    done: asyncio.Future[int | None]


class Carrier:
    """Carries out what one coordinator has decided. For the event loop."""

    def __init__(self, writer: bytes, apply: Apply) -> None:
        self._writer = writer
        self._apply = apply
        self._lanes: dict[tuple[bytes, int], deque[_WaitingPortion]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, ruling: TransactionDecision) -> asyncio.Future[Bases]:
        """Carry a decision out, after those that were added before it."""
        waits: dict[tuple[bytes, int], asyncio.Future[int | None]] = {}
        for share in ruling.shares:
            key = (share.uuid, share.partition)
            waits[key] = asyncio.get_running_loop().create_future()
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = deque()
                self._begin(key, lane)
            lane.append(_WaitingPortion(share, Portion(ruling.number, share.ranges), waits[key]))
        return asyncio.ensure_future(_gathered(waits))

    def _begin(self, key: tuple[bytes, int], lane: deque[_WaitingPortion]) -> None:
        task = asyncio.create_task(self._work(key, lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, key: tuple[bytes, int], lane: deque[_WaitingPortion]) -> None:
        """Give a partition what waits for it, until nothing does."""
        pause = _SHORTEST
        while lane:
            batch = [lane[number] for number in range(min(len(lane), _AT_ONCE))]
            try:
                bases = await self._give(batch)
            except Exception as error:  # noqa: BLE001 - whatever it is: what is decided will be done
                expected = isinstance(error, HeadwaterError | OSError)
                _log.log(
                    logging.DEBUG if expected else logging.ERROR,
                    "%s/%d: a decided transaction cannot be written yet: %s",
                    *(batch[0].share.topic, batch[0].share.partition, error),
                    exc_info=None if expected else error,
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST)
                continue
            pause = _SHORTEST
            for waiting, base in zip(batch, bases, strict=True):
                lane.popleft()
                if not waiting.done.done():
                    waiting.done.set_result(base)
        del self._lanes[key]

    async def _give(self, batch: Sequence[_WaitingPortion]) -> Sequence[int | None]:
        try:
            return await self._apply(batch[0].share, self._writer, [waiting.portion for waiting in batch])
        except (UnknownTopic, PartitionDeleted):
            return [None] * len(batch)  # what was for a deleted topic is gone with it

    def end(self) -> None:
        """Do no more: another one coordinates."""
        for task in self._tasks:
            task.cancel()
        for lane in self._lanes.values():
            for waiting in lane:
                waiting.done.cancel()


async def _gathered(waits: dict[tuple[bytes, int], asyncio.Future[int | None]]) -> Bases:
    return {key: await base for key, base in waits.items()}
