"""Append queues: the appends to each partition, in the order in which they came.

While a thread writes and syncs a partition, appends that come meanwhile queue up and go with the next write. So all
producers of a partition share one write and one sync, and no thread waits for any of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from headwater.broker.arrivals import Arrival
from headwater.broker.runtime import Runtime
from headwater.core.errors import HeadwaterError
from headwater.log import Appended, Frame, Partition, Stretch
from headwater.streams.catalog import TopicInfo
from headwater.streams.store import Store
from headwater.streams.topic import TopicPartition

Outcome = Appended | Exception


class AppendBatch(Protocol):
    """Frames that a caller wants to append to one partition."""

    def frames(self, info: TopicInfo) -> Sequence[Frame]:
        """The frames, checked; called in the thread that writes. Raises what is wrong with them."""


class WriteFrames(Protocol):
    """A backend's way to write to a partition."""

    def __call__(
        self, partition: TopicPartition, log: Partition, groups: Sequence[Sequence[Frame]]
    ) -> tuple[Sequence[Outcome], Sequence[Stretch]]:
        """In a thread: append the groups of frames, which may block, and return the outcome of each.

        The second value is what was written and may be shown to readers at once; the others have to look for it.
        """


class _Append:
    """One append on its way."""

    __slots__ = ("batch", "future", "outcome")

    def __init__(self, batch: AppendBatch, future: asyncio.Future[Appended]) -> None:
        self.batch = batch
        self.future = future
        self.outcome: Outcome | None = None

    def complete(self) -> None:
        """Give the outcome to the caller, unless that has given up."""
        if self.future.done():
            return
        if isinstance(self.outcome, Appended):
            self.future.set_result(self.outcome)
        else:
            self.future.set_exception(self.outcome or RuntimeError("an append ended without an outcome"))


class AppendQueue:
    """The queue of one partition."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        write: WriteFrames,
        partition: TopicPartition,
        done: Callable[[AppendQueue], None],
    ) -> None:
        """`done` is called in the event loop whenever the queue has become empty."""
        self._runtime = runtime
        self._store = store
        self._write_frames = write
        self._done = done
        self.partition = partition
        self._mutex = threading.Lock()
        self._waiting: list[_Append] = []
        self._busy = False

    def append(self, batch: AppendBatch) -> asyncio.Future[Appended]:
        """Queue the batch. It is not written if the future is cancelled before that has begun."""
        future: asyncio.Future[Appended] = self._runtime.loop.create_future()
        with self._mutex:
            self._waiting.append(_Append(batch, future))
            if self._busy:
                return future
            self._busy = True
        self._runtime.writers.submit(self._work)
        return future

    @property
    def idle(self) -> bool:
        """True if nothing is queued or being written."""
        return not self._busy

    def _work(self) -> None:
        """Write the queue. Appends that come meanwhile are written after other partitions had their turn."""
        with self._mutex:
            appends, self._waiting = self._waiting, []
        arrivals: list[Arrival] = []
        try:
            arrivals = self._write(appends)
        except Exception as error:  # noqa: BLE001 - whatever it was, the callers are told
            for append in appends:
                append.outcome = append.outcome or error
        with self._mutex:
            self._busy = bool(self._waiting)
        if self._busy:
            self._runtime.writers.submit(self._work)
        self._runtime.loop.call_soon_threadsafe(self._tell, appends, arrivals)

    def _write(self, appends: list[_Append]) -> list[Arrival]:
        """Append them, and return what can be passed on to readers as it was written."""
        info = self._store.describe_topic(self.partition.topic)
        log = self._store.partition(info, self.partition.partition)
        ready: list[tuple[_Append, Sequence[Frame]]] = []
        for append in appends:
            if not append.future.cancelled():
                try:
                    ready.append((append, append.batch.frames(info)))
                except HeadwaterError as error:
                    append.outcome = error
        outcomes, stretches = self._write_frames(self.partition, log, [frames for _, frames in ready])
        for (append, _), outcome in zip(ready, outcomes, strict=True):
            append.outcome = outcome
        return [Arrival(self.partition, info.uuid, stretch) for stretch in stretches]

    def _tell(self, appends: list[_Append], arrivals: list[Arrival]) -> None:
        for append in appends:
            append.complete()
        if arrivals:
            self._runtime.arrivals.bring(arrivals)
        else:
            self._runtime.arrivals.tell([self.partition])
        if self.idle:
            self._done(self)


class AppendQueues:
    """The queues of all partitions that are being written to. For the event loop."""

    def __init__(self, runtime: Runtime, store: Store, write: WriteFrames) -> None:
        self._runtime = runtime
        self._store = store
        self._write_frames = write
        self._queues: dict[TopicPartition, AppendQueue] = {}

    def append(self, partition: TopicPartition, batch: AppendBatch) -> asyncio.Future[Appended]:
        """Queue a batch for a partition."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = AppendQueue(self._runtime, self._store, self._write_frames, partition, self._forget)
            self._queues[partition] = queue
        return queue.append(batch)

    def _forget(self, queue: AppendQueue) -> None:
        # Not another queue that has taken its place: two queues at once would keep no order.
        if queue.idle and self._queues.get(queue.partition) is queue:
            del self._queues[queue.partition]
