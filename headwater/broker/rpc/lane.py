"""A lane: the appends to one partition, in the order in which they came.

While one thread writes and syncs, what comes meanwhile queues up and goes with the next write: however many producers
there are, they share one write and one sync, and no thread waits for any of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Protocol

from headwater.broker.core import Core
from headwater.broker.rpc.arrivals import Arrival
from headwater.core.errors import HeadwaterError
from headwater.log import Appended, Frame, Partition, Stretch
from headwater.streams.catalog import TopicInfo
from headwater.streams.topic import TopicPartition

Outcome = Appended | Exception


class Batch(Protocol):
    """What someone wants to append."""

    def frames(self, info: TopicInfo) -> Sequence[Frame]:
        """The frames, checked; called in the thread that writes. Raises what is wrong with them."""


class _Append:
    """One append on its way."""

    __slots__ = ("batch", "future", "outcome")

    def __init__(self, batch: Batch, future: asyncio.Future[Appended]) -> None:
        self.batch = batch
        self.future = future
        self.outcome: Outcome | None = None

    def settle(self) -> None:
        """Tell the one who waits. Who has given up is told nothing."""
        if self.future.done():
            return
        if isinstance(self.outcome, Appended):
            self.future.set_result(self.outcome)
        else:
            self.future.set_exception(self.outcome or RuntimeError("an append ended without an outcome"))


class Lane:
    """The queue of one partition."""

    def __init__(self, core: Core, place: TopicPartition, done: Callable[[Lane], None]) -> None:
        self._core = core
        self._done = done
        self.place = place
        self._mutex = threading.Lock()
        self._waiting: list[_Append] = []
        self._busy = False

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        """Queue the batch. If whoever waits for it gives up before it is begun, it is not written."""
        future: asyncio.Future[Appended] = self._core.loop.create_future()
        with self._mutex:
            self._waiting.append(_Append(batch, future))
            if self._busy:
                return future
            self._busy = True
        self._core.writers.submit(self._work)
        return future

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or being written."""
        return not self._busy

    def _work(self) -> None:
        """Write what is queued, and come back for what has been queued meanwhile after others had their turn."""
        with self._mutex:
            appends, self._waiting = self._waiting, []
        arrivals: list[Arrival] = []
        try:
            arrivals = self._write(appends)
        except Exception as error:  # noqa: BLE001 - whatever it was, those who wait are told
            for one in appends:
                one.outcome = one.outcome or error
        with self._mutex:
            self._busy = bool(self._waiting)
        if self._busy:
            self._core.writers.submit(self._work)
        self._core.loop.call_soon_threadsafe(self._tell, appends, arrivals)

    def _write(self, appends: list[_Append]) -> list[Arrival]:
        """Append them; what can be passed on to readers as it was written."""
        info = self._core.store.describe_topic(self.place.topic)
        partition: Partition = self._core.store.partition(info, self.place.partition)
        ready: list[tuple[_Append, Sequence[Frame]]] = []
        for one in appends:
            if not one.future.cancelled():
                try:
                    ready.append((one, one.batch.frames(info)))
                except HeadwaterError as error:
                    one.outcome = error
        cluster = self._core.cluster
        stretches: list[Stretch] = []
        with nullcontext() if cluster is None else cluster.leading(self.place):
            outcomes = partition.append_all([frames for _, frames in ready], stretches)
            if cluster is not None:
                partition.sync()  # whatever the mode: only what is durable is acknowledged by replicas
        for (one, _), outcome in zip(ready, outcomes, strict=True):
            one.outcome = outcome
        if cluster is not None:
            return []  # it is shown when the replicas have it
        return [Arrival(self.place, info.uuid, stretch) for stretch in stretches]

    def _tell(self, appends: list[_Append], arrivals: list[Arrival]) -> None:
        for one in appends:
            one.settle()
        if arrivals:
            self._core.arrivals.bring(arrivals)
        else:
            self._core.arrivals.tell([self.place])
        if self.idle:
            self._done(self)


class Lanes:
    """The lanes of all partitions that are being written to. For the event loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lanes: dict[TopicPartition, Lane] = {}

    def append(self, place: TopicPartition, batch: Batch) -> asyncio.Future[Appended]:
        """Queue a batch for a partition."""
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = Lane(self._core, place, self._forget)
        return lane.append(batch)

    def _forget(self, lane: Lane) -> None:
        # Not another one that has taken its place: two lanes at once would keep no order.
        if lane.idle and self._lanes.get(lane.place) is lane:
            del self._lanes[lane.place]
