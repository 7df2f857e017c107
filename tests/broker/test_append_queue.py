"""The appends to a partition keep their order, whatever happens at the end of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import headwater as hw
from headwater.broker.append_queue import AppendQueues
from headwater.broker.arrivals import Arrivals
from headwater.broker.runtime import Runtime
from headwater.broker.standalone.logs import _write
from headwater.log import Appended, Frame, encode
from headwater.streams.catalog import TopicInfo
from headwater.streams.topic import TopicPartition

ORDERS = TopicPartition("orders", 0)


class Value:
    """A record to be appended, and what happens while it is."""

    def __init__(self, value: bytes, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._value = value
        self._meanwhile = meanwhile

    def frames(self, info: TopicInfo) -> Sequence[Frame]:  # noqa: ARG002 - a raw topic takes it
        self._meanwhile()
        return [encode([self._value])]


class ManualRuntime:
    """A runtime whose threads work when the test says so."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.arrivals = Arrivals()
        self.writers = self
        self.work: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], None]) -> None:
        self.work.append(work)


def test_a_queue_that_ends_twice_takes_no_other_with_it() -> None:
    async def run() -> list[bytes]:
        with hw.open("memory:") as store:
            store.create_topic("orders")
            runtime = ManualRuntime()
            queues = AppendQueues(cast("Runtime", runtime), store, _write)
            appends: list[asyncio.Future[Appended]] = []

            def append(value: bytes, meanwhile: Callable[[], None] = lambda: None) -> None:
                appends.append(queues.append(ORDERS, Value(value, meanwhile)))

            append(b"0", lambda: append(b"1"))
            runtime.work.pop()()
            runtime.loop.call_soon(append, b"2")  # between the two times that the loop hears of the queue's end
            runtime.work.pop()()
            await asyncio.sleep(0)
            append(b"3")
            while runtime.work:
                runtime.work.pop()()  # threads may begin in any order
            await asyncio.gather(*appends)
            return [record.value for record in store.topic("orders").partition(0).records()]

    assert asyncio.run(run()) == [b"0", b"1", b"2", b"3"]
