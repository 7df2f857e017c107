"""The consumer of an event loop.

The synchronous consumer does the reading, in a thread, and one piece of work at a time. Between two looks nobody
holds a thread: the consumer waits in the event loop, for the kernel's notice of a written file.

Nothing is lost to cancellation. Records that a cancelled poll has found go back, and the next poll finds them; so do
those that an iteration had read ahead. A record that was handed out comes again only if it was not acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar, Unpack

from headwater.aio.processing import Handler, Processing, ProcessOptions
from headwater.aio.threads import Threads, Turns
from headwater.aio.waiting import Bell
from headwater.core.config import ConsumerConfig
from headwater.core.errors import StoreClosed
from headwater.streams.consumer import Consumer as SyncConsumer
from headwater.streams.consumer import ConsumerStatistics
from headwater.streams.cursor import ConsumedBatch, ConsumedRecord
from headwater.streams.pattern import TopicFilter
from headwater.streams.processing import ProcessSummary
from headwater.streams.start import Start
from headwater.streams.store import Store
from headwater.streams.topic import TopicPartition

_ITERATION = 1.0
"""An iteration waits so many seconds for records at a time."""

_Polled = TypeVar("_Polled", ConsumedRecord, ConsumedBatch)
_Result = TypeVar("_Result")


class Consumer:
    """Reads one topic or several. For one event loop: one task polls, and any may acknowledge."""

    def __init__(
        self,
        consumer: SyncConsumer,
        store: Store,
        topics: TopicFilter,
        turns: Turns,
        threads: Threads,
    ) -> None:
        self._consumer = consumer
        self._store = store
        self._topics = topics
        self._turns = turns
        self._threads = threads
        self.bell = Bell(consumer.watch, threads.loop)
        self._ahead: deque[ConsumedRecord] = deque()
        """Records that an iteration has polled and not handed out. They go back before anything else is done."""
        self._closed = False

    @property
    def consumer(self) -> SyncConsumer:
        """The synchronous consumer below: not for use beside this."""
        return self._consumer

    @property
    def config(self) -> ConsumerConfig:
        """Its configuration."""
        return self._consumer.config

    # Polling.

    async def poll(self, max_records: int | None = None, timeout: float = 0.0) -> list[ConsumedRecord]:
        """Return at most `max_records` records, waiting up to `timeout` seconds for the first; there may be none.

        A poll that is cancelled has handed out nothing: the next one returns what it had found.
        """
        return await self._polled(timeout, lambda: self._consumer.poll(max_records))

    async def poll_batches(self, timeout: float = 0.0) -> list[ConsumedBatch]:
        """The same as Arrow batches, one for each frame that was read ahead."""
        return await self._polled(timeout, self._consumer.poll_batches)

    async def _polled(self, timeout: float, poll: Callable[[], list[_Polled]]) -> list[_Polled]:
        deadline = self._threads.loop.time() + timeout
        while True:
            self.bell.silence()
            polled = await self.in_turn(poll, self._consumer.give_back)
            left = deadline - self._threads.loop.time()
            if polled or left <= 0:
                return polled
            if await self._turns.here(self.bell.listen):
                continue  # what came before has rung nothing
            await self.bell.wait(self._ready, min(left, self._consumer.patience()))

    def _ready(self) -> bool:
        return not self._turns.busy and self._consumer.ready()

    async def in_turn(
        self, work: Callable[[], _Result], unwanted: Callable[[_Result], object] | None = None
    ) -> _Result:
        """Do something with the consumer in a thread, after what was read ahead is back in its place."""
        return await self._turns.run(work, unwanted, before=self._return_read_ahead)

    def _return_read_ahead(self) -> None:
        self._consumer.give_back(self._ahead)
        self._ahead.clear()

    def __aiter__(self) -> Self:
        """Records as they come, waiting for more, until the consumer is closed."""
        return self

    async def __anext__(self) -> ConsumedRecord:
        while not self._ahead:
            try:
                self._ahead.extend(await self.poll(timeout=_ITERATION))
            except StoreClosed:
                if not self._closed:
                    raise
                raise StopAsyncIteration from None
        return self._ahead.popleft()

    async def process(self, handler: Handler, **options: Unpack[ProcessOptions]) -> ProcessSummary:
        """Call `handler`, a coroutine function or a plain one, with each record, acknowledge it, and retry what
        fails.

        SIGTERM, Ctrl-C or an event end it: it finishes the record at hand, commits and returns what it has done. So
        does being cancelled, with the record at hand left undone. A record that fails for good goes to a dead-letter
        topic or to a callback; with neither, the error is raised.
        """
        processing = await self.in_turn(
            lambda: Processing(self._consumer, self._store, self._topics, self._turns, handler, **options),
            lambda unused: unused.discard(),
        )
        return await processing.drive(self.poll)

    # Acknowledging.

    async def ack(self, done: ConsumedRecord | ConsumedBatch) -> None:
        """The record, or all of the batch, is done. That is noted in memory, and committed by the next poll."""
        await self._turns.here(lambda: self._consumer.ack(done))

    async def ack_range(self, topic: str, partition: int, start: int, end: int) -> None:
        """Everything from `start` up to, and without, `end` is done; what was not handed out yet cannot be."""
        await self._turns.here(lambda: self._consumer.ack_range(topic, partition, start, end))

    async def commit(self) -> None:
        """Make what is done the group's position now; raises StaleMember when a partition has been taken away."""
        await self._turns.run(self._consumer.commit)

    # Moving about.

    async def seek(self, topic: str, partition: int, position: Start) -> None:
        """Read on from `position`. The group's position follows with the next acknowledgements, forwards only."""
        await self.in_turn(lambda: self._consumer.seek(topic, partition, position))

    async def reset(self, position: Start) -> None:
        """Set the group's position in every assigned partition, forwards or backwards, and read on from there."""
        await self.in_turn(lambda: self._consumer.reset(position))

    async def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions, or of all, until `resume`."""
        await self.in_turn(lambda: self._consumer.pause(*partitions))

    async def resume(self, *partitions: TopicPartition) -> None:
        """Go on with these partitions, or with all."""
        await self._turns.here(lambda: self._consumer.resume(*partitions))
        self.bell.ring()

    async def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return await self.in_turn(self._consumer.assignment)

    async def lag(self) -> dict[TopicPartition, int]:
        """For each assigned partition how many records are not done."""
        return await self.in_turn(self._consumer.lag)

    async def statistics(self) -> ConsumerStatistics:
        """The consumer in numbers."""
        return await self.in_turn(self._consumer.statistics)

    # The handle.

    async def close(self) -> None:
        """Commit what is done and leave the group. Closing twice does no harm."""
        await self._close(None)

    async def _close(self, kind: type[BaseException] | None) -> None:
        self._closed = True
        self.bell.close()
        if self._threads.closed:
            self._consumer.close()  # its group has gone with the store: there is nothing that could block
        else:
            await self.in_turn(lambda: self._consumer.__exit__(kind))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(kind)
