"""`python -m tests.mutants`: make each mutant in a copy of the tree, and see whether its tests notice.

The exit code is 1 when a mutant survives or could not be decided, and 2 when the command line is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tests.mutants.mutant import Mutant
from tests.mutants.runner import Laboratory, Outcome, Verdict
from tests.support.patience import descendants, kill_descendants

AREAS = ("log", "store", "broker", "cluster", "console", "spark", "security")
_STYLES = {Verdict.KILLED: "green", Verdict.SURVIVED: "red", Verdict.UNDECIDED: "yellow"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--list", action="store_true", help="list the mutants and leave")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="areas or names; * and ? stand for any characters")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="examine so many side by side (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes here")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140, soft_wrap=True, highlight=False)
    chosen = [mutant for name, mutant in load().items() if _is_chosen(name, options.only)]
    if not chosen:
        parser.error("no such mutant: --list names them")
    if options.list:
        for mutant in chosen:
            killers = escape(", ".join(mutant.killers))
            console.print(f"{mutant.name}: {escape(mutant.promise)} ({mutant.file}; {killers})")
        return 0
    outcomes = []
    for outcome in _examine(chosen, options.jobs):
        outcomes.append(outcome)
        _tell(outcome, console)
        if options.json:
            _write_json(options.json, outcomes)
    killed = sum(outcome.verdict is Verdict.KILLED for outcome in outcomes)
    console.print(f"killed: {killed} of {len(outcomes)} ({killed / len(outcomes):.0%})")
    return 0 if killed == len(outcomes) else 1


def load() -> dict[str, Mutant]:
    """Every mutant by its name, which begins with its area."""
    mutants: dict[str, Mutant] = {}
    for area in AREAS:
        for mutant in importlib.import_module(f"tests.mutants.{area}").MUTANTS:
            name = f"{area}/{mutant.name}"
            if name in mutants:
                raise ValueError(f"there are two mutants of the name {name}")
            mutants[name] = mutant
    return mutants


def _is_chosen(name: str, patterns: Sequence[str] | None) -> bool:
    area, _, own = name.partition("/")
    return patterns is None or any(
        fnmatchcase(candidate, pattern) for pattern in patterns for candidate in (area, own, name)
    )


def _examine(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """The outcomes in the order of the mutants."""
    pool = ThreadPoolExecutor(jobs)
    with tempfile.TemporaryDirectory(prefix="headwater-mutants-") as directory:
        laboratories: queue.SimpleQueue[Laboratory] = queue.SimpleQueue()
        for number in range(jobs):
            (place := Path(directory, str(number))).mkdir()
            laboratories.put(Laboratory(place))

        def examine(mutant: Mutant) -> Outcome:
            laboratory = laboratories.get()
            try:
                return laboratory.examine(mutant)
            finally:
                laboratories.put(laboratory)

        try:
            yield from pool.map(examine, mutants)
        finally:  # an interruption leaves mutants that have not begun, and some whose killers are running
            pool.shutdown(wait=False, cancel_futures=True)
            for pid in descendants(os.getpid())[1:]:
                kill_descendants(pid)
            pool.shutdown()


def _tell(outcome: Outcome, console: Console) -> None:
    verdict, mutant = outcome.verdict, outcome.mutant
    heading = f"[{_STYLES[verdict]}]{verdict.value}[/] {mutant.name}"
    console.print(f"{heading}: {escape(outcome.reason)}, {outcome.seconds:.1f} s")
    if verdict is Verdict.SURVIVED:
        console.print(f"      unguarded: {escape(mutant.promise)}")


def _write_json(file: Path, outcomes: Sequence[Outcome]) -> None:
    document = [
        {
            "name": outcome.mutant.name,
            "promise": outcome.mutant.promise,
            "file": outcome.mutant.file,
            "verdict": outcome.verdict.value,
            "reason": outcome.reason,
            "seconds": round(outcome.seconds, 1),
        }
        for outcome in outcomes
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
