"""The lock's holder is stopped and later goes on: it cannot be fenced, and must not be.

Meanwhile appenders are told who holds them up, readers and other partitions go on; afterwards nothing is lost and
nothing is there twice.
"""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from headwater.core.config import PartitionConfig
from headwater.core.errors import PartitionBusy
from headwater.log import DirectoryPartition, Disk
from tests.faults import Kind, Run, Violation, proof
from tests.faults.children import Child, SignallingDisk, TimedDisk, failures
from tests.faults.journal import Follower, Producer, verify
from tests.support.patience import Stopwatch

HOLDERS = 8
"""So many are stopped at once, each in a partition of its own: a stop of 30 s costs the same for all of them."""
STOPPED = 30.0
STOPPED_QUICK = 1.2
PATIENCE = 0.5
PROMPTLY = 1.0
TO_THE_END = 60.0
CONFIG = PartitionConfig(sync="always", segment_bytes=8 * 1024, index_interval=1024, lock_timeout=PATIENCE)
CHANGES = 60
STEPS = 40
"""The holder stops at one of its first changes of files and makes more than that before it ends."""


class Scene(ABC):
    """A log, a process that holds its lock and is stopped, and another process that uses the same and a second log."""

    def __init__(self, directory: Path, random: Random) -> None:
        self.directory = directory
        self.disk = TimedDisk()
        directory.mkdir()
        self.prepare(random)
        seed = random.random()
        self.holder = Child(lambda: self._be_stopped(Random(seed)), directory / "holder.error")

    def _be_stopped(self, random: Random) -> None:
        when = random.choice(("before", "within", "after"))
        self.hold(SignallingDisk(random.randint(1, CHANGES), when, signal.SIGSTOP, lambda: None), random)

    @abstractmethod
    def prepare(self, random: Random) -> None:
        """Open what the other process uses, before the holder is there."""

    @abstractmethod
    def hold(self, disk: Disk, random: Random) -> None:
        """In the holder: append, be stopped by the disk on the way, append on, and end."""

    @abstractmethod
    def append(self) -> None:
        """Append where the holder does."""

    @abstractmethod
    def open(self) -> None:
        """Open what the holder has open, once more, and change something."""

    @abstractmethod
    def append_elsewhere(self) -> None:
        """Append to another partition."""

    @abstractmethod
    def read(self) -> None:
        """Read all that there is."""

    @abstractmethod
    def go_on(self) -> None:
        """After all that: send again what has failed, and more."""

    @abstractmethod
    def shut(self) -> None:
        """Close everything."""

    @abstractmethod
    def verify(self) -> Iterator[Violation]:
        """Hold the journals against the logs."""

    def during(self) -> list[Violation]:
        """Yield what is wrong while the holder is stopped."""
        return [
            *self._busy("an append", self.append),
            *self._busy("a change by a new handle", self.open),
            *self._prompt("an append to another partition", self.append_elsewhere),
            *self._prompt("a read", self.read),
        ]

    def _busy(self, what: str, action: Callable[[], None]) -> Iterator[Violation]:
        stopwatch = Stopwatch()
        try:
            action()
            yield Violation(Kind.FALSE_SUCCESS, f"{what} went through although another process holds the lock")
        except PartitionBusy as busy:
            if busy.pid != self.holder.pid:
                yield Violation(Kind.BLOCKED, f"{what} was told that {busy.pid} holds the lock: {self.holder.pid} does")
        took = stopwatch.seconds()
        if took > PATIENCE + PROMPTLY:
            yield Violation(Kind.BLOCKED, f"{what} took {took:.2f} s to find the lock taken: {PATIENCE} is its timeout")

    def _prompt(self, what: str, action: Callable[[], None]) -> Iterator[Violation]:
        took = self.disk.time_without(action)
        if took > PROMPTLY:
            yield Violation(Kind.BLOCKED, f"{what} took {took:.2f} s while the holder was stopped")

    def after(self) -> Iterator[Violation]:
        """Wait for the resumed holder and look at everything."""
        if not self.holder.ended_within(TO_THE_END):
            yield self.holder.hangs("the holder did not end after it was resumed")
        self.go_on()
        self.read()
        self.close()
        yield from failures(self.directory)
        yield from self.verify()

    def close(self) -> None:
        """Leave no process and no descriptor behind."""
        self.holder.kill()
        self.shut()


class LogScene(Scene):
    """Two partitions of the engine."""

    def prepare(self, random: Random) -> None:
        self.partition = DirectoryPartition(self.directory / "log", CONFIG, disk=self.disk)
        self.elsewhere = DirectoryPartition(self.directory / "elsewhere", CONFIG, disk=self.disk)
        self.producer = Producer(self.partition, "other", self.directory, random)
        self.producer.step()
        (self.directory / "apart").mkdir()
        self.apart = Producer(self.elsewhere, "apart", self.directory / "apart", random)
        self.follower = Follower(self.partition, "reader", self.directory, random)

    def hold(self, disk: Disk, random: Random) -> None:
        with DirectoryPartition(self.directory / "log", CONFIG, disk=disk) as partition:
            producer = Producer(partition, "holder", self.directory, random)
            for _ in range(STEPS):
                producer.step()

    def append(self) -> None:
        self.producer.step()

    def open(self) -> None:
        with DirectoryPartition(self.directory / "log", CONFIG) as partition:
            partition.roll()

    def append_elsewhere(self) -> None:
        self.apart.step()

    def read(self) -> None:
        while self.follower.poll():
            pass

    def go_on(self) -> None:
        self.producer.resume()
        self.producer.step()

    def shut(self) -> None:
        self.partition.close()
        self.elsewhere.close()

    def verify(self) -> Iterator[Violation]:
        yield from verify(self.directory / "log", self.directory)
        yield from verify(self.directory / "elsewhere", self.directory / "apart")


@proof(
    row=12,
    title="the lock's holder is stopped 30 s and then goes on, 8 holders in each run",
    runs=200 // HOLDERS,
    quick=1,
    timeout=STOPPED + 60,
)
def stopped_holder(run: Run) -> Iterator[Violation]:
    """Stop the holders of several partitions at once, look around, and let them go on."""
    yield from stop_holders(run, LogScene)


def stop_holders(run: Run, scene: Callable[[Path, Random], Scene]) -> Iterator[Violation]:
    """Stop the holders in several scenes at once, look around, and let them go on."""
    scenes = [scene(run.directory / str(number), Random(run.random.random())) for number in range(HOLDERS)]
    try:
        for one in scenes:
            if not one.holder.wait_stopped():
                yield Violation(Kind.CRASH, f"the holder of {one.directory.name} ended before it was stopped")
        began = time.monotonic()
        with ThreadPoolExecutor(HOLDERS) as pool:
            for found in pool.map(Scene.during, scenes):
                yield from found
        time.sleep(max(0.0, (STOPPED_QUICK if run.quick else STOPPED) - (time.monotonic() - began)))
        for one in scenes:
            one.holder.send(signal.SIGCONT)
        for one in scenes:
            yield from one.after()
    finally:
        for one in scenes:
            one.close()
