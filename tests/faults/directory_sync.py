"""Row 6: after each operation the power goes, and names that no directory sync has covered are lost.

It needs no random pages: all of the unsynced data survives or none, with all of the unsynced names, none, or any.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

from headwater.core.config import Sync
from headwater.testing import Device, RecordingDisk, Step, seeded, write_image
from headwater.testing.device import Mood
from headwater.testing.trace import Created, DirectoryCreated, DirectorySynced, Marked, Renamed, Unlinked
from tests.faults.expected import Expected
from tests.faults.power_loss import events
from tests.faults.proof import Run, proof
from tests.faults.verification import Verification
from tests.faults.violation import Violation
from tests.faults.workload import CLEANING, WEIGHTS, Kind, Workload

ACTIONS: Final = 40
WORKLOADS: Final[tuple[tuple[Sync, Mapping[Kind, int]], ...]] = (
    ("always", WEIGHTS),
    ("always", WEIGHTS),
    ("always", CLEANING),
    ("always", CLEANING),
    ("never", WEIGHTS),
)
LOSSES: Final[tuple[tuple[Mood, Mood], ...]] = (
    ("oldest", "newest"),
    ("oldest", "oldest"),
    ("newest", "oldest"),
    ("any", "newest"),
    ("any", "oldest"),
)
"""The moods of names and of data."""


@cache
def traces() -> list[list[Step]]:
    """Record the operations of each workload on its files."""
    found: list[list[Step]] = []
    for number, (mode, weights) in enumerate(WORKLOADS):
        with tempfile.TemporaryDirectory(prefix="headwater-trace-") as directory, seeded(number):
            disk = RecordingDisk(Path(directory))
            workload = Workload(Path(directory) / "partition", disk, Random(number), disk.mark, mode, weights=weights)
            workload.run(ACTIONS)
            found.append(disk.trace)
    return found


@cache
def losses() -> list[tuple[int, int, Mood, Mood]]:
    """Every operation of every workload after which some name is not durable, or has just become so."""
    found: list[tuple[int, int, Mood, Mood]] = []
    for workload, trace in enumerate(traces()):
        at_stake = False
        for step in trace:
            at_stake |= isinstance(step, Created | DirectoryCreated | Renamed | Unlinked)
            if at_stake and not isinstance(step, Marked):
                found += [(workload, step.number, names, data) for names, data in LOSSES]
            at_stake &= not isinstance(step, DirectorySynced)
    return found


@proof(
    row=6,
    title="names that no directory sync has covered are lost, after every operation",
    runs=None,
    quick=150,
    cases=lambda _: len(losses()),
)
def directory_sync(run: Run) -> Iterator[Violation]:
    """The traces are the same in every run; only the losses of any names leave something to chance."""
    workload, number, names, data = losses()[run.number]
    steps = traces()[workload][: number + 1]
    image = Device().follow(steps).image(run.random, reordered=names == "any", names=names, data=data)
    write_image(image, run.directory / "after")
    expected = Expected.after(events(steps))
    yield from Verification(run.directory / "after" / "partition", expected, run.random, power_loss=True).run()
