"""Shared by the tests of asyncio: stores of every kind, a disk that waits, and cancellation at a chosen await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

import headwater as hw
from headwater.aio import Consumer, Store
from headwater.embedded.directory_store import DirectoryStore
from headwater.log.files.disk import Disk

KINDS: Final = ("memory", "directory")
PATIENCE: Final = 300.0
"""When something hangs. Nothing is expected to take that long."""

_Result = TypeVar("_Result")


def run(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run to the end, or fail after a while."""

    async def limited() -> _Result:
        async with asyncio.timeout(2 * PATIENCE):
            return await main

    return asyncio.run(limited())


def open_kind(kind: str, path: Path, **options: Any) -> hw.aio.Opening[Store]:
    return hw.aio.open("memory:" if kind == "memory" else path / "store", **options)


@asynccontextmanager
async def on_disk(path: Path, disk: Disk, **options: Any) -> AsyncIterator[Store]:
    """A directory store on a disk of the test's own."""
    async with Store(DirectoryStore(path / "store", disk=disk), **options) as store:
        yield store


async def fill(store: Store, topic: str, count: int, *, first: int = 0, partition: int | None = None) -> None:
    """Records whose values are their numbers."""
    async with store.producer(topic) as out:
        for number in range(first, first + count):
            await out.send(b"%d" % number, partition=partition)


def values(records: list[hw.ConsumedRecord]) -> list[int]:
    return [int(record.value) for record in records]


async def drain(consumer: Consumer) -> list[int]:
    """All that is there now, acknowledged."""
    found: list[int] = []
    while records := await consumer.poll():
        for record in records:
            found.append(int(record.value))
            await consumer.ack(record)
    await consumer.commit()
    return found


async def stored(store: Store, topic: str) -> list[int]:
    """Return the values in the log, sorted."""
    table = await (await store.topic(topic)).scan(columns=["value"]).read_all()
    return sorted(int(value) for value in table.column("value").to_pylist())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to become true, with the event loop running."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


async def ticks(count: int = 20) -> int:
    """Other work of the event loop; how much was done."""
    done = 0
    for _ in range(count):
        await asyncio.sleep(0.001)
        done += 1
    return done


class GatedDisk(Disk):
    """A disk whose syncs wait at a gate while it is shut."""

    def __init__(self) -> None:
        self.waiting = 0
        self._gate = threading.Event()
        self._gate.set()

    def shut(self) -> None:
        self._gate.clear()

    def open_gate(self) -> None:
        self._gate.set()

    def sync(self, fd: int) -> None:
        self.waiting += 1
        opened = self._gate.wait(PATIENCE / 3)
        self.waiting -= 1
        assert opened, "whoever should open the gate was held up by the sync"
        super().sync(fd)


When = Literal["before", "after"]


class Cancelled(Generic[_Result]):
    """Awaits something and cancels it at its `number`-th await: before what it waits for has happened, or after.

    The second is the moment when a result is there and nobody has taken it yet.
    """

    def __init__(self, what: Awaitable[_Result], number: int, when: When) -> None:
        self._what = what
        self._number = number
        self._when = when
        self.struck = False

    def __await__(self) -> Generator[Any, Any, _Result]:
        steps = self._what.__await__()
        awaits = 0
        cancel = False
        try:
            while True:
                if cancel:
                    self.struck = True
                    waited_for = steps.throw(asyncio.CancelledError())
                else:
                    waited_for = next(steps)
                cancel = awaits == self._number
                awaits += 1
                if not (cancel and self._when == "before"):
                    yield waited_for
        except StopIteration as end:
            result: _Result = end.value
            return result


async def cancelled_everywhere(act: Callable[[int, When], Awaitable[bool]]) -> int:
    """Call `act` for the first await, the second and so on, until it says that there was none left to cancel."""
    number = 0
    while True:
        struck = [await act(number, when) for when in ("before", "after")]
        if not any(struck):
            return number
        number += 1
