"""Row 2: a process dies at each single operation of its transactions, and sometimes its successor carrying them out."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from headwater.core.config import Sync
from headwater.embedded.directory_store import DirectoryStore
from headwater.testing import FailingDisk, Failpoint
from tests.faults.children import Child
from tests.faults.deaths import Death, every_death
from tests.faults.pipeline import Noted, Pipeline, set_up, verify
from tests.faults.proof import Run, proof
from tests.faults.verification import UnsyncedDisk
from tests.faults.violation import Kind, Violation

ACTIONS = 24
MODES: tuple[Sync, ...] = ("always", "never", "always")
"""The mode of all topics in each workload."""


@cache
def deaths() -> list[Death]:
    """Everywhere in every workload."""

    def perform(workload: int, directory: Path, disk: FailingDisk) -> None:
        store = directory / "store"
        set_up(store, MODES[workload])
        Pipeline(store, disk, Random(workload), lambda _: None).run(ACTIONS)

    return every_death(len(MODES), perform)


@proof(
    row=2,
    title="death at every single operation of transactions that read, write and move positions",
    runs=None,
    quick=40,
    cases=lambda _: len(deaths()),
)
def death_in_transactions(run: Run) -> Iterator[Violation]:
    """The pipeline runs in a child, which kills itself; then the next one runs to the end."""
    death = deaths()[run.number]
    directory, notes, errors = (run.directory / name for name in ("store", "notes", "errors"))
    set_up(directory, MODES[death.workload])

    def work() -> None:
        disk = FailingDisk(UnsyncedDisk(), Failpoint(number=death.number, part=death.part, death=True))
        fd = os.open(notes, os.O_WRONLY | os.O_CREAT, 0o600)
        Pipeline(directory, disk, Random(death.workload), lambda note: _write(fd, note)).run(ACTIONS)

    def recover() -> None:
        disk = FailingDisk(UnsyncedDisk(), Failpoint(number=run.random.randint(1, 30), death=True))
        DirectoryStore(directory, disk=disk).close()

    if Child(work, errors).wait() != -signal.SIGKILL:
        left = errors.read_text() if errors.exists() else "it ended without an error"
        yield Violation(Kind.CRASH, f"the child did not die at {death}", left)
        return
    if run.random.random() < 0.5:
        Child(recover, errors).wait()
    noted = _last(notes)
    if run.random.random() < 0.8:  # else the next one goes on before anybody has looked
        yield from verify(directory, noted)
    Pipeline(directory, UnsyncedDisk(), run.random, lambda _: None).finish()
    yield from verify(directory, noted, finished=True)


def _write(fd: int, note: Noted) -> None:
    os.write(fd, pickle.dumps(note))


def _last(notes: Path) -> Noted | None:
    found = None
    with notes.open("rb") as file:
        while file.peek(1):
            found = pickle.load(file)
    return found
