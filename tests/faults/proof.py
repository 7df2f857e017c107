"""A proof: how one fault is inflicted, how often, and how a single run of it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.faults.violation import Violation


class Unavailable(Exception):
    """Raised by a proof that cannot run here (no strace, no root): it is skipped, and the report says so."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a proof. `directory` is empty, and kept after a violation."""

    number: int
    random: Random
    directory: Path
    quick: bool
    """For the few proofs that last a given time instead of a number of runs."""
    seconds: float | None = None
    """The duration of a proof that lasts a given time, if it was given."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the report, such as that something could be done only in another way."""


Body = Callable[[Run], Iterator[Violation]]
Cases = Callable[[Path], int]
"""A function that counts the cases of an exhaustive proof. It may use the empty directory that it is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A registered proof. It has either a number of `runs`, or `cases`, each of which is one run."""

    name: str
    row: int
    title: str
    runs: int | None
    quick: int | None
    cases: Cases | None
    timeout: float
    body: Body

    def numbers(self, seed: int, count: int | None, directory: Path) -> list[int]:
        """The numbers of the runs to make: the first `count`, or all that there are when it is None.

        Fewer runs than cases are drawn from the seed, so that short forms cover every case in the long run.
        """
        if self.cases is None:
            assert self.runs is not None
            return list(range(self.runs if count is None else count))
        total = self.cases(directory)
        if total < 1:
            raise ValueError(f"{self.name} has {total} cases: it would prove nothing")
        if count is None or count >= total:
            return list(range(total))
        return sorted(Random(self.seed(seed, "cases")).sample(range(total), count))

    def seed(self, seed: int, purpose: object) -> str:
        """The seed of one run's chance: other proofs and other runs neither share nor disturb it."""
        return f"{seed}/{self.name}/{purpose}"


PROOFS: dict[str, Proof] = {}


def proof(
    *,
    row: int,
    title: str,
    runs: int | None,
    quick: int | None,
    cases: Cases | None = None,
    timeout: float = 120.0,
) -> Callable[[Body], Body]:
    """Register a function as the proof of a row of the fault table, under the function's name.

    `runs` is how often the full form runs, `quick` the short one. An exhaustive proof says `runs=None` and
    gives `cases`; `run.number` is then the case, from 0, and `quick=None` takes every case in the short form
    too. A run that takes longer than `timeout` seconds, as `Patience` counts them, is a hang.
    """
    if (runs is None) == (cases is None):
        raise ValueError(f"{title}: give either runs, or runs=None and cases")
    if cases is None and quick is None:
        raise ValueError(f"{title}: say how many runs the quick form takes")

    def register(body: Body) -> Body:
        name = body.__name__
        if name in PROOFS or name == "all":
            raise ValueError(f"{name}: a proof of this name exists")
        PROOFS[name] = Proof(
            name=name,
            row=row,
            title=title,
            runs=runs,
            quick=quick,
            cases=cases,
            timeout=timeout,
            body=body,
        )
        return body

    return register
