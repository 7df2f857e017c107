"""`python -m tests.faults NAME`: run a fault proof, or all of them, and name every violation.

The exit code is 1 when there is a violation, and 2 when the command line is wrong or the proof that was asked
for cannot run on this machine: a proof that proved nothing is no success.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import secrets
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import tests.faults
from headwater.core.section import parse_seconds
from tests.faults.proof import PROOFS, Proof
from tests.faults.record import is_current, is_recorded, write_record
from tests.faults.runner import Plan, Result
from tests.faults.supervisor import run_apart
from tests.faults.violation import Kind

EXAMPLES = 5
"""So many findings of a proof are printed; --json has them all."""


RunOne = Callable[[Proof, Plan, Callable[[int, int], None], threading.Event], Result]


def main(arguments: Sequence[str] | None = None, run: RunOne = run_apart) -> int:
    """Run the command and return its exit code. `run` is how one proof is run."""
    parser = _parser()
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140, soft_wrap=True, highlight=False)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # or the C core says something at every fork
    proofs = load()
    if options.list:
        console.print(_listing(proofs))
        return 0
    _check(parser, options, proofs)
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    plan = Plan(
        seed=seed,
        quick=options.quick,
        runs=options.runs,
        only=options.only,
        seconds=options.seconds,
        budget=options.budget,
    )
    chosen = [proofs[options.name]] if options.name != "all" else list(proofs.values())
    if options.rows is not None:
        chosen = [proof for proof in chosen if proof.row in options.rows]
    if options.into is not None and not options.force:
        is_done = is_recorded if options.missing else is_current
        chosen = [proof for proof in chosen if not is_done(_file_of(proof, options.into), plan)]
    console.print(f"seed: {seed}")
    results = []
    for result in _run_all(chosen, plan, options.jobs, run):
        results.append(result)
        _tell(result, plan, console)
        if options.into is not None:
            write_record(_file_of(result.proof, options.into), plan, [result])

    if options.table:
        console.print(_by_kind(results))
    broken = [result for result in results if result.findings]
    if broken and len(results) > 1:  # again, where whoever reads the end of a long log will look
        for result in broken:
            _tell_findings(result, plan, console)
    violations = sum(len(result.findings) for result in results)
    runs = sum(result.runs for result in results)
    style = "bold red" if violations else "bold green"
    console.print(f"[{style}]violations: {violations} in {runs} runs[/]")
    if options.json:
        write_record(options.json, plan, results)
    if violations:
        return 1
    return 2 if options.name != "all" and any(result.skipped for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("name", nargs="?", metavar="NAME", help='a proof, or "all"; see --list')
    parser.add_argument("--list", action="store_true", help="list the proofs and leave")
    parser.add_argument("--rows", type=_rows, metavar="FIRST-LAST", help='of "all", only these rows of the fault table')
    parser.add_argument("--runs", type=_from(1), metavar="N", help="make so many runs, not as many as the proof says")
    parser.add_argument("--only", type=_from(0), metavar="RUN", help="make only the run of this number")
    parser.add_argument("--seed", type=int, metavar="S", help="the seed of all chance; drawn when not given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here")
    parser.add_argument("--into", type=Path, metavar="DIRECTORY", help="write a file for each proof here, when it ends")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--force", action="store_true", help="with --into, also what is recorded for this code already")
    again.add_argument("--missing", action="store_true", help="with --into, only what is recorded for no code at all")
    parser.add_argument("--quick", action="store_true", help="the short form")
    parser.add_argument(
        "--for", dest="seconds", type=_duration, metavar="TIME", help="how long a soak lasts: 10min, 8h"
    )
    parser.add_argument("--budget", type=_duration, metavar="TIME", help="begin no run of a proof later than that: 2h")
    parser.add_argument("--jobs", type=_from(1), default=1, metavar="N", help="run so many proofs side by side (1)")
    parser.add_argument("--table", action="store_true", help="end with a table of violations by kind")
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace, proofs: dict[str, Proof]) -> None:
    """Refuse a command line that means nothing."""
    if options.name is None:
        parser.error('which proof? --list names them, "all" runs them')
    if options.name != "all" and options.name not in proofs:
        parser.error(f"there is no proof {options.name!r}: --list names them")
    if options.rows is not None and options.name != "all":
        parser.error('--rows chooses from "all"')
    if options.only is not None and options.name == "all":
        parser.error("--only is the number of a run of one proof: name that proof")


def _file_of(proof: Proof, directory: Path) -> Path:
    return directory / f"{proof.name}.json"


def _from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return number


def _rows(text: str) -> range:
    first, _, last = text.partition("-")
    try:
        return range(int(first), int(last) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of rows such as 1-13") from None


def _duration(text: str) -> float:
    value = parse_seconds(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time such as 20s, 10min or 8h")
    return value


def _by_kind(results: Sequence[Result]) -> Table:
    """Return a table of the number of violations of every kind, zeros included."""
    counted = sum((result.kinds for result in results), Counter[Kind]())
    table = Table(box=None, pad_edge=False)
    table.add_column("violation")
    table.add_column("times", justify="right")
    for kind in Kind:
        table.add_row(kind.value, str(counted[kind]), style="bold red" if counted[kind] else "")
    return table


def load() -> dict[str, Proof]:
    """Every proof there is, in the order of the fault table. Importing a module registers what it has."""
    for module in pkgutil.iter_modules(tests.faults.__path__):
        if module.name != "__main__":
            importlib.import_module(f"tests.faults.{module.name}")
    return dict(sorted(PROOFS.items(), key=lambda item: (item[1].row, item[0])))


def _run_all(proofs: Sequence[Proof], plan: Plan, jobs: int, run: RunOne) -> Iterator[Result]:
    """The results, in the order of the proofs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    watchers = Console(stderr=True)
    stop = threading.Event()
    with Progress(*columns, console=watchers, transient=True, disable=not watchers.is_terminal) as bar:

        def run_one(proof: Proof) -> Result:
            task = bar.add_task(proof.name)
            try:
                return run(proof, plan, lambda done, total: bar.update(task, completed=done, total=total), stop)
            finally:
                bar.remove_task(task)

        pool = ThreadPoolExecutor(jobs)
        try:
            yield from pool.map(run_one, proofs) if jobs > 1 else map(run_one, proofs)
        finally:
            stop.set()  # only an interruption leaves anything to stop
            pool.shutdown(cancel_futures=True)


