"""Members of a group join, leave and die while records come: none is skipped, and no committed position moves back.

A run is some seconds of that, with a change several times a second; in the end those who are left finish the work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import headwater as hw
from tests.faults import Kind, Run, Violation, proof
from tests.faults.children import Child, failures
from tests.faults.members import STORE, TOPIC, Positions, consume, produce, verify

PARTITIONS = 8
RECORDS = 20_000
BATCH = 100
SECONDS = 6.0
MOST = 5
PATIENCE = 30.0


class Crew:
    """The members, those who are there and those who are on their way out."""

    def __init__(self, directory: Path, random: Random) -> None:
        self._directory = directory
        self._random = random
        self._names = (f"member{number}" for number in count())
        self._members: dict[str, Child] = {}
        self._leaving: list[Child] = []

    def change(self) -> None:
        """Someone joins, leaves or dies."""
        change = self._random.choice(["join", "leave", "die", "die"])
        if len(self._members) < 2 or (change == "join" and len(self._members) < MOST):
            self.join()
        elif change == "die":
            self._members.pop(self._anyone()).kill()
        else:
            name = self._anyone()
            (self._directory / f"{name}.stop").touch()
            self._leaving.append(self._members.pop(name))

    def join(self) -> None:
        """Start another member."""
        name, work = next(self._names), self._random.uniform(0, 0.02)
        errors = self._directory / f"{name}.error"
        self._members[name] = Child(lambda: consume(self._directory, name, 50, work), errors)

    def _anyone(self) -> str:
        return self._random.choice(sorted(self._members))

    def dismiss(self) -> Iterator[Violation]:
        """Ask everyone to leave."""
        (self._directory / "all.stop").touch()
        for child in self._all():
            if not child.ended_within(PATIENCE):
                yield Violation(Kind.HANG, f"process {child.pid} did not leave")

    def kill(self) -> None:
        """End whoever is left."""
        for child in self._all():
            child.kill()

    def _all(self) -> list[Child]:
        return [*self._members.values(), *self._leaving]


@proof(
    row=14,
    title="members of a group join, leave and die; 450 runs of 8 s are an hour",
    runs=450,
    quick=1,
    timeout=120.0,
)
def group_churn(run: Run) -> Iterator[Violation]:
    """Change the group for some seconds, let it finish, and hold the journals against the log."""
    pause = SECONDS / (RECORDS / BATCH)
    with hw.open(run.directory / STORE) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, sync="never")
        positions = Positions(store)
        crew = Crew(run.directory, run.random)
        source = Child(lambda: produce(run.directory, RECORDS, BATCH, pause), run.directory / "source.error")
        try:
            crew.join()
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                crew.change()
                yield from positions.watch(run.random.uniform(0.05, 0.6))
            yield from positions.watch(PATIENCE, RECORDS)
            if not positions.finished(RECORDS):
                yield Violation(Kind.BLOCKED, f"the group did not finish within {PATIENCE:g} s")
            yield from crew.dismiss()
        finally:
            source.kill()
            crew.kill()
        yield from failures(run.directory)
        yield from verify(run.directory, {number: bounds.end for number, bounds in store.topic(TOPIC).bounds().items()})
