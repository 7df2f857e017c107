"""Embedded streams beside a list, SQLite and Redis: sending, sharing the work, and from one process to another.

The cost of a producer or a consumer is measured as its caller's loop sees it: the sends that have to write a batch are
in the figure. Each row names how durable its side is. Peers get what their manuals advise for speed: pipelines and
batches of a thousand, and the fast parser for redis-py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import monotonic_ns, perf_counter, perf_counter_ns, sleep
from typing import Any, Final

import headwater as hw
from benchmarks.measure import Measure, compare
from benchmarks.report import Row, at_least, at_most
from benchmarks.servers import redis_server
from benchmarks.transfer import PATIENCE, answer, installed, spawn, transfer

VALUE: Final = os.urandom(100)
AT_A_TIME: Final = 1000
"""Records in a pipeline, in a call of `send_batch` and in a poll, on either side."""
PROCESSES: Final = 4
LATENCY_GOAL_MS: Final = 2
COMMIT_GOAL_MICROSECONDS: Final = 10


def run(quick: bool, scratch: Path) -> Iterator[Row]:
    """Measure them all."""
    repeats, of_processes = (2, 1) if quick else (15, 5)
    yield _send(scratch, 20_000 if quick else 300_000, repeats)
    yield _send_without_flushes(scratch, 50_000, repeats)
    yield _slowest_sends(scratch, 20_000 if quick else 2_000_000)
    yield _processes(scratch, 20_000 if quick else 1_000_000, of_processes)
    yield _commit(scratch, 500 if quick else 20_000, repeats)
    yield beside_persist_queue(scratch, 10_000 if quick else 300_000, 100 if quick else 1_000, of_processes)
    yield from beside_redis(scratch, 10_000 if quick else 500_000, 2_000 if quick else 100_000, of_processes)
    yield _latency(scratch, 100 if quick else 1_000)


# Sending.


class _LockedList:
    """The least that a thread-safe `send` could be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[bytes] = []

    def send(self, value: bytes) -> None:
        with self._lock:
            self._items.append(value)


def _send(scratch: Path, number: int, repeats: int) -> Row:
    """Measure sends in a loop. Some of them write and sync the batch that they have filled."""

    def ours() -> float:
        with _store(scratch) as store:
            store.create_topic("orders")
            with store.producer("orders") as out:
                return _seconds_for_each(out.send, number)

    return _beside_a_list('send 100 B, flushes included (sync="always")', ours, number, repeats)


def _send_without_flushes(scratch: Path, number: int, repeats: int) -> Row:
    def ours() -> float:
        with _store(scratch) as store:
            store.create_topic("orders")
            with store.producer("orders", linger=3600.0, batch_records=2 * number, batch_bytes=1 << 30) as out:
                return _seconds_for_each(out.send, number)

    return _beside_a_list("send 100 B, into the buffer only", ours, number, repeats)


def _beside_a_list(work: str, ours: Measure, number: int, repeats: int) -> Row:
    mean, peer_mean = compare(ours, lambda: _seconds_for_each(_LockedList().send, number), repeats=repeats)
    assert peer_mean is not None
    return Row(
        work=work,
        unit="µs",
        ours=mean * 1e6,
        peer_name="a method that takes a lock and appends to a list",
        peer=peer_mean * 1e6,
        goal=at_most(4),
    )


def _seconds_for_each(send: Callable[[bytes], object], number: int) -> float:
    value = VALUE
    started = perf_counter()
    for _ in range(number):
        send(value)
    return (perf_counter() - started) / number


