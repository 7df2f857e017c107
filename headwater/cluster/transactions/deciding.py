"""Deciding: the coordinator of a log decides over transactions in it, and carries out what is decided.

The commit point is the decision's record, once every replica of the log that is in sync has it. From then on it is
carried out, by this coordinator or by the next leader of the log. Transactions of writers are decided in `__txn`,
and those of consumers in `__groups`, where one append sets the positions and decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol

from headwater.cluster.etcd.keys import PartitionKey
from headwater.cluster.internal import InternalLog, Record
from headwater.cluster.replication.carrier import Apply, Carrier, log_writer
from headwater.cluster.replication.replica import NotLeading
from headwater.cluster.transactions.transaction_log import (
    Bases,
    PartitionWrites,
    TransactionDecision,
    TransactionLog,
    TransactionRequest,
)
from headwater.core.errors import HeadwaterError
from headwater.core.options import MIB
from headwater.log import Appended
from headwater.streams.topic import TopicPartition

_log = logging.getLogger(__name__)
_SNAPSHOT_BYTES: Final = 8 * MIB
"""When a log has grown to this, and to twice its last snapshot, all that is known is written anew and the rest goes."""

Hold = Callable[[tuple[PartitionWrites, ...]], Awaitable[None]]
"""Makes sure that everything is staged, and stays so until it is written; raises TransactionAborted."""
Note = Callable[[bytes], None]
"""Takes a record that is to be appended."""


class Journal(Protocol):
    """The replicated log that holds a transaction log, as its coordinator writes it."""

    @property
    def good(self) -> bool:
        """True if it takes records: nothing has failed, and it is led here."""

    def write(self, work: Callable[[Note], Any]) -> asyncio.Future[Any]:
        """Do something at once, and append what it notes, all of it or nothing.

        Done when that is acknowledged, with what the work returned or raised. Fails with NotLeading when nobody knows.
        """


class Verdict(NamedTuple):
    """The outcome of a transaction: the offsets of its writes, or that its number was decided before."""

    bases: Bases
    repeated: bool = False


class _Decided(NamedTuple):
    ruling: TransactionDecision
    written: asyncio.Future[Any] | None
    """None for what a predecessor has written."""
    done: asyncio.Future[Bases]


class Decider:
    """Decides over the transactions of one log, in one epoch of its leader. For the event loop."""

    def __init__(
        self,
        key: PartitionKey,
        transaction_log: TransactionLog,
        journal: Journal,
        apply: Apply,
        hold: Hold,
        now_ns: Callable[[], int],
    ) -> None:
        """`key` is the log's. `now_ns` tells a time that does not jump, by which answers are forgotten."""
        self._transaction_log = transaction_log
        self._journal = journal
        self._hold = hold
        self._now_ns = now_ns
        self._carrier = Carrier(log_writer(*key), apply)
        self._decided: dict[int, _Decided] = {}
        self._queue: deque[_Decided] = deque()
        self._more = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # A life.

    def begin(self) -> None:
        """The transaction log is complete: carry out what is not done yet."""
        for ruling in self._transaction_log.undone():
            self._carry_out(ruling, None)
        self._do(self._pump())

    def end(self) -> None:
        """Decide no more. Callers that wait are told that nobody here knows."""
        self._carrier.end()
        for task in self._tasks:
            task.cancel()
        for decided in self._decided.values():
            if not decided.done.done():
                decided.done.set_exception(NotLeading())
                decided.done.exception()  # a caller that waits is told; where nobody does, nobody misses it
        self._decided.clear()

    def _do(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Deciding.

    async def commit(
        self,
        wanted: TransactionRequest,
        also: Callable[[], None] = lambda: None,
        check: Callable[[], None] | None = None,
    ) -> Verdict:
        """Decide, once, and return when it is carried out.

        `also` is done in the same step, unless it raises. `check` raises the same before: then nothing is held yet.
        Raises TransactionAborted when something is not staged (any more), WriterTaken, and NotLeading when nobody here
        knows what became of it: then another one is asked.
        """
        verdict = await self._known(wanted)
        if verdict is not None:
            return verdict
        if check is not None:
            await self._journal.write(lambda _: check())
        await self._hold(wanted.shares)
        verdict = await self._known(wanted)  # it may have been asked again meanwhile
        if verdict is not None:
            return verdict
        if not self._journal.good:
            raise NotLeading
        rulings: list[TransactionDecision] = []

        def decide(note: Note) -> None:
            also()
            ruling = self._transaction_log.decide(wanted, self._now_ns())
            assert ruling is not None, "a repeated one is known"
            note(ruling.pack())
            rulings.append(ruling)

        written = self._journal.write(decide)
        if not rulings:  # it was refused
            await written
            raise NotLeading
        return Verdict(await self._carry_out(rulings[0], written))

    async def _known(self, wanted: TransactionRequest) -> Verdict | None:
        """The outcome, if it was decided before: told when that can be read, not earlier."""
        number = self._transaction_log.ruling_on(wanted.request) if wanted.request else None
        if number is not None:
            return Verdict(await self._outcome(number))
        bases = self._transaction_log.answer_to(wanted.request) if wanted.request else None
        if bases is not None:
            return Verdict(bases)
        if self._transaction_log.is_repeated(wanted):
            for undone in self._transaction_log.undone_of(wanted.writer):
                await self._outcome(undone)
            return Verdict({}, repeated=True)
        return None

    async def _outcome(self, number: int) -> Bases:
        decided = self._decided.get(number)
        if decided is None:
            raise NotLeading
        return await asyncio.shield(decided.done)

    async def complete(self) -> int:
        """Return when everything is done that is decided by now; how much that was. Raises NotLeading."""
        numbers = [ruling.number for ruling in self._transaction_log.undone()]
        for number in numbers:
            if number in self._decided:
                await self._outcome(number)
        return len(numbers)

    @property
    def undone(self) -> list[TransactionDecision]:
        """The decisions that are not done."""
        return self._transaction_log.undone()

    # Carrying out.

    def _carry_out(self, ruling: TransactionDecision, written: asyncio.Future[Any] | None) -> asyncio.Future[Bases]:
        done: asyncio.Future[Bases] = asyncio.get_running_loop().create_future()
        decided = self._decided[ruling.number] = _Decided(ruling, written, done)
        self._queue.append(decided)
        self._more.set()
        return asyncio.shield(done)

    async def _pump(self) -> None:
        """Hand on what is decided, in its order: nothing before all that comes earlier is acknowledged."""
        while True:
            while not self._queue:
                self._more.clear()
                await self._more.wait()
            decided = self._queue.popleft()
            if decided.written is not None:
                try:
                    await asyncio.shield(decided.written)
                except (NotLeading, HeadwaterError, OSError):
                    return  # the log is no longer good, and this coordinator is about to end
            self._do(self._finish(decided, self._carrier.add(decided.ruling)))

    async def _finish(self, decided: _Decided, carried: asyncio.Future[Bases]) -> None:
        bases = await carried
        if self._journal.good:
            # Nobody waits for it: what is done again is known where it is done.
            self._journal.write(
                lambda note: note(self._transaction_log.finish(decided.ruling.number, bases, self._now_ns()))
            )
        self._decided.pop(decided.ruling.number, None)
        if not decided.done.done():
            decided.done.set_result(bases)


class WriterCoordinator:
    """Decides for the writers of one partition of `__txn`: the log has nothing else in it. For the event loop."""

    def __init__(self, log: InternalLog, apply: Apply, hold: Hold, now_ns: Callable[[], int]) -> None:
        self._log = log
        self._transaction_log = TransactionLog(log.epoch)
        self.decider = Decider(log.key, self._transaction_log, self, apply, hold, now_ns)
        self._enough = _SNAPSHOT_BYTES
        self._shrinking: asyncio.Task[None] | None = None

    @property
    def partition(self) -> TopicPartition:
        """The partition of `__txn`."""
        return self._log.partition

    def replay(self, records: list[Record]) -> None:
        """Take in what the log has, and begin to serve."""
        self._transaction_log.take(value for _, value in records if value is not None)
        self.decider.begin()

    def end(self) -> None:
        """Serve no more."""
        self.decider.end()
        if self._shrinking is not None:
            self._shrinking.cancel()

    @property
    def good(self) -> bool:
        return self._log.good

    def write(self, work: Callable[[Note], Any]) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        notes: list[bytes] = []
        try:
            outcome = work(notes.append)
        except HeadwaterError as error:
            done.set_exception(error)
            return done

        def written(appended: asyncio.Future[Appended]) -> None:
            if done.done():
                return
            if appended.cancelled() or appended.exception() is not None:
                done.set_exception(NotLeading())
                done.exception()  # the pump of the decider looks at it, if anybody does
            else:
                done.set_result(outcome)

        self._log.append([(b"", note) for note in notes]).add_done_callback(written)
        if self._log.bytes > self._enough and (self._shrinking is None or self._shrinking.done()):
            self._shrinking = asyncio.create_task(self._shrink())
        return done

    async def _shrink(self) -> None:
        """Write all that is known anew, and remove what was before it."""
        before = self._log.bytes
        try:
            appended = await self._log.append([(b"", self._transaction_log.snapshot())])
            await self._log.forget(appended.base_offset)
        except NotLeading:
            return
        except (HeadwaterError, OSError) as error:
            _log.error("%s/%d cannot be made smaller: %s", *self.partition, error)
            return
        self._log.bytes -= before
        self._enough = max(_SNAPSHOT_BYTES, 2 * self._log.bytes)
