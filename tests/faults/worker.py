"""`python -m tests.faults.worker`: run one proof in a process of its own, for the supervisor.

Its only argument is a document that says what to run and where to report. A report is a line of JSON: before each run
how many are done, and after it the result so far.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tests.faults import stacks
from tests.faults.proof import PROOFS
from tests.faults.runner import OutOfTime, Plan, run_proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The task of a worker."""

    module: str
    """The module that registers the proof."""
    name: str
    plan: Plan
    reports: int
    """The descriptor to which the reports go."""
    stacks: str
    """The directory for the stacks of the proof's processes."""

    def to_text(self) -> str:
        """The task as the worker's argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Task:
        """The task of an argument."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields | {"plan": Plan(**fields["plan"])})


def main(argument: str) -> None:
    """Carry the task out."""
    task = Task.from_text(argument)
    directory = Path(task.stacks)
    stacks.register(directory)

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        late = directory / "late"
        raise OutOfTime(late.read_text(encoding="utf-8") if late.exists() else "")

    signal.signal(signal.SIGALRM, interrupt)
    importlib.import_module(task.module)
    with os.fdopen(task.reports, "w", encoding="utf-8") as reports:

        def report(done: int, total: int, result: dict[str, Any]) -> None:
            print(json.dumps({"done": done, "total": total, "result": result}), file=reports, flush=True)

        run_proof(PROOFS[task.name], task.plan, report)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
