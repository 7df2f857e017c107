"""The programs that use a cluster in a soak: a group's members, and those that move records in transactions.

All read what one feeder sends. In the end each of its records was handed to a member of the group, and to none behind
the group's position; and has been moved once, whatever has died meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count as numbers_from
from pathlib import Path
from random import Random
from typing import Final

import headwater as hw
from headwater.core.errors import HeadwaterError
from tests.cluster.cluster import ClusterProcesses
from tests.faults.cluster_transactions import PATIENCE, Feeder, Program, count, finish, go_on, make_topics, see_end
from tests.faults.members import GROUP, Positions, change, ends_of, open_store, verify
from tests.faults.violation import Kind, Violation
from tests.support.patience import has_finished

_MOVERS: Final = ("mover", "mover", "counter")
_MOST_MEMBERS: Final = 3
_LOOK: Final = 0.2


class Watcher(threading.Thread):
    """Looks at the group's positions again and again."""

    def __init__(self, directory: Path, address: str) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self._address = address
        self.expected: int | None = None
        """The number of records, once that is known."""
        self.violations: list[Violation] = []
        self.ends: dict[int, int] | None = None
        """The ends of partitions, once the group has done all that is there."""

    def run(self) -> None:
        with open_store(self._directory, self._address) as store:
            positions = Positions(store)
            while self.ends is None:
                time.sleep(_LOOK)
                try:
                    self.violations += positions.look()
                    if self.expected is not None and positions.finished(self.expected):
                        self.ends = ends_of(store)
                except HeadwaterError:
                    continue  # nobody can tell now


class Programs:
    """All of them, and what they read."""

    def __init__(self, directory: Path, cluster: ClusterProcesses, random: Random) -> None:
        self._directory = directory
        self._cluster = cluster
        self._random = random
        self._numbers = numbers_from()
        make_topics(cluster.address)
        self._feeder = Feeder(cluster.address)
        self._feeder.start()
        self._movers = [self._begin(kind) for kind in _MOVERS]
        self._members: dict[str, Program] = {}
        self._leaving: list[Program] = []
        self._join()
        self._join()
        self._watcher = Watcher(directory, cluster.address)
        self._watcher.start()

    def _begin(self, kind: str) -> Program:
        return Program(kind, self._directory, self._cluster.address, next(self._numbers))

    def _join(self) -> None:
        number = next(self._numbers)
        most, work = self._random.choice((("50", "0"), ("500", "0.01"), ("0", "0.02")))
        arguments = (f"member{number}", most, work)
        self._members[arguments[0]] = Program(
            "member", self._directory, self._cluster.address, number, *arguments, module="members"
        )

    def kill_one(self) -> None:
        """kill -9 one that moves records, and start it again."""
        at = self._random.randrange(len(self._movers))
        self._movers[at].kill()
        self._movers[at] = self._begin(self._movers[at].kind)

    def change_group(self) -> None:
        """Someone joins, leaves or dies."""
        change(self._random, self._directory, self._members, self._leaving, most=_MOST_MEMBERS, join=self._join)

    def go_on(self) -> Iterator[Violation]:
        """Wait until more has been moved, unless the end will tell why it cannot."""
        if self._feeder.error is None and all(one.process.poll() is None for one in self._movers):
            yield from go_on(self._cluster, 1)

    def check(self) -> Iterator[Violation]:
        """Let everyone finish; then count."""
        self._feeder.ended.set()
        has_finished(self._feeder, PATIENCE)
        if self._feeder.error is not None:
            yield Violation(Kind.CRASH, f"the feeder: {type(self._feeder.error).__name__}: {self._feeder.error}")
        with hw.open(self._cluster.address) as store:
            yield from finish(store, self._feeder.sent)
            self._watcher.expected = self._feeder.sent
            has_finished(self._watcher, PATIENCE)
            if self._watcher.ends is None:
                yield Violation(Kind.BLOCKED, f"group {GROUP!r} did not do all {self._feeder.sent} records")
            for name in ("stop", "all.stop"):
                (self._directory / name).touch()
            for program in (*self._movers, *self._members.values(), *self._leaving):
                yield from see_end(program)
            yield from count(store, self._directory, self._feeder.sent)
        yield from self._watcher.violations
        if self._watcher.ends is not None:
            yield from verify(self._directory, self._watcher.ends)

    def kill(self) -> None:
        """End whoever is left."""
        for program in (*self._movers, *self._members.values(), *self._leaving):
            program.kill()
