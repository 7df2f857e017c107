"""Arrivals: wakes those who wait for records, or for a change in a group. For one event loop.

A waiter says what it waits for and then looks; whoever brings something tells it here. Appends through the broker, the
transactions and the groups do so. What came another way, by the steward or by the program that the broker runs in, is
found by one look for all waiters, every second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

Key = tuple[str, int]
"""A topic and a partition's number; or a group's name and GROUP."""

GROUP: Final = -1
INTERVAL: Final = 1.0
"""How often what nobody has told is looked for. Seconds."""


class Waiter:
    """Someone who waits. It is woken once for anything that happened since `clear`."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def clear(self) -> None:
        """What happened so far is looked at next."""
        self._event.clear()

    def wake(self) -> None:
        """Something has happened."""
        self._event.set()

    async def wait(self, timeout: float) -> bool:
        """Wait until something happens; whether it did within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Arrivals:
    """Who waits for what."""

    def __init__(self) -> None:
        self._waiters: dict[Key, set[Waiter]] = {}
        self._loop = asyncio.get_running_loop()
        self._seen: dict[Key, int] = {}

    @contextmanager
    def expecting(self, keys: Iterable[Key]) -> Iterator[Waiter]:
        """A waiter that is woken by any of these, for the length of a block."""
        waiter = Waiter()
        wanted = set(keys)
        for key in wanted:
            self._waiters.setdefault(key, set()).add(waiter)
        try:
            yield waiter
        finally:
            for key in wanted:
                others = self._waiters[key]
                others.discard(waiter)
                if not others:
                    del self._waiters[key]

    def tell(self, keys: Iterable[Key]) -> None:
        """Wake those who wait for these."""
        for key in keys:
            for waiter in self._waiters.get(key, ()):
                waiter.wake()

    def tell_all(self) -> None:
        """Wake everyone."""
        self.tell(list(self._waiters))

    def tell_from_thread(self, keys: Iterable[Key]) -> None:
        """The same as `tell`, from any thread."""
        self._loop.call_soon_threadsafe(self.tell, list(keys))

    async def look(self, state_of: Callable[[list[Key]], dict[Key, int]]) -> None:
        """Every second find out, in another thread, what has changed without anybody having told it."""
        while True:
            await asyncio.sleep(INTERVAL)
            keys = list(self._waiters)
            found = await asyncio.to_thread(state_of, keys) if keys else {}
            self.tell(key for key, state in found.items() if self._seen.get(key) != state)
            self._seen = found