def _tell(result: Result, plan: Plan, console: Console) -> None:
    heading = _heading(result.proof)
    if result.findings:
        _tell_findings(result, plan, console)
    elif result.skipped is not None:
        console.print(f"[yellow]–[/] {heading}: skipped, {escape(result.skipped)}")
    else:
        of = f" of {result.planned}" if result.planned is not None and result.runs < result.planned else ""
        console.print(f"[green]✓[/] {heading}: {result.runs}{of} runs, {result.seconds:.1f} s")
    for note in result.notes:
        console.print(f"      {escape(note)}")


def _heading(proof: Proof) -> str:
    return f"{proof.row:3} {proof.name}"


def _tell_findings(result: Result, plan: Plan, console: Console) -> None:
    kinds = ", ".join(f"{count} × {kind.value}" for kind, count in result.kinds.most_common())
    console.print(f"[red]✗ {_heading(result.proof)}: {kinds} in {result.runs} runs[/]")
    for finding in result.findings[:EXAMPLES]:
        where = "before the first run" if finding.run is None else f"run {finding.run}"
        console.print(f"      {where}: {escape(str(finding.violation))}")
    if len(result.findings) > EXAMPLES:
        console.print(f"      and {len(result.findings) - EXAMPLES} more")
    first = result.findings[0]
    again = f"python -m tests.faults {result.proof.name} --seed {plan.seed}"
    again += "" if first.run is None else f" --only {first.run}"
    console.print(f"      again: {again}{' --quick' if plan.quick else ''}")
    if first.directory:
        console.print(f"      its files: {first.directory}")


def _listing(proofs: dict[str, Proof]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("row", "name", "runs", "quick", "fault"):
        table.add_column(heading, justify="right" if heading in ("row", "runs", "quick") else "left")
    for proof in proofs.values():
        every = "every case"
        table.add_row(
            str(proof.row),
            proof.name,
            every if proof.runs is None else str(proof.runs),
            every if proof.quick is None else str(proof.quick),
            proof.title,
        )
    return table


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)  # the end of this process is the end of its workers
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
