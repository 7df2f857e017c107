"""Arrivals: wakes calls that wait for records, or for a change in a group. For one event loop.

A waiter says what it waits for and then looks; the part that brings something tells it here. Appends through the
broker, the transactions and the groups do so. News that come another way, by the steward or by the program that the
broker runs in, are found by one look for all waiters, every second.

An append brings along what it has written. A waiter at just that offset passes it on as it is, and reads nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from headwater.core.options import KIB, MIB
from headwater.log import Stretch

Key = tuple[str, int]
"""A topic and a partition's number; or a group's name and GROUP."""

GROUP: Final = -1
INTERVAL: Final = 1.0
"""Seconds between two looks for news that nobody has told."""
PASSED_ON: Final = 2 * MIB
"""Larger pieces are read from the file, in a thread: copying them here would hold the event loop up."""
KEPT: Final = 32 * MIB
"""The bytes of writes that are kept for waiters that have yet to come for them. More has to be read."""
SMALL: Final = 32 * KIB
"""Smaller pieces are sent, also to readers of the file: opening that takes longer than copying."""
_EXTENT_BYTES: Final = 1024
"""The most memory that the extent of a write takes."""


class Arrival(NamedTuple):
    """Something that was written to a partition of the topic with this uuid."""

    key: Key
    topic_uuid: bytes
    stretch: Stretch


class ArrivalWaiter:
    """Someone who waits. It is woken once for anything that happened since `clear`, or since `take`."""

    def __init__(self, arrivals: Arrivals, *, extents_only: bool) -> None:
        """With `extents_only` large writes are kept as extents of the log's file, without their content."""
        self._arrivals = arrivals
        self._extents_only = extents_only
        self._event = asyncio.Event()
        self._brought: list[Arrival] | None = None
        """The writes since; None if something else may have happened, or if they are too much to keep."""

    def clear(self) -> None:
        """Forget the news so far: the caller looks at everything next."""
        self._forget()
        self._brought = []
        self._event.clear()

    def rest(self) -> None:
        """Keep no news from now on: the caller looks at everything later."""
        self._forget()
        self._event.clear()

    def wake(self) -> None:
        """Something has happened."""
        self._forget()
        self._event.set()

    def bring(self, arrival: Arrival) -> None:
        """This was written."""
        if self._extents_only and arrival.stretch.extent.length >= SMALL:
            arrival = arrival._replace(stretch=arrival.stretch._replace(pieces=()))
        size = _weight(arrival)
        if self._brought is not None and size <= PASSED_ON and self._arrivals.keep(size):
            self._brought.append(arrival)
        else:
            self._forget()
        self._event.set()

    def take(self, most_bytes: int) -> list[Arrival] | None:
        """Take the first writes since, of about so many bytes; None if one has to look instead."""
        if self._brought is None:
            return None
        number = size = 0
        for arrival in self._brought:
            size += arrival.stretch.extent.length
            if number and size > most_bytes:
                break
            number += 1
        taken, self._brought = self._brought[:number], self._brought[number:]
        self._give_back(taken)
        if not self._brought:
            self._event.clear()
        return taken

    def _forget(self) -> None:
        self._give_back(self._brought or ())
        self._brought = None

    def _give_back(self, arrivals: Iterable[Arrival]) -> None:
        self._arrivals.keep(-sum(map(_weight, arrivals)))

    async def wait(self, timeout: float) -> bool:
        """Wait until something happens; whether it did within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


def _weight(arrival: Arrival) -> int:
    """About the number of bytes that it takes to keep it."""
    return arrival.stretch.extent.length if arrival.stretch.pieces else _EXTENT_BYTES


class Arrivals:
    """The waiters, by what they wait for."""

    def __init__(self) -> None:
        self._waiters: dict[Key, set[ArrivalWaiter]] = {}
        self._loop = asyncio.get_running_loop()
        self._seen: dict[Key, int] = {}
        self._kept = 0

    @contextmanager
    def expecting(self, keys: Iterable[Key], *, extents_only: bool = False) -> Iterator[ArrivalWaiter]:
        """A waiter that is woken by any of these, for the length of a block."""
        waiter = ArrivalWaiter(self, extents_only=extents_only)
        wanted = set(keys)
        for key in wanted:
            self._waiters.setdefault(key, set()).add(waiter)
        try:
            yield waiter
        finally:
            waiter.clear()
            for key in wanted:
                others = self._waiters[key]
                others.discard(waiter)
                if not others:
                    del self._waiters[key]

    def tell(self, keys: Iterable[Key]) -> None:
        """Wake the waiters for these keys."""
        for key in keys:
            for waiter in self._waiters.get(key, ()):
                waiter.wake()

    def bring(self, arrivals: Iterable[Arrival]) -> None:
        """Wake the waiters for these writes, and give them what was written."""
        for arrival in arrivals:
            for waiter in self._waiters.get(arrival.key, ()):
                waiter.bring(arrival)

    def keep(self, size: int) -> bool:
        """Keep so many bytes more for waiters, if there is room for them; a negative number gives back."""
        if self._kept + size > KEPT:
            return False
        self._kept += size
        return True

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
            states = await asyncio.to_thread(state_of, keys) if keys else {}
            self.tell(key for key, state in states.items() if self._seen.get(key) != state)
            self._seen = states
