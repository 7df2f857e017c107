"""The lock's holder is killed in the middle of an append or a roll: whoever waits for the lock goes on at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from headwater.config import PartitionConfig
from headwater.log import DirectoryPartition
from tests.faults import Kind, Run, Violation, proof
from tests.faults.children import Child, SignallingDisk, failures
from tests.faults.journal import Producer, verify

CONFIG = PartitionConfig(sync="always", segment_bytes=8 * 1024, index_interval=1024)
CHANGES = 60
"""The holder dies at one of its first so many writes, syncs and renames: some appends and a roll or two."""
PROMPTLY = 1.0


def _hold(directory: Path, random: Random, ready: int) -> None:
    """Append until the disk kills this process, a little after it has told the parent."""

    def announce() -> None:
        os.write(ready, b".")
        time.sleep(random.uniform(0, 0.01))

    when = random.choice(("before", "within", "after"))
    disk = SignallingDisk(random.randint(1, CHANGES), when, signal.SIGKILL, announce)
    producer = Producer(DirectoryPartition(directory / "log", CONFIG, disk=disk), "holder", directory, random)
    while True:
        producer.step()


@proof(row=13, title="the lock's holder is killed mid-append: others go on in < 1 s", runs=1000, quick=50)
def killed_holder(run: Run) -> Iterator[Violation]:
    """Wait for the lock of a process that dies with it; then send again what it left open."""
    with DirectoryPartition(run.directory / "log", CONFIG) as partition:
        other = Producer(partition, "other", run.directory, run.random)
        other.step()
        seed = run.random.random()
        reading, ready = os.pipe()
        try:
            with Child(lambda: _hold(run.directory, Random(seed), ready), run.directory / "holder.error") as holder:
                os.close(ready)
                os.read(reading, 1)
                began = time.monotonic()
                other.step()
                took = time.monotonic() - began
                if took > PROMPTLY:
                    yield Violation(Kind.BLOCKED, f"an append took {took:.2f} s after the holder's death")
                if holder.ended_within(PROMPTLY) and holder.status != -signal.SIGKILL:
                    yield Violation(Kind.CRASH, f"the holder ended with {holder.status}, not by its own hand")
        finally:
            os.close(reading)
        successor = Producer(partition, "holder", run.directory, run.random)
        successor.resume()
        successor.step()
    yield from failures(run.directory)
    yield from verify(run.directory / "log", run.directory)
