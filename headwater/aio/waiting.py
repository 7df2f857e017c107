"""Waiting in an event loop: the kernel's notice of a written file wakes the consumer that reads it. No thread waits.

Where there are no notices, and in memory, the consumer is asked in short intervals that grow while nothing comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from headwater.streams.ports import Wakeup

_SHORTEST: Final = 0.0005
_LONGEST: Final = 0.05
_SAFETY: Final = 1.0
"""Even a watched file is looked at this often."""


class Bell:
    """Wakes one consumer. It is silenced before the consumer looks, so what is written after the look rings it."""

    def __init__(self, watch: Wakeup, loop: asyncio.AbstractEventLoop) -> None:
        self._watch = watch
        self._loop = loop
        self._rung = asyncio.Event()
        self._fd = -1
        self._pause = _SHORTEST
        self._closed = False

    def ring(self) -> None:
        """There may be a reason to look."""
        self._rung.set()

    def silence(self) -> None:
        """Forget the notices so far: what they tell is looked at next."""
        self._rung.clear()

    def listen(self) -> bool:
        """Be rung by notices, if there are any. Whether that is new: then what is there has to be looked at again."""
        fd = self._watch.fileno() if self._watch.complete and not self._closed else -1
        if fd == self._fd:
            return False
        self._stop_listening()
        if fd >= 0:
            self._loop.add_reader(fd, self._read)
        self._fd = fd
        return True

    def _read(self) -> None:
        if self._watch.drain():
            self.ring()

    def _stop_listening(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._fd = -1

    async def wait(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until it is rung, for so many seconds at most. Without notices, until `ready()`."""
        if self._fd >= 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, _SAFETY)):
                    await self._rung.wait()
            return
        deadline = self._loop.time() + seconds
        while not self._rung.is_set() and (left := deadline - self._loop.time()) > 0:
            await asyncio.sleep(min(left, self._pause))
            if ready():
                self._pause = _SHORTEST
                return
            self._pause = min(self._pause * 1.5, _LONGEST)

    def close(self) -> None:
        """Be rung no more; who waits is woken. Before the watch is closed, whose descriptor it uses."""
        self._closed = True
        self._stop_listening()
        self.ring()
