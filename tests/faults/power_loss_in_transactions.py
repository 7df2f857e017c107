"""Row 4: the power goes in the middle of transactions, and of what was not synced any part is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from headwater.core.config import Sync
from headwater.embedded.directory_store import DirectoryStore
from headwater.testing import Device, RecordingDisk, Step, write_image
from headwater.testing.trace import DirectorySynced, Marked, Renamed, Synced, Unlinked
from tests.faults.pipeline import Noted, Pipeline, set_up, verify
from tests.faults.proof import Run, proof
from tests.faults.verification import UnsyncedDisk
from tests.faults.violation import Violation

ACTIONS = 16
MODES: tuple[Sync, ...] = ("always", "always", "never", 3000.0)
"""The sync modes of the topics. A transaction is durable in each of them."""


@proof(
    row=4,
    title="power loss in transactions: one that has returned is there, any other one wholly or not at all",
    runs=4_000,
    quick=40,
)
def power_loss_in_transactions(run: Run) -> Iterator[Violation]:
    """After a random step of a random pipeline; every other time once more, while it is carried out; torn or whole."""
    first, after, again = (run.directory / name for name in ("first", "after", "again"))
    torn, reordered = run.random.choice(((False, False), (False, False), (True, False), (False, True)))
    set_up(first / "store", run.random.choice(MODES))
    disk = RecordingDisk(first)
    there = len(disk.trace)
    Pipeline(first / "store", disk, run.random, disk.mark).run(ACTIONS)
    steps = disk.trace[: _until(disk.trace, there, run.random)]
    write_image(Device().follow(steps).image(run.random, torn=torn, reordered=reordered), after)
    if run.random.random() < 0.5:
        after = _lose_power_again(after, again, run.random, torn, reordered)
    noted = _last(steps)
    if run.random.random() < 0.8:  # else the next one goes on before anybody has looked
        yield from verify(after / "store", noted)
    follower = Pipeline(after / "store", UnsyncedDisk(), run.random, lambda _: None)
    follower.run(ACTIONS // 2, serial=1_000_000)
    follower.finish()
    yield from verify(after / "store", noted, finished=True)


def _lose_power_again(after: Path, again: Path, random: Random, torn: bool, reordered: bool) -> Path:
    """The power goes once more, when the store has been opened or while that is done."""
    disk = RecordingDisk(after)
    there = len(disk.trace)
    DirectoryStore(after / "store", disk=disk).close()
    until = random.randint(there, len(disk.trace))
    write_image(Device().follow(disk.trace[:until]).image(random, torn=torn, reordered=reordered), again)
    return again


def _until(trace: Sequence[Step], there: int, random: Random) -> int:
    """Return how many steps happen: any number, but mostly up to one that makes something durable, or to the next."""
    if random.random() < 0.4:
        return random.randint(there, len(trace))
    chosen = [one.number for one in trace[there:] if isinstance(one, Synced | DirectorySynced | Renamed | Unlinked)]
    return min(random.choice(chosen) + random.randint(0, 1), len(trace))


def _last(steps: Sequence[Step]) -> Noted | None:
    notes = [step.note for step in steps if isinstance(step, Marked) and isinstance(step.note, Noted)]
    return notes[-1] if notes else None
