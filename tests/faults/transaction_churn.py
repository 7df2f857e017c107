"""Row 14: workers of a group that read, write and move on in transactions join and die: each input counts once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import headwater as hw
from headwater import StaleMember, Store
from tests.faults.children import Child, failures
from tests.faults.members import GROUP, STORE, TOPIC, produce
from tests.faults.proof import Run, proof
from tests.faults.violation import Kind, Violation
from tests.support.patience import Patience

PARTITIONS = 6
OUTPUTS = {"invoices": 3, "shipments": 2}
RECORDS = 4_000
BATCH = 50
SECONDS = 5.0
WORKERS = 3
PATIENCE = 60.0


def work(directory: Path) -> None:
    """A worker: each record that it reads becomes one in each of the outputs. It leaves when it finds the stop file."""
    stop = directory / "all.stop"
    with hw.open(directory / STORE) as store, store.consumer(TOPIC, group=GROUP, refresh_interval=0.2) as inbox:
        while not stop.exists():
            try:
                with store.transaction(inbox) as block:
                    outputs = [block.producer(name) for name in OUTPUTS]
                    for record in inbox.poll(40, timeout=0.05):
                        for output in outputs:
                            output.send(record.value, key=record.key)
                        inbox.ack(record)
            except StaleMember:
                continue


@proof(
    row=14,
    title="workers that read and write in transactions join and die, and each record counts once",
    runs=300,
    quick=1,
    timeout=150.0,
)
def transaction_churn(run: Run) -> Iterator[Violation]:
    """Change the group for some seconds, let it finish, and count."""
    numbers = count()

    def feed() -> None:
        with hw.open(run.directory / STORE) as store:
            produce(store, RECORDS, BATCH, SECONDS / (RECORDS / BATCH))

    def join() -> Child:
        return Child(lambda: work(run.directory), run.directory / f"worker{next(numbers)}.error")

    with hw.open(run.directory / STORE) as store:
        for name, partitions in {TOPIC: PARTITIONS, **OUTPUTS}.items():
            store.create_topic(name, partitions=partitions, sync="never")
        source = Child(feed, run.directory / "source.error")
        workers = [join() for _ in range(WORKERS)]
        try:
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                time.sleep(run.random.uniform(0.05, 0.5))
                if len(workers) > 1 and run.random.random() < 0.7:
                    workers.pop(run.random.randrange(len(workers))).kill()
                if len(workers) < WORKERS:
                    workers.append(join())
            source.wait()
            yield from _finish(store)
            (run.directory / "all.stop").touch()
            for worker in workers:
                if not worker.ended_within(PATIENCE):
                    yield worker.hangs(f"process {worker.pid} did not leave")
        finally:
            for child in (source, *workers):
                child.kill()
        yield from failures(run.directory)
        for name in OUTPUTS:
            yield from _count(store, name)


def _finish(store: Store) -> Iterator[Violation]:
    def is_done() -> bool:
        return sum(position.offset for position in store.group(GROUP).committed().values()) >= RECORDS

    if not Patience(PATIENCE).until(is_done):
        yield Violation(Kind.BLOCKED, f"the group did not finish within {PATIENCE:g} s")


def _count(store: Store, name: str) -> Iterator[Violation]:
    found = Counter(int(record.value) for one in store.topic(name).partitions() for record in one.records())
    for number in range(RECORDS):
        if found[number] != 1:
            kind = Kind.DUPLICATE if found[number] else Kind.LOST_WRITE
            yield Violation(kind, f"record {number} is in {name!r} {found[number]} times")
    for number in found.keys() - set(range(RECORDS)):
        yield Violation(Kind.UNSEEN, f"{number} in {name!r}")
