"""`kill -9` of random processes that share a store: four send through producers and two consume, and die at any moment.

A killed process is started again and goes on from its journal, or from its group's position. In the end all are
killed, and every journal is held against what a new consumer is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import headwater as hw
from tests.faults import Run, Violation, proof
from tests.faults.children import failures
from tests.faults.kill_writers import in_threads, kill_and_restart
from tests.faults.streams import STORE, TOPIC, Reader, Sender, verify

SENDERS = 4
READERS = 2
PARTITIONS = 3


def send(directory: Path, name: str, address: str, seed: str) -> None:
    """A sending process: threads that share a producer, and so its batches."""
    random = Random(seed)
    store = hw.open(address)
    out = store.producer(TOPIC, linger=random.choice((0.0, 0.002)), batch_records=random.choice((10, 10_000)))

    def work(thread: str) -> None:
        sender = Sender(out, thread, directory, Random(f"{seed}/{thread}"))
        while True:
            sender.step()

    in_threads(work, directory, name)


def _send(directory: Path, name: str, seed: str) -> None:
    send(directory, name, str(directory / STORE), seed)


def _read(directory: Path, name: str, seed: str) -> None:
    reader = Reader(hw.open(directory / STORE), name, directory, Random(seed))
    while True:
        reader.poll(timeout=0.1)


@proof(
    row=1,
    title="kill -9 of a random process, 4 producers and 2 consumers on one store",
    runs=1000,
    quick=3,
)
def kill_senders(run: Run) -> Iterator[Violation]:
    """Start everyone, kill and restart some, kill everyone, and read the topic."""
    with hw.open(run.directory / STORE) as store:
        mode = run.random.choice(("always", "never", 0.05))
        store.create_topic(TOPIC, partitions=PARTITIONS, sync=mode, segment_bytes=64 * 1024, index_interval=1024)
    roles = {f"sender{number}": _send for number in range(SENDERS)}
    roles |= {f"reader{number}": _read for number in range(READERS)}
    kill_and_restart(run, roles)
    yield from failures(run.directory)
    yield from verify(run.directory)
