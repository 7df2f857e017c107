"""Row 27: many more groups, topics and connections than there are descriptors come and go, and nobody is refused.

In half of the runs a broker has few descriptors and its clients do all of it; in the others a program has a store of
its own. Each topic gets a record, each group commits a position, and each connection is used once before it is closed.
In the end everything is read back, and nearly all descriptors are free again.
"""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import headwater as hw
from headwater.embedded.directory_store import DirectoryStore
from headwater.log.files.open_files import most_handles
from headwater.v1 import broker_pb2 as pb
from tests.faults import Kind, Run, Violation, proof
from tests.support.broker import BrokerProcess

THREADS = 4
INPUT = "input"
SHARE_OF_CONNECTIONS = 8
"""Of so many descriptors, one is for a connection that stays open for a while."""
SLACK = 8
"""For what a process opens by itself meanwhile."""


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of work, and the number of descriptors for it."""

    groups: int
    topics: int
    connections: int
    limit: int


FULL = Size(groups=10_000, topics=5_000, connections=2_000, limit=1024)
SHORT = Size(groups=60, topics=30, connections=40, limit=96)


@proof(
    row=27,
    title="10,000 groups, 5,000 topics and 2,000 connections come and go under a limit of 1,024 descriptors",
    runs=20,
    quick=2,
    timeout=7200.0,
)
def descriptors(run: Run) -> Iterator[Violation]:
    """Use everything once, in an order of chance and in several threads, and look at all of it afterwards."""
    size = SHORT if run.quick else FULL
    if run.number % 2 == 0:
        yield from _behind_a_broker(run, size)
    else:
        yield from _embedded(run, size)


def _behind_a_broker(run: Run, size: Size) -> Iterator[Violation]:
    limited = ["prlimit", f"--nofile={size.limit}:{size.limit}"]
    with BrokerProcess(run.directory / "store", within=limited) as broker, hw.open(f"hw://{broker.address}") as store:
        crowd = _Connections(broker, size.limit // SHARE_OF_CONNECTIONS)
        store.create_topic(INPUT)
        before = _open_in(broker.process.pid)
        yield from _use(store, size, run.random, crowd.come)
        crowd.go()
        yield from _verify(store, size)
        # Four for each handle that has files open; the rest are those of the broker itself and of its connections.
        most = before + 4 * (size.limit // 10) + SLACK
        if _open_in(broker.process.pid) > most:
            yield Violation(Kind.CRASH, f"{_open_in(broker.process.pid)} descriptors are open, of at most {most}")


def _embedded(run: Run, size: Size) -> Iterator[Violation]:
    with _limit(size.limit), DirectoryStore(run.directory / "store") as store:
        store.create_topic(INPUT)
        before = _open_in(os.getpid())
        yield from _use(store, size, run.random, lambda: None)
        yield from _verify(store, size)
        most = before + 4 * most_handles() + SLACK
        if _open_in(os.getpid()) > most:
            yield Violation(Kind.CRASH, f"{_open_in(os.getpid())} descriptors are open, of at most {most}")


def _use(store: hw.Store, size: Size, random: Random, connect: Callable[[], None]) -> Iterator[Violation]:
    with store.producer(INPUT) as out:
        out.send(b"first")
    work: list[tuple[str, Callable[[], None]]] = [
        *((f"topic {number}", lambda number=number: _use_topic(store, number)) for number in range(size.topics)),
        *((f"group {number}", lambda number=number: _use_group(store, number)) for number in range(size.groups)),
        *((f"connection {number}", connect) for number in range(size.connections)),
    ]
    random.shuffle(work)
    refused: list[Violation] = []

    def do(one: tuple[str, Callable[[], None]]) -> None:
        what, use = one
        if refused:
            return  # one is enough to know, and others may take long to be refused
        try:
            use()
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody is to be refused
            refused.append(Violation(Kind.BLOCKED, f"{what} was refused: {error!r}"))

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(do, work))
    yield from refused


def _use_topic(store: hw.Store, number: int) -> None:
    store.create_topic(f"t{number}")
    with store.producer(f"t{number}") as out:
        out.send(b"%d" % number)


def _use_group(store: hw.Store, number: int) -> None:
    with store.consumer(INPUT, group=f"g{number}") as inbox:
        while not (found := inbox.poll(timeout=10)):
            continue
        inbox.ack(found[0])


class _Connections:
    """Connections to a broker, of which the oldest goes when there are too many."""

    def __init__(self, broker: BrokerProcess, most: int) -> None:
        self._broker = broker
        self._most = most
        self._open: deque[ExitStack] = deque()

    def come(self) -> None:
        """Make one more, and use it."""
        stack = ExitStack()
        stub = stack.enter_context(self._broker.connected())
        stub.ListTopics(pb.ListTopicsRequest(), wait_for_ready=True)
        self._open.append(stack)
        if len(self._open) > self._most:
            self._open.popleft().close()

    def go(self) -> None:
        """Close them all."""
        while self._open:
            self._open.popleft().close()


def _verify(store: hw.Store, size: Size) -> Iterator[Violation]:
    statistics = {one.name: one.records for one in store.statistics().topics}
    for number in range(size.topics):
        if statistics.get(f"t{number}") != 1:
            yield Violation(Kind.LOST_WRITE, f"t{number} has {statistics.get(f't{number}')} records")
        elif [one.value for one in store.topic(f"t{number}").recent()] != [b"%d" % number]:
            yield Violation(Kind.UNSEEN, f"t{number} has another record than was sent")
    for number in range(size.groups):
        found = [one.offset for one in store.group(f"g{number}").committed().values()]
        if found != [1]:
            yield Violation(Kind.LOST_WRITE, f"g{number} has committed 1, and is at {found}")


def _open_in(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@contextmanager
def _limit(count: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
