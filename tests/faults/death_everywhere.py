"""Row 2: a process dies at each single operation on its files, and sometimes its successor dies recovering."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from headwater.core.config import Sync
from headwater.log import DirectoryPartition
from headwater.testing import FailingDisk, Failpoint, ManualClock
from tests.faults.children import Child
from tests.faults.deaths import Death, every_death
from tests.faults.expected import Expected
from tests.faults.proof import Run, proof
from tests.faults.verification import UnsyncedDisk, Verification
from tests.faults.violation import Kind, Violation
from tests.faults.workload import Action, Began, Ended, Event, Sent, Workload, config
from tests.faults.workload import Kind as Do

ACTIONS = 40
MODES: tuple[Sync, ...] = ("always", "always", "always", "never", 3000.0)
"""The mode of each workload. A dead process loses nothing that was published, in any of them."""


@cache
def deaths() -> list[Death]:
    """Everywhere in every workload."""

    def perform(workload: int, directory: Path, disk: FailingDisk) -> None:
        path = directory / "partition"
        with _witness(path):
            _workload(workload, path, disk).run(ACTIONS)

    return every_death(len(MODES), perform)


def _witness(directory: Path) -> DirectoryPartition:
    """A handle that is open all the time, as another process's may be: it has to notice what the dead one left."""
    return DirectoryPartition(directory, config(), disk=UnsyncedDisk(), clock=ManualClock())


def _workload(number: int, directory: Path, disk: FailingDisk, notes: int | None = None) -> Workload:
    def note(event: Event) -> None:
        if notes is not None:
            os.write(notes, pickle.dumps(event))

    return Workload(directory, disk, Random(number), note, MODES[number])


@proof(
    row=2,
    title="death at every single operation through append, roll, compaction, retention, truncation, closing",
    runs=None,
    quick=80,
    cases=lambda _: len(deaths()),
)
def death_everywhere(run: Run) -> Iterator[Violation]:
    """The workload runs in a child, which kills itself; its notes and its files are what is left of it."""
    death = deaths()[run.number]
    directory, notes, errors = (run.directory / name for name in ("partition", "notes", "errors"))

    def work() -> None:
        disk = FailingDisk(UnsyncedDisk(), Failpoint(number=death.number, part=death.part, death=True))
        _workload(death.workload, directory, disk, os.open(notes, os.O_WRONLY | os.O_CREAT, 0o600)).run(ACTIONS)

    def recover() -> None:
        disk = FailingDisk(UnsyncedDisk(), Failpoint(number=run.random.randint(1, 20), death=True))
        DirectoryPartition(directory, config(), disk=disk)

    witness = _witness(directory)
    if Child(work, errors).wait() != -signal.SIGKILL:
        left = errors.read_text() if errors.exists() else "it ended without an error"
        yield Violation(Kind.CRASH, f"the child did not die at {death}", left)
        return
    expected = Expected.after(_read(notes))
    if run.random.random() < 0.5:
        Child(recover, errors).wait()
    if run.random.random() < 0.5:
        action = Action(Do.APPEND, ((Sent(b"by the witness", None),),))
        expected.apply(Began(action))
        appended = witness.append(action.encoded(0))
        expected.apply(Ended(action, witness.bounds(), appended))
    yield from Verification(directory, expected, run.random).run()
    witness.close()


def _read(notes: Path) -> Iterator[Event]:
    with notes.open("rb") as file:
        while file.peek(1):
            yield pickle.load(file)
