"""A process that sends through a producer is stopped with a partition's lock, and later goes on.

Meanwhile the store's other producers are told who holds them up, consumers and the topic's other partitions go on;
afterwards every record is there once, at the offset that its receipt told.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import headwater as hw
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Disk
from tests.faults import Run, Violation, proof
from tests.faults.stopped_holder import HOLDERS, PATIENCE, STOPPED, Scene, stop_holders
from tests.faults.streams import STORE, TOPIC, Reader, Sender, verify

HELD = 0
ELSEWHERE = 1
STEPS = 25
"""Enough to come to the change of files at which the holder stops, and beyond."""


class StoreScene(Scene):
    """A topic with two partitions, of which the holder uses one."""

    def prepare(self, random: Random) -> None:
        self.store = DirectoryStore(self.directory / STORE, disk=self.disk)
        self.store.create_topic(TOPIC, partitions=2, segment_bytes=8 * 1024, index_interval=1024, lock_timeout=PATIENCE)
        out, elsewhere = (self.store.producer(TOPIC) for _ in range(2))
        self.sender = Sender(out, "other", self.directory, random, HELD, ["flush", "sync"])
        self.apart = Sender(elsewhere, "apart", self.directory, random, ELSEWHERE)
        self.reader = Reader(self.store, "reader", self.directory, random)
        for step in (self.append, self.append_elsewhere, self.read):
            step()

    def hold(self, disk: Disk, random: Random) -> None:
        with DirectoryStore(self.directory / STORE, disk=disk) as store, store.producer(TOPIC) as out:
            sender = Sender(out, "holder", self.directory, random, HELD, ["flush", "wait"])
            for _ in range(STEPS):
                sender.step()

    def append(self) -> None:
        self.sender.step()

    def open(self) -> None:
        with hw.open(self.directory / STORE) as store, store.producer(TOPIC) as out:
            out.send(b"", partition=HELD)
            out.flush()

    def append_elsewhere(self) -> None:
        self.apart.step()

    def read(self) -> None:
        while self.reader.poll():
            pass

    def go_on(self) -> None:
        for _ in range(2):  # what has failed, and more
            self.sender.step()

    def shut(self) -> None:
        self.store.close()

    def verify(self) -> Iterator[Violation]:
        yield from verify(self.directory)


@proof(
    row=12,
    title="a producer that holds the lock is stopped 30 s and then goes on, 8 stores in each run",
    runs=200 // HOLDERS,
    quick=1,
    timeout=STOPPED + 60,
)
def stopped_sender(run: Run) -> Iterator[Violation]:
    """Stop the senders of several stores at once, look around, and let them go on."""
    yield from stop_holders(run, StoreScene)
