"""Members of a group join, leave, die and are stopped while records come: none is skipped, no position moves back.

A run is some seconds of that, with a change several times a second; in the end those who are left finish the work. A
member that was stopped for longer than `max_poll_interval` has lost its partitions, and must not disturb their owners.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import headwater as hw
from tests.faults import Kind, Run, Violation, proof
from tests.faults.children import Child, failures
from tests.faults.members import STORE, TOPIC, Positions, consume, ends_of, produce, verify

PARTITIONS = 8
RECORDS = 1_000_000
RECORDS_QUICK = 100_000
BURSTS = 200
SECONDS = 12.0
SECONDS_QUICK = 5.0
MOST = 5
MAX_POLL_INTERVAL = 0.5
STOPPED = (0.6, 1.5)
"""For how long a member is stopped, at least and at most."""
PATIENCE = 120.0


class Crew:
    """The members, those who are there and those who are on their way out."""

    def __init__(self, directory: Path, random: Random) -> None:
        self._directory = directory
        self._random = random
        self._names = (f"member{number}" for number in count())
        self._members: dict[str, Child] = {}
        self._leaving: list[Child] = []
        self._stopped: list[tuple[float, Child]] = []

    def change(self) -> None:
        """Someone joins, leaves, dies or is stopped; who was stopped for long enough goes on."""
        self._resume(time.monotonic())
        change = self._random.choice(["join", "leave", "die", "die", "stop", "stop"])
        if len(self._members) < 2 or (change == "join" and len(self._members) < MOST):
            self.join()
        elif change == "die":
            self._members.pop(self._anyone()).kill()
        elif change == "stop":
            child = self._members[self._anyone()]
            child.send(signal.SIGSTOP)
            self._stopped.append((time.monotonic() + self._random.uniform(*STOPPED), child))
        else:
            name = self._anyone()
            (self._directory / f"{name}.stop").touch()
            self._leaving.append(self._members.pop(name))

    def join(self) -> None:
        """Start another member."""
        name = next(self._names)
        most, work = self._random.choice(((50, 0.0), (500, 0.01), (5000, 0.02), (0, 0.02)))

        def body() -> None:
            logging.disable(logging.WARNING)  # that it was too late is what it was stopped for
            consume(self._directory, name, most, work, max_poll_interval=MAX_POLL_INTERVAL)

        self._members[name] = Child(body, self._directory / f"{name}.error")

    def _resume(self, until: float) -> None:
        """Let those go on whose time has come."""
        for due, child in self._stopped:
            if due <= until:
                child.send(signal.SIGCONT)
        self._stopped = [(due, child) for due, child in self._stopped if due > until]

    def resume_all(self) -> None:
        """Let everyone go on."""
        self._resume(math.inf)

    def _anyone(self) -> str:
        return self._random.choice(sorted(self._members))

    def dismiss(self) -> Iterator[Violation]:
        """Ask everyone to leave."""
        (self._directory / "all.stop").touch()
        for child in self._all():
            if not child.ended_within(PATIENCE):
                yield child.hangs(f"process {child.pid} did not leave")

    def kill(self) -> None:
        """End whoever is left."""
        for child in self._all():
            child.kill()

    def _all(self) -> list[Child]:
        return [*self._members.values(), *self._leaving]


@proof(
    row=14,
    title="members of a group join, leave, die and are stopped over 1,000,000 records; 200 runs take an hour",
    runs=200,
    quick=1,
    timeout=240.0,
)
def group_churn(run: Run) -> Iterator[Violation]:
    """Change the group for some seconds, let it finish, and hold the journals against the log."""
    records, seconds = (RECORDS_QUICK, SECONDS_QUICK) if run.quick else (RECORDS, SECONDS)

    def source() -> None:
        with hw.open(run.directory / STORE) as store:
            produce(store, records, records // BURSTS, seconds / BURSTS)

    with hw.open(run.directory / STORE) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, sync="never")
        positions = Positions(store)
        crew = Crew(run.directory, run.random)
        producing = Child(source, run.directory / "source.error")
        try:
            crew.join()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                crew.change()
                yield from positions.watch(run.random.uniform(0.05, 0.6))
            crew.resume_all()
            yield from positions.watch(PATIENCE, records)
            if not positions.finished(records):
                yield Violation(Kind.BLOCKED, f"the group did not finish within {PATIENCE:g} s")
            yield from crew.dismiss()
        finally:
            producing.kill()
            crew.kill()
        yield from failures(run.directory)
        yield from verify(run.directory, ends_of(store))
