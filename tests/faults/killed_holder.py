"""The lock's holder is killed in the middle of an append or a roll: whoever waits for the lock goes on at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from random import Random

from headwater.core.config import PartitionConfig
from headwater.log import DirectoryPartition, Disk
from tests.faults import Kind, Run, Violation, proof
from tests.faults.children import Child, SignallingDisk, TimedDisk, failures
from tests.faults.journal import Producer, verify

CONFIG = PartitionConfig(sync="always", segment_bytes=8 * 1024, index_interval=1024)
CHANGES = 60
"""The holder dies at one of its first so many writes, syncs and renames: some appends and a roll or two."""
PROMPTLY = 1.0

Hold = Callable[[Disk, Random], None]
"""Appends to a disk that kills its process, on and on."""


@proof(row=13, title="the lock's holder is killed mid-append: others go on in < 1 s", runs=1000, quick=50)
def killed_holder(run: Run) -> Iterator[Violation]:
    """Wait for the lock of a process that dies with it; then send again what it left open."""

    def hold(disk: Disk, random: Random) -> None:
        producer = Producer(DirectoryPartition(path, CONFIG, disk=disk), "holder", run.directory, random)
        while True:
            producer.step()

    path = run.directory / "log"
    disk = TimedDisk()
    with DirectoryPartition(path, CONFIG, disk=disk) as partition:
        other = Producer(partition, "other", run.directory, run.random)
        other.step()
        yield from outlive(run, hold, other.step, disk)
        successor = Producer(partition, "holder", run.directory, run.random)
        successor.resume()
        successor.step()
    yield from failures(run.directory)
    yield from verify(path, run.directory)


def outlive(run: Run, hold: Hold, step: Callable[[], None], disk: TimedDisk) -> Iterator[Violation]:
    """Take a step on that disk, which needs the lock, at the moment when the process that holds it dies."""
    seed = run.random.random()
    reading, ready = os.pipe()

    def die() -> None:
        random = Random(seed)

        def announce() -> None:
            os.write(ready, b".")
            time.sleep(random.uniform(0, 0.01))

        when = random.choice(("before", "within", "after"))
        hold(SignallingDisk(random.randint(1, CHANGES), when, signal.SIGKILL, announce), random)

    try:
        with Child(die, run.directory / "holder.error") as holder:
            os.close(ready)
            os.read(reading, 1)
            took = disk.time_without(step)
            if took > PROMPTLY:
                yield Violation(Kind.BLOCKED, f"an append took {took:.2f} s after the holder's death")
            if holder.ended_within(PROMPTLY) and holder.status != -signal.SIGKILL:
                yield Violation(Kind.CRASH, f"the holder ended with {holder.status}, not by its own hand")
    finally:
        os.close(reading)
