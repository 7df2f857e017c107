"""Threads for what may block: a few for each store, and nobody keeps one while waiting for something to happen.

A thread cannot be interrupted. So whoever is cancelled stops waiting at once, and its work goes on to its end; what the
work brings then is handed to someone who can put it back. Nothing is lost that way, and nothing happens twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, TypeVar

from headwater.core.errors import InvalidConfiguration, StoreClosed

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
Unwanted = Callable[[_Result], object]
"""Called with the result of work that nobody waits for any more. Called in the event loop; it must not block, but
may submit something that does, and return the future."""


class Threads:
    """The threads of one store, at most `count`. For the tasks of one event loop."""

    def __init__(self, count: int, owner: str) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1000:
            raise InvalidConfiguration(f"threads must be a whole number from 1 to 1000, not {count!r}")
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self._owner = owner
        self._pool = ThreadPoolExecutor(count, "headwater-aio")

    def submit(self, work: Callable[[], _Result]) -> asyncio.Future[_Result]:
        """Begin something; the future is not to be cancelled: the work would go on all the same."""
        if self.closed:
            raise StoreClosed(self._owner)
        lent = _lent.get()
        future = lent.submit(work) if lent is not None and lent.open else self._pool.submit(work)
        return asyncio.wrap_future(future, loop=self.loop)

    async def run(self, work: Callable[[], _Result], unwanted: Unwanted[_Result] | None = None) -> _Result:
        """Do something in a thread. If the caller is cancelled, `unwanted` gets the result instead."""
        future = self.submit(work)
        try:
            await _finished(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: _dispose(done, unwanted))
            raise
        return future.result()

    def tell(self, call: Callable[..., object], *arguments: object) -> None:
        """From a thread: have something called in the event loop."""
        with suppress(RuntimeError):  # the loop is closed: there is nobody left to be told
            self.loop.call_soon_threadsafe(call, *arguments)

    def close(self) -> None:
        """Take no more work; what has begun is finished."""
        self.closed = True
        self._pool.shutdown(wait=False)


class Turns:
    """One piece of work at a time, for what is not thread-safe. A caller waits for its turn in the event loop."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._lock = asyncio.Lock()

    @property
    def busy(self) -> bool:
        """True if someone has the turn."""
        return self._lock.locked()

    async def run(
        self,
        work: Callable[[], _Result],
        unwanted: Unwanted[_Result] | None = None,
        *,
        before: Callable[[], object] | None = None,
    ) -> _Result:
        """Do something in a thread when it is its turn. The next turn comes after it has ended, cancelled or not.

        `before` is called in the event loop, when the turn has come and before the work begins.
        """
        if self._shared():
            return await self._threads.run(work, unwanted)
        await self._lock.acquire()
        try:
            if before is not None:
                before()
            future = self._threads.submit(work)
        except BaseException:
            self._lock.release()
            raise
        try:
            await _finished(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._abandoned(done, unwanted))
            raise
        self._lock.release()
        return future.result()

    async def here(self, work: Callable[[], _Result]) -> _Result:
        """Do something right here when it is its turn: for what is short and cannot block."""
        if self._lock.locked() and not self._shared():
            async with self._lock:
                return work()
        return work()  # nobody comes between: there is no await in it

    def _abandoned(self, done: asyncio.Future[_Result], unwanted: Unwanted[_Result] | None) -> None:
        """The turn ends after what the work has brought is back in its place."""
        left: object = None
        try:
            left = _dispose(done, unwanted)
        finally:
            if isinstance(left, asyncio.Future):
                left.add_done_callback(lambda _: self._lock.release())
            else:
                self._lock.release()

    # Callbacks.

    def callback(self, call: Callable[..., object]) -> Callable[..., Any]:
        """A function or a coroutine function of the event loop, as something that the work of a turn can call.

        The work rests meanwhile. So the callback shares its turn, and has its thread for all that needs one: however
        many callbacks there are at once, none waits for a thread that another one keeps.
        """

        def called(*arguments: object) -> object:
            lent = _LentThread(self)
            asked = asyncio.run_coroutine_threadsafe(lent.until_done(call, arguments), self._threads.loop)
            asked.add_done_callback(lambda _: lent.give_back())
            lent.work()
            return asked.result()

        return called

    def _shared(self) -> bool:
        lent = _lent.get()
        return lent is not None and lent.open and lent.turns is self


class _LentThread:
    """A thread whose work rests while a callback of the event loop has the use of it."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.open = True
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    async def until_done(self, call: Callable[..., object], arguments: tuple[object, ...]) -> object:
        """The callback, in the event loop."""
        _lent.set(self)
        try:
            result = call(*arguments)
            return await result if isinstance(result, Awaitable) else result
        finally:
            self.open = False  # tasks that it has left behind find other threads

    def submit(self, work: Callable[[], _Result]) -> Future[_Result]:
        """In the event loop: have the thread do something."""
        future: Future[_Result] = Future()

        def fulfil() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is whoever waits for the future that is told
                future.set_exception(error)

        self._queue.put(fulfil)
        return future

    def work(self) -> None:
        """In the thread: do what is asked, until the callback is done."""
        while (asked := self._queue.get()) is not None:
            asked()

    def give_back(self) -> None:
        """The callback is done, or could not begin."""
        self._queue.put(None)


_lent: ContextVar[_LentThread | None] = ContextVar("_lent", default=None)


async def _finished(future: asyncio.Future[Any]) -> None:
    """Wait until the future is done. Unlike awaiting it, being cancelled here does not cancel it."""
    waiter: asyncio.Future[None] = future.get_loop().create_future()

    def wake(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(wake)
    try:
        await waiter
    finally:
        future.remove_done_callback(wake)


def _dispose(done: asyncio.Future[_Result], unwanted: Unwanted[_Result] | None) -> object:
    error = done.exception()
    if error is not None:
        _log.warning("a call that was cancelled has failed afterwards: %s", error)
        return None
    return None if unwanted is None else unwanted(done.result())
