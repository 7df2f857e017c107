"""`kill -9` of random processes: four producers and two readers share one partition, and die at any moment.

A killed process is started again and goes on from its journal. In the end all are killed, and every journal is held
against the log.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

from headwater.core.config import PartitionConfig
from headwater.log import DirectoryPartition
from tests.faults import Run, Violation, proof
from tests.faults.children import Child, failures, leave_error
from tests.faults.journal import Follower, Producer, verify
from tests.support.patience import Patience

PRODUCERS = 4
THREADS = 2
READERS = 2
KILLS = 8
ACKNOWLEDGING = 30.0
"""It takes a fraction of a second until something is acknowledged. Seconds, as `Patience` counts them."""
CONFIG = PartitionConfig(sync="always", segment_bytes=64 * 1024, index_interval=1024)

Role = Callable[[Path, str, str], None]
"""The work of a process, given the directory, its name and a seed, until it is killed."""


def _produce(directory: Path, name: str, seed: str) -> None:
    """A producing process: threads that share a handle, and so their writes and syncs."""
    partition = DirectoryPartition(directory / "log", CONFIG)

    def work(thread: str) -> None:
        producer = Producer(partition, thread, directory, Random(f"{seed}/{thread}"))
        producer.resume()
        while True:
            producer.step()

    in_threads(work, directory, name)


def in_threads(work: Callable[[str], None], directory: Path, name: str) -> None:
    """Let several threads work, each under a name of its own, until one fails, which ends the process."""

    def run(thread: str) -> None:
        try:
            work(thread)
        except BaseException:  # noqa: BLE001 - whatever ends a thread ends the process, and is a finding
            leave_error(directory / f"{thread}.error")
            os._exit(1)

    threads = [threading.Thread(target=run, args=(f"{name}{number}",)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _follow(directory: Path, name: str, seed: str) -> None:
    """A reading process: it goes on where it was, or sometimes from an older offset."""
    random = Random(seed)
    follower = Follower(DirectoryPartition(directory / "log", CONFIG), name, directory, random)
    if random.random() < 0.25:
        follower.go_back()
    while True:
        if not follower.poll():
            time.sleep(0.0005)


@proof(
    row=1,
    title="kill -9 of a random process, 4 producers and 2 consumers on one partition",
    runs=1000,
    quick=5,
)
def kill_writers(run: Run) -> Iterator[Violation]:
    """Start everyone, kill and restart some, kill everyone, and read the log."""
    roles = {f"producer{number}": _produce for number in range(PRODUCERS)}
    roles |= {f"reader{number}": _follow for number in range(READERS)}
    kill_and_restart(run, roles)
    yield from failures(run.directory)
    yield from verify(run.directory / "log", run.directory)


def kill_and_restart(run: Run, roles: Mapping[str, Role]) -> None:
    """Start a process for each role, kill some and start them again, and kill all of them.

    The last ones live until something was acknowledged: on a busy machine those before may have got to nothing.
    """

    def start(name: str) -> Child:
        seed = str(run.random.random())
        return Child(lambda: roles[name](run.directory, name, seed), run.directory / f"{name}.error")

    crew: dict[str, Child] = {}
    try:
        for name in roles:
            crew[name] = start(name)
        for _ in range(KILLS):
            time.sleep(run.random.uniform(0.01, 0.15))
            victim = run.random.choice(list(crew))
            crew[victim].kill()
            crew[victim] = start(victim)
        time.sleep(run.random.uniform(0.01, 0.15))
        Patience(ACKNOWLEDGING).until(lambda: any(map(is_acknowledged, run.directory.glob("*.sent"))))
    finally:
        for child in crew.values():
            child.kill()


def is_acknowledged(journal: Path) -> bool:
    """Return whether the sender with this journal was told of anything that it is safe."""
    return b"\ndone " in journal.read_bytes()
