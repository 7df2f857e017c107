"""A replica that a broker holds: the protocol's `Replica`, its log, and those who wait for it.

Everything here runs in the event loop but what is handed to threads. The role of a replica, to lead or to follow, is
taken on by its log in a thread before anything is done in that role.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.etcd.keys import PartitionKey
from headwater.cluster.replication.durable_log import DurableLog, OffsetSpan
from headwater.cluster.replication.replica import FollowerRequest, FollowerResponse, NotLeading, Replica
from headwater.core.errors import HeadwaterError
from headwater.log import Appended, StoredFrame
from headwater.streams.topic import TopicPartition

PATIENCE: Final = 3.0
"""A follower that has not asked for so long is taken out of the in-sync set. Seconds."""


class LocalReplica:
    """One replica, over all incarnations of its broker in this process."""

    def __init__(
        self,
        key: PartitionKey,
        tp: TopicPartition,
        log: DurableLog,
        broker: int,
        min_insync: int,
        tell: Callable[[TopicPartition], None],
    ) -> None:
        """`tell` is called when there is more to read."""
        self.key = key
        self.tp = tp
        self.log = log
        self.min_insync = min_insync
        self.task: asyncio.Task[None] | None = None
        self.stage: LocalReplica | None = None
        """The replica of the partition's stage log, if it has one."""
        self.partition: LocalReplica | None = None
        """For the replica of a stage log: the one of its partition."""
        self._broker = broker
        self.replica = Replica(
            broker, 0, log, min_insync=min_insync, patience=PATIENCE, high_watermark=min(log.watermark, log.end)
        )
        self.led = 0
        """The epoch in which the log takes appends; 0 while it takes none."""
        self._tell = tell
        self._told: tuple[int, int | None] | None = None
        """The high watermark, and what could be read, when those who read were told last."""
        self.repairing = False
        """True if it is damaged, and others are asked for what it lacks."""
        self.confirming = 0
        """The number of callers that wait to be sure that nobody else leads: then followers are answered at once."""
        self._waiting: set[asyncio.Future[None]] = set()
        self._acks: list[tuple[int, int, asyncio.Future[None]]] = []
        self._reading: dict[tuple[OffsetSpan, int, int], asyncio.Future[list[StoredFrame]]] = {}
        self._numbers = itertools.count()

    def __str__(self) -> str:
        return f"{self.tp.topic}/{self.tp.partition}{' (stages)' if self.partition is not None else ''}"

    # The state of the cluster.

    def keep_stage(self, stage: LocalReplica) -> None:
        """Have a stage log from now on. It has the same role, in the same epochs, whatever the cluster says."""
        self.stage, stage.partition = stage, self
        stage.become(self.replica.incarnation)
        if self.replica.state is not None:
            stage.observe(self.replica.state, self.replica.revision)
        self.replica.keep_beside(stage.replica)

    def become(self, incarnation: int) -> None:
        """The broker is another one from now on: it inherits no leadership, but what it knows to be acknowledged."""
        before = self.replica
        self.replica = Replica(
            self._broker,
            incarnation,
            self.log,
            min_insync=self.min_insync,
            patience=PATIENCE,
            high_watermark=before.high_watermark,
        )
        if before.state is not None:
            self.replica.observe(before.state, before.revision, time.monotonic())
        if self.stage is not None:
            self.stage.become(incarnation)
            self.replica.keep_beside(self.stage.replica)
        self._changed_role()

    def require(self, min_insync: int) -> None:
        """So many have to be in sync from now on before anything is acknowledged."""
        self.min_insync = min_insync
        self.replica.require(min_insync)
        if self.stage is not None:
            self.stage.require(min_insync)

    def observe(self, state: PartitionState, revision: int) -> None:
        """Take note of the partition's state."""
        before = self.replica.epoch
        self.replica.observe(state, revision, time.monotonic())
        if self.stage is not None:
            self.stage.observe(state, revision)
        if self.replica.epoch != before:
            self._changed_role()
        else:
            self.tell_progress()
            self.wake()  # others may be in sync by now, or fewer

    def _changed_role(self) -> None:
        """Nothing that was appended in another role is acknowledged in this one: its offset may be another's by now."""
        self.led = 0
        self._told = None
        self._reading = {}
        acks, self._acks = self._acks, []
        for _, _, ack in acks:
            if not ack.done():
                ack.set_exception(NotLeading())
        self.wake()

    @property
    def short(self) -> bool:
        """True if something that was acknowledged is missing here, in the log or in the stage log."""
        return self.log.short or (self.stage is not None and self.stage.log.short)

    @property
    def leads(self) -> bool:
        """True if it takes appends."""
        return self.led != 0 and self.led == self.replica.epoch and self.replica.leads

    # Waiting.

    def wake(self) -> None:
        """Something has changed: the log, the high watermark or the role."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def changed(self, timeout: float | None = None) -> None:
        """Wait until something has changed, for so long at most."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(future)

    # Leading.

    async def acknowledged(self, appended: asyncio.Future[Appended], epoch: int, *, by_all: bool) -> Appended:
        """Return what is appended in an epoch, once every replica that counts has it; also what was there already.

        Raises NotLeading when that cannot be told any more, because the role has changed meanwhile.
        """
        written = await appended
        if not self.leads or self.led != epoch:
            raise NotLeading
        self.appended()
        if by_all and written.end_offset > self.replica.high_watermark:
            ack: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._acks, (written.end_offset, next(self._numbers), ack))
            await ack
        return written

    def appended(self) -> None:
        """The log has grown."""
        before = self.log.end
        self.log.refresh()
        self.replica.synced()
        if self.log.end != before:
            self.wake()
        self.tell_progress()

    def tell_progress(self) -> None:
        """Tell those whose records are acknowledged by now, and those who read."""
        high_watermark = self.replica.high_watermark
        if self.leads:
            if (high_watermark, self.replica.readable) != self._told:
                self._told = high_watermark, self.replica.readable
                self._tell(self.tp)
                self.wake()
            while self._acks and self._acks[0][0] <= high_watermark:
                _, _, ack = heapq.heappop(self._acks)
                if not ack.done():
                    ack.set_result(None)

    def fetch(self, request: FollowerRequest) -> FollowerResponse:
        """Answer a follower; raises NotLeading."""
        if not self.leads:
            raise NotLeading
        before = self.replica.high_watermark, self.replica.readable
        response = self.replica.fetch(request, time.monotonic())
        if (self.replica.high_watermark, self.replica.readable) != before:
            self.tell_progress()
        return response

    async def frames(
        self, span: OffsetSpan, max_bytes: int, read: Callable[..., Awaitable[list[StoredFrame]]]
    ) -> list[StoredFrame]:
        """Return frames of the log: read once, in a thread, for all followers that ask for them at the same time."""
        key = (span, max_bytes, self.log.markers.state)
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.ensure_future(read(self.log.frames, span, max_bytes))
            reading.add_done_callback(lambda done: self._have_read(key, done))
        return await asyncio.shield(reading)

    def _have_read(self, key: tuple[OffsetSpan, int, int], done: asyncio.Future[list[StoredFrame]]) -> None:
        if self._reading.get(key) is done:
            del self._reading[key]
        if not done.cancelled():
            done.exception()  # whoever waits is told; where nobody does, nobody misses it

    def heard(self, request: FollowerRequest) -> None:
        """A follower has asked, and waits for an answer."""
        self.replica.heard(request)
        if self.confirming:
            self.wake()

    async def confirm(self, epoch: int) -> None:
        """Return when it is sure that nobody led in a later epoch when this was called; raises NotLeading."""
        replica, mark = self.replica, self.replica.mark()
        self.confirming += 1
        self.wake()
        try:
            while True:
                if not self.leads or self.led != epoch or self.replica is not replica:
                    raise NotLeading
                if replica.confirmed(mark):
                    return
                await self.changed()
        finally:
            self.confirming -= 1


def damaged_among(replicas: Iterable[LocalReplica]) -> list[LocalReplica]:
    """In a thread: those of which readers have found some damaged. One that cannot be looked at is deleted just now."""
    damaged = []
    for local in replicas:
        with suppress(HeadwaterError, OSError):
            if local.log.damaged_at() is not None:
                damaged.append(local)
    return damaged
