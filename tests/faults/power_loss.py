"""Rows 4 and 5: the power goes, and of what was not synced any part is left, in any order, torn or whole."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from headwater.core.config import Sync
from headwater.core.errors import HeadwaterError
from headwater.log import DirectoryPartition
from headwater.testing import Device, FailingDisk, Failpoint, ManualClock, RecordingDisk, Step, write_image
from headwater.testing.trace import Marked, Written
from tests.faults.expected import Expected
from tests.faults.proof import Run, proof
from tests.faults.verification import Verification
from tests.faults.violation import Violation
from tests.faults.workload import Began, Ended, Event, Failed, Workload, config

ACTIONS = 24
MODES: tuple[Sync, ...] = ("always", "always", "never", 3000.0)


@proof(
    row=4, title="power loss: what was synced survives, and any subset of unsynced 4 KB pages", runs=10_000, quick=120
)
def power_loss(run: Run) -> Iterator[Violation]:
    """Names keep their order here, as a journal keeps it, and pages are whole."""
    yield from _lose_power(run, torn=False, reordered=False)


@proof(row=5, title="power loss: unsynced writes torn at sectors, names in any order", runs=4_000, quick=120)
def torn_writes(run: Run) -> Iterator[Violation]:
    """Torn, reordered, or both."""
    torn, reordered = run.random.choice(((True, False), (False, True), (True, True)))
    yield from _lose_power(run, torn=torn, reordered=reordered)


def _lose_power(run: Run, torn: bool, reordered: bool) -> Iterator[Violation]:
    """After a random step of a random workload; every other time once more, in the recovery from it."""
    first, after, again = (run.directory / name for name in ("first", "after", "again"))
    first.mkdir()
    trace = _worked(first, run.random)
    steps = trace[: _until(trace, run.random)]
    write_image(Device().follow(steps).image(run.random, torn=torn, reordered=reordered), after)
    if run.random.random() < 0.5:
        disk = RecordingDisk(after)
        there = len(disk.trace)
        DirectoryPartition(after / "partition", config(), disk=disk, clock=ManualClock()).close()
        until = run.random.randint(there, len(disk.trace))
        after = again
        write_image(Device().follow(disk.trace[:until]).image(run.random, torn=torn, reordered=reordered), after)
    expected = Expected.after(events(steps))
    yield from Verification(after / "partition", expected, run.random, power_loss=True).run()


def _worked(root: Path, random: Random) -> list[Step]:
    """The trace of a workload. Where each append is durable, some of its writes fail and are undone."""
    recording = RecordingDisk(root)
    mode = random.choice(MODES)
    points = [_failpoint(random) for _ in range(8)] if mode == "always" else []
    disk = FailingDisk(recording, *points)
    Workload(root / "partition", disk, random, recording.mark, mode, raised=(HeadwaterError,)).run(ACTIONS)
    return recording.trace


def _failpoint(random: Random) -> Failpoint:
    """A full disk, in one write of the log or of its state, after a part of it.

    Only such writes are counted: how many directories are synced depends on how deep the run's own one lies.
    """
    skip, part = random.randint(5, 80), random.choice((0, 0, 600, 3000, 10_000))
    return Failpoint(operation="pwritev", path=_may_fail, skip=skip, part=part, error=errno.ENOSPC)


def _may_fail(path: Path) -> bool:
    return path.suffix == ".log" or path.name == "state"


def _until(trace: Sequence[Step], random: Random) -> int:
    """Return how many steps happen: any number, but mostly up to a write, when most is at stake."""
    if random.random() < 0.3:
        return random.randint(1, len(trace))
    return random.choice([step.number for step in trace if isinstance(step, Written)]) + 1


def events(steps: Sequence[Step]) -> Iterator[Event]:
    """Yield the notes of a trace."""
    for step in steps:
        if isinstance(step, Marked) and isinstance(step.note, Began | Ended | Failed):
            yield step.note
