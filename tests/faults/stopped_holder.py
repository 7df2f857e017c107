"""The lock's holder is stopped and later goes on: it cannot be fenced, and must not be.

Meanwhile appenders are told who holds them up, readers and other partitions go on; afterwards nothing is lost and
nothing is there twice.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from headwater.config import PartitionConfig
from headwater.errors import PartitionBusy
from headwater.log import DirectoryPartition
from tests.faults import Kind, Run, Violation, proof
from tests.faults.children import Child, SignallingDisk, failures
from tests.faults.journal import Follower, Producer, verify

HOLDERS = 8
"""So many are stopped at once, each in a partition of its own: a stop of 30 s costs the same for all of them."""
STOPPED = 30.0
STOPPED_QUICK = 1.2
PATIENCE = 0.5
PROMPTLY = 1.0
CONFIG = PartitionConfig(sync="always", segment_bytes=8 * 1024, index_interval=1024, lock_timeout=PATIENCE)
CHANGES = 60
STEPS = 40
"""The holder stops at one of its first changes of files and makes more than that before it ends."""


def _hold(directory: Path, random: Random) -> None:
    """Append, be stopped once on the way, and append on."""
    when = random.choice(("before", "within", "after"))
    disk = SignallingDisk(random.randint(1, CHANGES), when, signal.SIGSTOP, lambda: None)
    with DirectoryPartition(directory / "log", CONFIG, disk=disk) as partition:
        producer = Producer(partition, "holder", directory, random)
        for _ in range(STEPS):
            producer.step()


class Scene:
    """A partition, a holder of its lock, and another process's handles on it and on a second partition."""

    def __init__(self, directory: Path, random: Random) -> None:
        self.directory = directory
        directory.mkdir()
        self.partition = DirectoryPartition(directory / "log", CONFIG)
        self.elsewhere = DirectoryPartition(directory / "elsewhere", CONFIG)
        self.producer = Producer(self.partition, "other", directory, random)
        self.producer.step()
        (directory / "apart").mkdir()
        self.apart = Producer(self.elsewhere, "apart", directory / "apart", random)
        self.follower = Follower(self.partition, "reader", directory, random)
        seed = random.random()
        self.holder = Child(lambda: _hold(directory, Random(seed)), directory / "holder.error")

    def during(self) -> list[Violation]:
        """What is wrong while the holder is stopped."""
        return [
            *self._busy("an append", self.producer.step),
            *self._busy("an opening", lambda: DirectoryPartition(self.directory / "log", CONFIG).close()),
            *_prompt("an append to another partition", self.apart.step),
            *_prompt("a read", self._read),
        ]

    def _read(self) -> None:
        while self.follower.poll():
            pass

    def _busy(self, what: str, action: Callable[[], None]) -> Iterator[Violation]:
        began = time.monotonic()
        try:
            action()
            yield Violation(Kind.FALSE_SUCCESS, f"{what} went through although another process holds the lock")
        except PartitionBusy as busy:
            if busy.pid != self.holder.pid:
                yield Violation(Kind.BLOCKED, f"{what} was told that {busy.pid} holds the lock: {self.holder.pid} does")
        took = time.monotonic() - began
        if took > PATIENCE + PROMPTLY:
            yield Violation(Kind.BLOCKED, f"{what} took {took:.2f} s to find the lock taken: {PATIENCE} is its timeout")

    def after(self) -> Iterator[Violation]:
        """Let the holder go on and look at everything."""
        self.holder.send(signal.SIGCONT)
        if not self.holder.ended_within(10):
            yield Violation(Kind.BLOCKED, "the holder did not end after it was resumed")
        self.producer.resume()
        self.producer.step()
        self._read()
        self.close()
        yield from failures(self.directory)
        yield from verify(self.directory / "log", self.directory)
        yield from verify(self.directory / "elsewhere", self.directory / "apart")

    def close(self) -> None:
        """Leave no process and no descriptor behind."""
        self.holder.kill()
        self.partition.close()
        self.elsewhere.close()


def _prompt(what: str, action: Callable[[], None]) -> Iterator[Violation]:
    began = time.monotonic()
    action()
    took = time.monotonic() - began
    if took > PROMPTLY:
        yield Violation(Kind.BLOCKED, f"{what} took {took:.2f} s while the holder was stopped")


@proof(
    row=12,
    title="the lock's holder is stopped 30 s and then goes on, 8 holders in each run",
    runs=200 // HOLDERS,
    quick=1,
    timeout=STOPPED + 60,
)
def stopped_holder(run: Run) -> Iterator[Violation]:
    """Stop the holders of several partitions at once, look around, and let them go on."""
    scenes = [Scene(run.directory / str(number), Random(run.random.random())) for number in range(HOLDERS)]
    try:
        for scene in scenes:
            if not scene.holder.wait_stopped():
                yield Violation(Kind.CRASH, f"the holder of {scene.directory.name} ended before it was stopped")
        began = time.monotonic()
        with ThreadPoolExecutor(HOLDERS) as pool:
            for found in pool.map(Scene.during, scenes):
                yield from found
        time.sleep(max(0.0, (STOPPED_QUICK if run.quick else STOPPED) - (time.monotonic() - began)))
        for scene in scenes:
            yield from scene.after()
    finally:
        for scene in scenes:
            scene.close()
