"""Rows 2, 4, 6 and 9 together: writers die, others recover and go on, and then the power goes.

Each fault alone is harmless in ways that two of them are not. A segment that a dead writer created has no durable name
yet; a sync that failed leaves pages that no later sync writes; a compacted segment may be the old one again. Recovery
has to make up for it before the next append is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final, Literal

from headwater.core.config import Sync
from headwater.testing import Device, FailingDisk, ManualClock, RecordingDisk, Step, write_image
from headwater.testing.trace import Marked
from tests.faults.expected import Expected
from tests.faults.power_loss import events
from tests.faults.proof import Run, proof
from tests.faults.verification import Verification
from tests.faults.violation import Violation
from tests.faults.workload import CLEANING, Ended, Kind, Workload

LIVES: Final = 3
ACTIONS: Final = 14
"""At most so many in each life."""
IMAGES: Final = 4
SOON: Final = 4
"""So many actions later."""
PARTITION: Final = "partition"
MODES: Final[tuple[Sync, ...]] = ("always", "always", "always", "never")
Fate = Literal["anywhere", "before the names are durable", "after a failed sync"]
FATES: Final[tuple[Fate, ...]] = ("anywhere", "before the names are durable", "after a failed sync")


class Died(BaseException):
    """The end of a writer. Nobody handles it, and nothing that is done on its way up reaches the disk."""


class MortalDisk(FailingDisk):
    """Passes everything on until its writer dies, and nothing afterwards.

    So many operations of a kind pass before: of any, or syncs of directories, or syncs of segments. The last of those
    fails, and the writer dies before it can tell anybody.
    """

    def __init__(self, disk: RecordingDisk, fate: Fate, passes: int) -> None:
        super().__init__(disk)
        self._recording = disk
        self._fate = fate
        self._passes = passes

    def _ask(self, operation: str, path: Path, size: int = 0) -> None:  # noqa: ARG002 - of a write
        counts = {
            "anywhere": True,
            "before the names are durable": operation == "sync_directory" and path.name == PARTITION,
            "after a failed sync": operation == "sync" and path.suffix == ".log",
        }[self._fate]
        self._passes -= counts
        if self._passes < 0:
            raise Died

    def sync(self, fd: int) -> None:
        try:
            super().sync(fd)
        except Died:
            if self._fate == "after a failed sync" and self._passes == -1:
                self._recording.fail_sync(fd)
            raise


@proof(
    row=4,
    title="writers die, others recover and append, then the power goes: nothing is lost, nothing deleted comes back",
    runs=5_000,
    quick=60,
)
def power_loss_after_deaths(run: Run) -> Iterator[Violation]:
    """Random lives of one partition on a simulated device, and several losses of power for each sequence of them."""
    root = run.directory / "first"
    root.mkdir()
    mode = run.random.choice(MODES)
    trace, deaths = _live(root, run.random, mode)
    for number in range(IMAGES):
        steps = trace[: _until(trace, deaths, run.random)]
        after = run.directory / f"after-{number}"
        torn, reordered = run.random.random() < 0.3, run.random.random() < 0.6
        write_image(Device().follow(steps).image(run.random, torn=torn, reordered=reordered), after)
        expected = Expected.after(events(steps))
        yield from Verification(after / PARTITION, expected, run.random, power_loss=True).run()


def _live(root: Path, random: Random, mode: Sync) -> tuple[list[Step], list[int]]:
    """The trace of all lives, and at which step each but the last ended."""
    recording, clock = RecordingDisk(root), ManualClock()
    serial = 0
    deaths: list[int] = []
    for life in range(LIVES):
        fate = random.choice(FATES)
        passes = random.randrange(
            {"anywhere": 150, "before the names are durable": 10, "after a failed sync": 12}[fate]
        )
        if life == LIVES - 1:
            passes = 10_000
        disk = MortalDisk(recording, fate, passes)
        workload = Workload(
            root / PARTITION, disk, random, recording.mark, mode, clock, weights=CLEANING, serial=serial
        )
        try:
            workload.run(ACTIONS)
        except Died:
            with suppress(Died):
                workload.abandon()
        deaths.append(len(recording.trace))
        serial = workload.serial
    return recording.trace, deaths[:-1]


def _until(trace: Sequence[Step], deaths: Sequence[int], random: Random) -> int:
    """Return how many steps happen: mostly until soon after a death or a compaction, when more was acknowledged."""
    told = [step for step in trace if isinstance(step, Marked) and isinstance(step.note, Ended)]
    after_deaths = [step.number for died in deaths for step in _first(told, died)]
    compactions = [step.number for step in told if _ended(step).action.kind is Kind.COMPACT]
    after_compactions = [step.number for ended in compactions for step in _first(told, ended)]
    anywhere = [step.number for step in trace[deaths[0] :]]
    among = random.choice((after_deaths, after_deaths, after_compactions, anywhere))
    return random.choice(among or anywhere or [len(trace) - 1]) + 1


def _first(told: Sequence[Marked], since: int) -> list[Marked]:
    """The first things that were told since a step."""
    return [step for step in told if step.number >= since][:SOON]


def _ended(step: Marked) -> Ended:
    assert isinstance(step.note, Ended)
    return step.note
