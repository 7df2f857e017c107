"""Receipts that can be awaited: `offset = await receipt`."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, NamedTuple

from headwater.aio.threads import Threads
from headwater.streams.receipt import Outcome


class Outcomes:
    """The tasks that await outcomes. Threads bring outcomes; one message to the event loop wakes all tasks of one."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._awaited: dict[Outcome, list[asyncio.Future[None]]] = {}

    async def known(self, outcome: Outcome) -> None:
        """Wait until it is known."""
        if outcome.done:
            return
        waiter: asyncio.Future[None] = self._threads.loop.create_future()
        waiters = self._awaited.get(outcome)
        if waiters is not None:
            waiters.append(waiter)
        else:
            self._awaited[outcome] = [waiter]
            outcome.call_when_done(lambda: self._threads.tell(self._wake, outcome))
        await waiter

    def _wake(self, outcome: Outcome) -> None:
        for waiter in self._awaited.pop(outcome, ()):
            if not waiter.done():
                waiter.set_result(None)


class Receipt(NamedTuple):
    """One sent record. Awaiting it gives its offset once the batch that carries it is written, or raises its error.

    Being cancelled meanwhile takes nothing back: the record is on its way.
    """

    outcome: Outcome
    number: int
    outcomes: Outcomes

    @property
    def partition(self) -> int:
        """The partition that the record goes to."""
        return self.outcome.partition

    @property
    def done(self) -> bool:
        """True if the record is in the log or has failed; with `acks="none"`, if it is on its way."""
        return self.outcome.done

    @property
    def offset(self) -> int:
        """The record's offset; raises what went wrong, or StoreError while it is pending, and with `acks="none"`."""
        return self.outcome.offset_of(self.number, "await the receipt, or flush() or sync() of the producer")

    def __await__(self) -> Generator[Any, None, int]:
        yield from self.outcomes.known(self.outcome).__await__()
        return self.offset
