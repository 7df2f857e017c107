"""Deciding: the coordinator of transactions is the leader of a partition of `__txn`, and its book is that log.

The commit point is the decision's record, once every replica that is in sync has it. From then on it is carried out,
by this coordinator or by whoever leads the log after it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from headwater.cluster.book import Bases, Book, Ruling, Share, Wanted
from headwater.cluster.carrier import Apply, Carrier, log_writer
from headwater.cluster.internal import InternalLog, Record
from headwater.cluster.replica import NotLeading
from headwater.errors import HeadwaterError
from headwater.log import Appended
from headwater.option import MIB
from headwater.store.topic import TopicPartition

_log = logging.getLogger(__name__)
_SNAPSHOT_BYTES: Final = 16 * MIB
"""When the log is larger than this, what is done is removed from it."""

Hold = Callable[[tuple[Share, ...]], Awaitable[None]]
"""Makes sure that everything is staged, and stays so until it is written; raises TransactionAborted."""


class Verdict(NamedTuple):
    """What became of what a client wanted: where it is, or that its number was decided before."""

    bases: Bases
    repeated: bool = False


class _Decided(NamedTuple):
    ruling: Ruling
    written: asyncio.Future[Appended] | None
    """None for what a predecessor has written."""
    done: asyncio.Future[Bases]


class Decider:
    """Decides for the writers of one partition of `__txn`, in one epoch of its leader. For the event loop."""

    def __init__(self, log: InternalLog, apply: Apply, hold: Hold) -> None:
        self._log = log
        self._hold = hold
        self._book = Book(log.epoch)
        self._carrier = Carrier(log_writer(*log.key), apply)
        self._decided: dict[int, _Decided] = {}
        self._queue: deque[_Decided] = deque()
        self._more = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def place(self) -> TopicPartition:
        """The partition of `__txn` that it decides in."""
        return self._log.place

    # A life.

    def replay(self, records: list[Record]) -> None:
        self._book.take(value for _, value in records if value is not None)
        for ruling in self._book.undone():
            self._carry_out(ruling, None)
        self._begin(self._pump())
        self._begin(self._keep_short())

    def end(self) -> None:
        self._carrier.end()
        for task in self._tasks:
            task.cancel()
        for one in self._decided.values():
            if not one.done.done():
                one.done.set_exception(NotLeading())
                one.done.exception()  # whoever waits is told; where nobody does, nobody misses it
        self._decided.clear()

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Deciding.

    async def commit(self, wanted: Wanted) -> Verdict:
        """Decide, once, and return when it is carried out.

        Raises TransactionAborted when something is not staged (any more), WriterTaken, and NotLeading when nobody here
        knows what became of it: then another one is asked.
        """
        found = await self._known(wanted)
        if found is not None:
            return found
        await self._hold(wanted.shares)
        found = await self._known(wanted)  # it may have been asked again meanwhile
        if found is not None:
            return found
        if not self._log.good:
            raise NotLeading
        ruling = self._book.decide(wanted, time.time_ns())
        assert ruling is not None, "a repeated one is known"
        return Verdict(await self._carry_out(ruling, self._log.append([(b"", ruling.pack())])))

    async def _known(self, wanted: Wanted) -> Verdict | None:
        """What became of it, if it was decided before: told when that can be read, not earlier."""
        number = self._book.ruling_on(wanted.request) if wanted.request else None
        if number is not None:
            return Verdict(await self._outcome(number))
        bases = self._book.answer_to(wanted.request) if wanted.request else None
        if bases is not None:
            return Verdict(bases)
        if self._book.is_repeated(wanted):
            for undone in self._book.undone_of(wanted.writer):
                await self._outcome(undone)
            return Verdict({}, repeated=True)
        return None

    async def _outcome(self, number: int) -> Bases:
        found = self._decided.get(number)
        if found is None:
            raise NotLeading
        return await asyncio.shield(found.done)

    async def settle(self) -> int:
        """Return when everything is done that is decided by now; how much that was."""
        numbers = [ruling.number for ruling in self._book.undone()]
        for number in numbers:
            if number in self._decided:
                await self._outcome(number)
        return len(numbers)

    @property
    def undone(self) -> list[Ruling]:
        """What is decided and not done."""
        return self._book.undone()

    # Carrying out.

    def _carry_out(self, ruling: Ruling, written: asyncio.Future[Appended] | None) -> asyncio.Future[Bases]:
        done: asyncio.Future[Bases] = asyncio.get_running_loop().create_future()
        one = self._decided[ruling.number] = _Decided(ruling, written, done)
        self._queue.append(one)
        self._more.set()
        return asyncio.shield(done)

    async def _pump(self) -> None:
        """Hand on what is decided, in its order: nothing before all that comes earlier is acknowledged."""
        while True:
            while not self._queue:
                self._more.clear()
                await self._more.wait()
            one = self._queue.popleft()
            if one.written is not None:
                try:
                    await one.written
                except (NotLeading, HeadwaterError, OSError):
                    return  # the log is no longer good, and this coordinator is about to end
            self._begin(self._finish(one, self._carrier.add(one.ruling)))

    async def _finish(self, one: _Decided, carried: asyncio.Future[Bases]) -> None:
        bases = await carried
        record = self._book.finish(one.ruling.number, bases, time.time_ns())
        del self._decided[one.ruling.number]
        one.done.set_result(bases)
        if self._log.good:
            self._log.append([(b"", record)])  # nobody waits for it: what is done again is known where it is done

    async def _keep_short(self) -> None:
        """Replace the log by what it amounts to, whenever it has grown."""
        kept = 0
        while True:
            await asyncio.sleep(1.0)
            if not self._log.good or self._log.bytes - kept < _SNAPSHOT_BYTES:
                continue
            snapshot = self._book.snapshot()
            try:
                appended = await self._log.append([(b"", snapshot)])
                await self._log.forget(appended.base_offset)
            except (NotLeading, HeadwaterError, OSError) as error:
                _log.warning("%s/%d could not be made shorter: %s", *self._log.place, error)
                return
            self._log.bytes = kept = len(snapshot)
