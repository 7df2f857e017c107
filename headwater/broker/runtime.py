"""The runtime of a broker: its event loop, its threads, and the waiters that news wake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from headwater.broker.arrivals import Arrivals

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Runtime:
    """Shared by the edges of a broker and by its backend. It belongs to the event loop that makes it."""

    def __init__(self, threads: int) -> None:
        """There are `threads` threads that read, and as many that write."""
        self.loop = asyncio.get_running_loop()
        self.arrivals = Arrivals()
        self.draining = asyncio.Event()
        """Set when the broker is about to stop: nothing waits any longer."""
        self.writers = ThreadPoolExecutor(threads, "headwater-broker-write")
        self.readers = ThreadPoolExecutor(threads, "headwater-broker-read")

    async def read(self, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run `work`, which looks at files, in a thread. It is not begun if its caller is cancelled before that."""
        return await asyncio.wrap_future(self.readers.submit(work, *args, **kwargs))

    async def write(self, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run `work`, which may wait for the disk, in one of the threads that write."""
        return await asyncio.wrap_future(self.writers.submit(work, *args, **kwargs))

    def close(self) -> None:
        """End the threads, after the work that they have begun."""
        self.writers.shutdown()
        self.readers.shutdown()
