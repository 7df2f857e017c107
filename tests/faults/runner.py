"""Running a proof: each run alone in a fresh directory, with its own chance."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from headwater.testing import seeded
from tests.faults.proof import Proof, Run, Unavailable
from tests.faults.violation import Kind, Violation

GIVE_UP_AFTER = 10
"""A proof ends after so many runs with violations: more would say the same, and each keeps its directory."""

FINDINGS_PER_RUN = 100
"""A log that lost everything is told by its first hundred records as well as by a million."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation and what brings it back: its run and its files. Before the first run there are none."""

    violation: Violation
    run: int | None = None
    directory: Path | None = None

    def as_json(self) -> dict[str, Any]:
        """The finding for programs."""
        return {
            "kind": self.violation.kind.value,
            "detail": self.violation.detail,
            "run": self.run,
            "directory": str(self.directory) if self.directory else None,
            "traceback": self.violation.traceback,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Finding:
        """The finding that was told to programs."""
        violation = Violation(Kind(document["kind"]), document["detail"], document["traceback"])
        directory = document["directory"]
        return cls(violation, document["run"], Path(directory) if directory else None)


@dataclass(slots=True)
class Result:
    """The result of one proof."""

    proof: Proof
    runs: int = 0
    planned: int | None = None
    """The number of runs that were planned. None before that is known."""
    under_way: int | None = None
    """The number of the run that has begun and is not over."""
    seconds: float = 0.0
    skipped: str | None = None
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Remarks of the runs, each once."""

    @property
    def kinds(self) -> Counter[Kind]:
        """The number of violations of each kind."""
        return Counter(finding.violation.kind for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The result for programs."""
        return {
            "name": self.proof.name,
            "row": self.proof.row,
            "title": self.proof.title,
            "runs": self.runs,
            "planned": self.planned,
            "under_way": self.under_way,
            "seconds": round(self.seconds, 3),
            "skipped": self.skipped,
            "notes": self.notes,
            "violations": [finding.as_json() for finding in self.findings],
        }

    @classmethod
    def from_json(cls, proof: Proof, document: dict[str, Any]) -> Result:
        """The result that was told to programs."""
        return cls(
            proof,
            runs=document["runs"],
            planned=document["planned"],
            under_way=document["under_way"],
            seconds=document["seconds"],
            skipped=document["skipped"],
            findings=[Finding.from_json(finding) for finding in document["violations"]],
            notes=document["notes"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The runs to make. `runs` and `only` overrule the numbers that a proof gives itself."""

    seed: int
    quick: bool = False
    runs: int | None = None
    only: int | None = None
    seconds: float | None = None
    """The duration of runs that last a given time."""
    budget: float | None = None
    """No run begins after so many seconds: the result says how many were made."""

    def numbers(self, proof: Proof) -> Sequence[int]:
        """The numbers of the runs of `proof`."""
        if self.only is not None:
            return [self.only]
        count = self.runs if self.runs is not None else proof.quick if self.quick else proof.runs
        with tempfile.TemporaryDirectory(prefix="headwater-cases-") as directory:
            return proof.numbers(self.seed, count, Path(directory))


class OutOfTime(BaseException):
    """Raised in a run that is late, with the stacks of its processes.

    Not an Exception, so that no handler in the code under test takes it for one of its own.
    """


Report = Callable[[int, int, dict[str, Any]], None]


def run_proof(proof: Proof, plan: Plan, report: Report) -> Result:
    """Make the planned runs of `proof`, calling `report(done, total, result)` before each and at the end."""
    result = Result(proof)
    started = monotonic()

    def tell(under_way: int | None) -> None:
        result.under_way = under_way
        result.seconds = monotonic() - started
        report(result.runs, result.planned or 0, result.as_json())

    try:
        numbers: list[int] = []
        result.findings += map(Finding, _caught(lambda: numbers.extend(plan.numbers(proof))))
        result.planned = len(numbers)
        for number in numbers:
            if plan.budget is not None and monotonic() - started >= plan.budget:
                break
            tell(number)
            run = _prepared(proof, number, plan)
            findings = _run_once(proof, run, plan)
            result.runs += 1
            result.findings += findings
            result.notes += [note for note in run.notes if note not in result.notes]
            if len({finding.run for finding in result.findings}) >= GIVE_UP_AFTER:
                break
    except Unavailable as reason:
        result.skipped = str(reason)
    tell(None)
    return result


def _prepared(proof: Proof, number: int, plan: Plan) -> Run:
    directory = Path(tempfile.mkdtemp(prefix=f"headwater-{proof.name}-{number}-"))
    return Run(number, Random(proof.seed(plan.seed, number)), directory, plan.quick, plan.seconds)


def _run_once(proof: Proof, run: Run, plan: Plan) -> list[Finding]:
    found: list[Violation] = []
    try:
        with seeded(f"{proof.seed(plan.seed, run.number)}/headwater"):
            found += _caught(lambda: found.extend(islice(proof.body(run), FINDINGS_PER_RUN)))
    except Unavailable:
        if not found:  # what was found stands, even if the rest of the run could not be made
            raise
    finally:
        if not found:
            # Errors are ignored: a process that the proof left behind may still be writing there.
            shutil.rmtree(run.directory, ignore_errors=True)
    return [Finding(violation, run.number, run.directory) for violation in found]


def _caught(action: Callable[[], None]) -> list[Violation]:
    """Do `action`. Whatever it raises is a violation."""
    try:
        action()
    except Unavailable:
        raise
    except OutOfTime as late:
        return [Violation(Kind.HANG, "not over in its time", f"{traceback.format_exc()}\n{late}")]
    except Exception as error:  # noqa: BLE001
        return [Violation(Kind.CRASH, f"{type(error).__name__}: {error}", traceback.format_exc())]
    return []
