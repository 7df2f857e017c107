"""`python -m benchmarks NAME`: run a benchmark, show its table, write its report and its picture.

The exit code is 1 when a goal is missed in a full run, and 2 when the command line is wrong. A quick run
never fails for a missed goal: seconds of measuring on a busy machine prove that a benchmark works, not how
fast anything is.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from rich.console import Console

import benchmarks
from benchmarks.machine import this_commit, this_machine
from benchmarks.report import Report, Row

HARNESS = frozenset(
    {"__main__", "committing", "machine", "measure", "plot", "report", "servers", "spark_kafka", "sparks", "transfer"}
)
RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("name", nargs="?", metavar="NAME", choices=names(), help="a benchmark; see --list")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and exit")
    parser.add_argument("--quick", action="store_true", help="take seconds, not minutes; figures are rough")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw it here, as .svg, .png or .pdf; default in a full run: benchmarks/results/NAME.svg",
    )
    options = parser.parse_args(arguments)
    # A pipe has no width of its own, and rows that wrap at 80 are hard to read in a log.
    people = Console(width=None if sys.stdout.isatty() else 140)
    if options.list:
        for name in names():
            people.print(f"[bold]{name:12}[/] {(_module(name).__doc__ or '').partition(chr(10))[0]}")
        return 0
    if options.name is None:
        parser.error("which benchmark? --list names them")

    report = measure(options.name, options.quick)
    people.print(report.table())
    if options.json:
        report.write_json(options.json)
    # A quick run must not replace the picture of a full one.
    picture = options.plot or (None if options.quick else RESULTS / f"{options.name}.svg")
    if picture:
        from benchmarks.plot import write_plot  # matplotlib takes a second to load

        write_plot(report, picture)
        people.print(f"plot: {picture}")
    if report.missed:
        people.print(f"[bold red]{len(report.missed)} of {len(report.rows)} goals missed[/]")
    return 1 if report.missed and not options.quick else 0


def names() -> list[str]:
    """Every benchmark there is: each module beside this one that is not part of the harness."""
    return sorted({module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - HARNESS)


def measure(name: str, quick: bool) -> Report:
    """Run one benchmark, with its progress on stderr."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    # Not in the system's temporary directory, which is often in memory, where a sync costs nothing.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as directory:
        scratch = Path(directory)
        machine, commit = this_machine(scratch), this_commit(Path.cwd())
        rows = list(_watched(name, _module(name).run(quick, scratch)))
    return Report(benchmark=name, quick=quick, started=started, machine=machine, commit=commit, rows=rows)


def _watched(name: str, rows: Iterator[Row]) -> Iterator[Row]:
    console = Console(stderr=True)
    with console.status(f"{name}: measuring") as status:
        for count, row in enumerate(rows, start=1):
            status.update(f"{name}: measuring ({count} done, the last: {row.work})")
            yield row


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.{name}")


if __name__ == "__main__":
    sys.exit(main())