def _slowest_sends(scratch: Path, number: int) -> Row:
    """Each send by itself. The clock's own cost is in both figures."""
    with _store(scratch) as store:
        store.create_topic("orders")
        with store.producer("orders") as out:
            _seconds_for_each(out.send, number // 10)
            send, clock, value = out.send, perf_counter_ns, VALUE
            taken = []
            for _ in range(number):
                started = clock()
                send(value)
                taken.append(clock() - started)
    cuts = quantiles(taken, n=100)
    return Row(
        work="send 100 B: the 99th percentile",
        unit="µs",
        ours=cuts[98] / 1e3,
        peer_name="its median",
        peer=cuts[49] / 1e3,
        goal=at_most(10),
    )


# Several producing processes.


def _processes(scratch: Path, number: int, repeats: int) -> Row:
    together, alone = compare(
        partial(_send_from_processes, scratch, number, PROCESSES),
        partial(_send_from_processes, scratch, number, 1),
        repeats=repeats,
    )
    assert alone is not None
    return Row(
        work=f'send 100 B from {PROCESSES} processes, a partition each (sync="always")',
        unit="records/s",
        ours=1 / together,
        peer_name="the same from 1 process",
        peer=1 / alone,
        goal=at_least(1.5),
    )


def _send_from_processes(scratch: Path, number: int, processes: int) -> float:
    """The seconds for each of so many records, however many processes share them."""
    ready, done = spawn.Barrier(processes + 1), spawn.Barrier(processes + 1)
    with _store(scratch) as store:
        store.create_topic("orders", partitions=processes)
        workers = [
            spawn.Process(target=_send_share, args=(str(store), partition, number // processes, ready, done))
            for partition in range(processes)
        ]
        for worker in workers:
            worker.start()
        ready.wait(PATIENCE)
        started = perf_counter()
        done.wait(PATIENCE * 10)
        seconds = perf_counter() - started
        for worker in workers:
            worker.join()
    return seconds / number


def _send_share(directory: str, partition: int, number: int, ready: Barrier, done: Barrier) -> None:
    with hw.open(directory) as store, store.producer("orders") as out:
        ready.wait(PATIENCE)
        for _ in range(number):
            out.send(VALUE, partition=partition)
        out.flush()
        done.wait(PATIENCE * 10)


# Committing.


def _commit(scratch: Path, number: int, repeats: int) -> Row:
    """One position after the other, each visible to every process when `commit` returns."""

    def ours() -> float:
        with _store(scratch) as store:
            store.create_topic("orders")
            with store.producer("orders") as out:
                out.send_batch([VALUE] * number)
            with store.consumer("orders", group="billing") as inbox:
                polled = inbox.poll(max_records=number)
                assert len(polled) == number
                started = perf_counter()
                for record in polled:
                    inbox.ack(record)
                    inbox.commit()
                return (perf_counter() - started) / number

    mean, _ = compare(ours, None, repeats=repeats)
    return Row(
        work="acknowledge a record and commit the group's position",
        unit="µs",
        ours=mean * 1e6,
        peer_name="the goal",
        peer=COMMIT_GOAL_MICROSECONDS,
        goal=at_most(1),
    )


# From one process to another.


def beside_persist_queue(scratch: Path, number: int, peer_number: int, repeats: int) -> Row:
    """Durable on both sides: there each call by itself, here each batch before it can be read."""
    peer = partial(_through_persist_queue, scratch, peer_number) if installed("persistqueue") else None
    seconds, peer_seconds = compare(partial(_through_headwater, scratch, number, "always"), peer, repeats=repeats)
    return Row(
        work='100 B records to another process by send, acknowledged (sync="always")',
        unit="records/s",
        ours=1 / seconds,
        peer_name="persist-queue's SQLite ack queue, each call committed and synced",
        peer=None if peer_seconds is None else 1 / peer_seconds,
        goal=at_least(20),
    )


def beside_redis(scratch: Path, number: int, peer_number: int, repeats: int) -> Iterator[Row]:
    """Both sides acknowledge at once and sync each second."""
    peer = partial(_through_redis, scratch, peer_number) if installed("redis", "redis-server") else None
    for way, goal in (("send", at_least(6)), (f"send_batch of {AT_A_TIME}", at_least(10))):
        ours = partial(_through_headwater, scratch, number, 1.0, by_batch=way != "send")
        seconds, peer_seconds = compare(ours, peer, repeats=repeats)
        yield Row(
            work=f"100 B records to another process by {way}, acknowledged (synced each second)",
            unit="records/s",
            ours=1 / seconds,
            peer_name=f"a Redis stream, pipelines of {AT_A_TIME}, appendfsync everysec",
            peer=None if peer_seconds is None else 1 / peer_seconds,
            goal=goal,
        )


def _through_headwater(scratch: Path, number: int, sync: Any, *, by_batch: bool = False) -> float:
    with _store(scratch) as store:
        store.create_topic("orders", sync=sync)
        with store.producer("orders") as out:

            def produce() -> None:
                if by_batch:
                    batch = [VALUE] * AT_A_TIME
                    for _ in range(number // AT_A_TIME):
                        out.send_batch(batch)
                else:
                    for _ in range(number):
                        out.send(VALUE)
                out.flush()

            return transfer(number, produce, partial(_consume, str(store), number))


def _consume(directory: str, number: int, tell: Connection) -> None:
    with hw.open(directory) as store:
        with store.consumer("orders", group="billing", auto_ack=True) as inbox:
            inbox.poll()
            tell.send("ready")
            left = number
            while left:
                left -= len(inbox.poll(AT_A_TIME, timeout=1.0))
        tell.send("done")


def _through_persist_queue(scratch: Path, number: int) -> float:
    from persistqueue import SQLiteAckQueue

    with TemporaryDirectory(dir=scratch) as directory, closing(SQLiteAckQueue(directory)) as queue:

        def produce() -> None:
            for _ in range(number):
                queue.put(VALUE)

        return transfer(number, produce, partial(_consume_persist_queue, directory, number))


def _consume_persist_queue(directory: str, number: int, tell: Connection) -> None:
    from persistqueue import Empty, SQLiteAckQueue

    with closing(SQLiteAckQueue(directory)) as queue:
        tell.send("ready")
        last = None
        left = number
        while left:
            try:
                # By the item before: without it, each call walks over all that was acknowledged.
                item = queue.get(block=False, id=last, next_in_order=last is not None, raw=True)
            except Empty:
                sleep(0.0005)  # its own way to wait notices nothing of another process
                continue
            last = item["pqid"]
            queue.ack(id=last)
            left -= 1
        tell.send("done")


def _through_redis(scratch: Path, number: int) -> float:
    from redis import Redis

    with redis_server(scratch) as port, Redis(port=port) as client:
        client.xgroup_create("orders", "billing", mkstream=True)

        def produce() -> None:
            pipeline = client.pipeline(transaction=False)
            for _ in range(number // AT_A_TIME):
                for _ in range(AT_A_TIME):
                    pipeline.xadd("orders", {b"value": VALUE})
                pipeline.execute()

        return transfer(number, produce, partial(_consume_redis, port, number))


def _consume_redis(port: int, number: int, tell: Connection) -> None:
    from redis import Redis

    with Redis(port=port) as client:
        client.ping()
        tell.send("ready")
        left = number
        while left:
            streams: Any = client.xreadgroup("billing", "one", {"orders": ">"}, count=AT_A_TIME, block=1000)
            for _, entries in streams:
                client.xack("orders", "billing", *(entry for entry, _ in entries))
                left -= len(entries)
        tell.send("done")


# How soon a record is there.


def _latency(scratch: Path, number: int) -> Row:
    """From `sync` returning here to `poll` returning there, which was waiting."""
    receiver, sender = spawn.Pipe(duplex=False)
    taken = []
    with _store(scratch) as store:
        store.create_topic("orders")
        consumer = spawn.Process(target=_tell_arrivals, args=(str(store), number, sender))
        consumer.start()
        answer(receiver)
        with store.producer("orders") as out:
            for _ in range(number):
                sleep(0.002)  # the other process waits again by then
                out.send(VALUE)
                out.sync()
                synced = monotonic_ns()
                taken.append(answer(receiver) - synced)
        consumer.join()
    return Row(
        work="from sync() returning to poll() returning the record in another process: median",
        unit="ms",
        # A record is visible a little before sync returns: a reader that is faster still has waited for nothing.
        ours=max(median(taken) / 1e6, 0.001),
        peer_name="the goal",
        peer=LATENCY_GOAL_MS,
        goal=at_most(1),
    )


def _tell_arrivals(directory: str, number: int, tell: Connection) -> None:
    with hw.open(directory) as store, store.consumer("orders", group="billing", auto_ack=True) as inbox:
        inbox.poll()
        tell.send("ready")
        for _ in range(number):
            while not inbox.poll(timeout=1.0):
                pass
            tell.send(monotonic_ns())


@contextmanager
def _store(scratch: Path) -> Iterator[hw.Store]:
    with TemporaryDirectory(dir=scratch) as directory, hw.open(directory) as store:
        yield store
