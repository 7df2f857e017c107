"""The producer of an event loop.

`send` appends to a buffer in memory, right where it is called: a change of threads for each record would cost fifty
times as much. A thread writes what is full or has lingered; meanwhile the next batch fills. When that is full too,
`send` waits, in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from headwater.aio.buffer import Buffer, NoRoom
from headwater.aio.receipt import Outcomes, Receipt
from headwater.aio.threads import Threads, Turns
from headwater.core.config import ProducerConfig
from headwater.core.errors import BufferFull
from headwater.streams.ports import Appender
from headwater.streams.topic import Topic

_new = tuple.__new__


class Producer:
    """Writes to one topic. For any number of tasks of one event loop; each task's records stay in their order.

    A batch that cannot be written fails as a whole: its receipts raise the error, and so does the next call.
    """

    def __init__(
        self, topic: Topic, config: ProducerConfig, threads: Threads, appender: Appender | None = None
    ) -> None:
        self._threads = threads
        self._turns = Turns(threads)
        self._outcomes = Outcomes(threads)
        self._writer: asyncio.Future[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._buffer = Buffer(topic, config, appender, self._left)
        self._breathe = False

    @property
    def config(self) -> ProducerConfig:
        """Its configuration."""
        return self._buffer.config

    @property
    def buffer(self) -> Buffer:
        """The synchronous producer below: not for use beside this."""
        return self._buffer

    # Taking records.

    async def send(
        self,
        value: Any,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Receipt:
        """Take one record; await the receipt for its offset. Most calls do not wait for anything.

        A call that is cancelled has not taken its record. A record that finds no room within `block_timeout` is not
        taken either: that raises BufferFull. An error of an earlier batch is raised here once.
        """
        if self._breathe:
            # Before the record is taken, so that a task that is cancelled here has not sent it.
            self._breathe = False
            await asyncio.sleep(0)
        buffer = self._buffer
        try:
            outcome, number = buffer.send(value, key, headers, partition=partition, timestamp=timestamp)
        except NoRoom as full:
            outcome, number = await self._send_later(full, value, key, headers, partition, timestamp)
        if buffer.due:
            self._breathe = True  # others have their turn between two batches, however fast a task sends
            self._write_due()
        return _new(Receipt, (outcome, number, self._outcomes))

    async def _send_later(
        self, full: NoRoom, value: Any, key: Any, headers: Any, partition: Any, timestamp: Any
    ) -> Any:
        deadline = self._threads.loop.time() + self.config.block_timeout
        while True:
            await self._room(full, deadline)
            try:
                return self._buffer.send(value, key, headers, partition=partition, timestamp=timestamp)
            except NoRoom as again:
                full = again

    async def _room(self, full: NoRoom, deadline: float) -> None:
        """Wait until a batch leaves the buffer."""
        self._write_due()
        waiter: asyncio.Future[None] = self._threads.loop.create_future()
        self._waiters.append(waiter)
        if not self._buffer.holds(full.batch):
            return  # it left before there was anyone to be told
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise BufferFull(
                f"the producer of {self._buffer.topic.name!r} is still writing the previous batch after "
                f"{self.config.block_timeout:g} s: send more slowly, or raise block_timeout"
            ) from None

    # Writing.

    def _write_due(self) -> None:
        """Have a thread write what is due, unless one is at it: that one comes back here."""
        if self._writer is None:
            self._writer = self._threads.submit(self._buffer.write_due)
            self._writer.add_done_callback(self._written)

    def _written(self, done: asyncio.Future[None]) -> None:
        self._writer = None
        done.result()
        self._wake()
        if self._buffer.due and not self._threads.closed:
            self._write_due()

    def _left(self) -> None:
        """Called in the thread that writes."""
        if self._waiters:
            self._threads.tell(self._wake)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def send_batch(
        self,
        data: Any,
        *,
        keys: Sequence[bytes | None] | pa.Array | None = None,
        partition: int | None = None,
        timestamps: int | Sequence[int] | pa.Array | None = None,
        atomic: bool = False,
    ) -> list[Receipt]:
        """Write many records at once, as the synchronous producer does. They are written when it returns.

        A call that is cancelled while it writes may have written some or all of them; with `atomic`, all or none.
        """
        buffer = self._buffer
        receipts = await self._turns.run(
            lambda: buffer.send_batch(data, keys=keys, partition=partition, timestamps=timestamps, atomic=atomic)
        )
        return [Receipt(*receipt, self._outcomes) for receipt in receipts]

    async def flush(self) -> None:
        """Write everything that is pending. With `sync="always"` it is durable, and visible, when this returns."""
        await self._turns.run(self._buffer.flush)

    async def sync(self) -> None:
        """Write everything that is pending and make it durable, whatever the topic's mode."""
        await self._turns.run(self._buffer.sync)

    @property
    def pending(self) -> int:
        """The number of records that are not written yet."""
        return self._buffer.pending

    async def close(self) -> None:
        """Write everything that is pending, and take no more. Closing twice does no harm."""
        if self._threads.closed:
            return  # with the store, which closes its producers first
        try:
            await self._turns.run(self._buffer.close)
        finally:
            self._wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
