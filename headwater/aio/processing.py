"""Processing with coroutines: the rules of `headwater.streams.processing`, with a handler that runs in the event
loop.

Handlers are called one after the other. Commits and dead letters are written in threads. After a cancellation every
record is either done, dead letter included, or back in the log for the next poll.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final, Protocol, TypedDict

from headwater.aio.threads import Turns
from headwater.core.errors import StoreClosed
from headwater.streams.consumer import Consumer
from headwater.streams.cursor import ConsumedRecord
from headwater.streams.pattern import TopicFilter
from headwater.streams.processing import Processing as SyncProcessing
from headwater.streams.processing import ProcessSummary
from headwater.streams.stopping import Stop, stop_on_signals
from headwater.streams.store import Store

_log = logging.getLogger(__name__)

Handler = Callable[[Any], object]
"""Called with a record, or with a list of records. A result that can be awaited is awaited; an exception is a
failure."""

_SLICE: Final = 0.1
"""The seconds of the pause between two attempts for which a request to stop may go unnoticed."""


class Poll(Protocol):
    """Takes records: `Consumer.poll`."""

    async def __call__(self, max_records: int | None = None, timeout: float = 0.0) -> list[ConsumedRecord]: ...


class ProcessOptions(TypedDict, total=False):
    """The options of `Consumer.process`: as in `headwater.ProcessOptions`, with functions of the event loop."""

    batch: bool
    batch_size: int
    retries: int
    retry_delay: float
    auto_ack: bool
    poll_interval: float
    dead_letter: str
    on_error: Callable[[ConsumedRecord, Exception], object]
    """A function or a coroutine function."""
    on_batch: Callable[[Sequence[ConsumedRecord]], object]
    """A function or a coroutine function."""
    stop: asyncio.Event
    """Ends the processing when it is set, after the record at hand."""


class _LeftForLater(Exception):
    """Someone asked to stop between two attempts, or the record has become another's."""


class Processing(SyncProcessing):
    """One call of `Consumer.process`. Records that are done are acknowledged in the consumer's next turn."""

    def __init__(
        self,
        consumer: Consumer,
        store: Store,
        topics: TopicFilter,
        turns: Turns,
        handler: Handler,
        *,
        on_error: Callable[[ConsumedRecord, Exception], object] | None = None,
        on_batch: Callable[[Sequence[ConsumedRecord]], object] | None = None,
        stop: asyncio.Event | None = None,
        **options: Any,
    ) -> None:
        # The rules tell of a record that is given up in the thread that writes dead letters: it is passed on later.
        super().__init__(consumer, store, topics, handler, on_error=None if on_error is None else self._note, **options)
        self._turns = turns
        self._told_of_errors = on_error
        self._told_of_batches = on_batch
        self._asked = stop
        self._done: list[tuple[list[ConsumedRecord], bool]] = []
        """The records that are done, and whether the handler has succeeded with them."""
        self._given_up: list[tuple[ConsumedRecord, Exception]] = []

    async def drive(self, poll: Poll) -> ProcessSummary:
        """Handle records until someone asks to stop."""
        try:
            with stop_on_signals() as stop:
                while not self._stopping(stop):
                    records = await poll(self._batch_size, self._poll_interval)
                    if records:
                        await self._take_all(records, stop)
                return ProcessSummary(**asdict(self._counts), signal=stop.signal)
        finally:
            with suppress(StoreClosed):  # then it has closed the producer too
                await self._turns.run(self.discard)

    def discard(self) -> None:
        """Close what it has opened."""
        if self._producer is not None:
            self._producer.close()

    def _stopping(self, stop: Stop) -> bool:
        return bool(stop) or (self._asked is not None and self._asked.is_set())

    async def _take_all(self, records: list[ConsumedRecord], stop: Stop) -> None:
        self._alive_at = time.monotonic()
        self._counts.batches += 1
        self._waiting = [records] if self._batch else [[record] for record in records]
        try:
            while self._waiting and not self._stopping(stop):
                await self._keep_alive()
                if self._waiting:
                    await self._attempt(self._waiting[0], stop)
        except _LeftForLater:
            pass
        finally:
            whole = not self._waiting
            await self._turns.run(self._conclude)
        if whole and self._told_of_batches is not None:
            await _awaited(self._told_of_batches(records))

    async def _attempt(self, piece: list[ConsumedRecord], stop: Stop) -> None:
        """Call the handler until it succeeds, at most so many times; then give the records up."""
        attempt = 1
        while (error := await self._failure(piece)) is not None:
            if attempt == self._attempts:
                await self._abandon(piece, error)
                return
            _log.warning("%s/%d offset %d: attempt %d failed: %r", *piece[0][:3], attempt, error)
            await self._rest(stop)
            attempt += 1
            self._counts.retries += 1
        self._counts.handled += len(piece)
        self._done.append((self._waiting.pop(0), True))

    async def _failure(self, piece: list[ConsumedRecord]) -> Exception | None:
        try:
            await _awaited(self._handler(piece if self._batch else piece[0]))
        except Exception as error:  # noqa: BLE001 - the handler is not ours: anything can come out of it
            return error
        return None

    async def _abandon(self, piece: list[ConsumedRecord], error: Exception) -> None:
        await self._turns.run(lambda: self._bury(piece, error))
        if self._told_of_errors is not None:
            while self._given_up:
                await _awaited(self._told_of_errors(*self._given_up.pop(0)))
            self._done.append((self._waiting.pop(0), False))

    async def _rest(self, stop: Stop) -> None:
        """Wait before the next attempt, and keep the group told that this member lives."""
        end = time.monotonic() + self._retry_delay
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _SLICE))
            if self._stopping(stop) or not await self._keep_alive():
                raise _LeftForLater

    async def _keep_alive(self) -> bool:
        """Return whether the piece at hand is still there. Most calls change no thread, for news is rare."""
        if time.monotonic() - self._alive_at < self._consumer.config.refresh_interval:
            return True
        return await self._turns.run(self._report)

    # In threads, in the consumer's turns: they finish even if nobody waits for them any more.

    def _bury(self, piece: list[ConsumedRecord], error: Exception) -> None:
        self._give_up(piece, error, self._attempts)
        if self._told_of_errors is None:
            self._done.append((self._waiting.pop(0), False))

    def _note(self, record: ConsumedRecord, error: Exception) -> None:
        self._given_up.append((record, error))

    def _report(self) -> bool:
        self._acknowledge_done()
        return self._stay_alive()

    def _conclude(self) -> None:
        self._acknowledge_done()
        self._commit_done()

    def _acknowledge_done(self) -> None:
        while self._done:
            piece, handled = self._done.pop(0)
            self._settle(piece, handled=handled)


async def _awaited(result: object) -> None:
    if isinstance(result, Awaitable):
        await result
