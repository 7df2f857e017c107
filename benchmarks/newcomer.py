"""A new user's first minutes: from `git clone` to a running pipeline, step by step, as the documents say.

Everything is new: a checkout of what is committed here, its own `.venv`, and packages that are fetched, not cached. The
programs are those that the README and docs/pipelines.md show. Limits stand in for a peer.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.report import Row, at_most

_ROOT: Final = Path(__file__).parent.parent
_LIMIT: Final = 300.0
_DEMO_LIMIT: Final = 90.0


def run(quick: bool, scratch: Path) -> Iterator[Row]:
    """Take the steps; the quick form leaves out the tour."""
    checkout, first, second = scratch / "headwater", scratch / "first", scratch / "second"
    for directory in (first, second):
        directory.mkdir()
    binaries = checkout / ".venv" / "bin"
    steps: list[tuple[str, list[str], Path]] = [
        ("git clone", ["git", "clone", "--quiet", "--no-local", str(_ROOT), str(checkout)], scratch),
        ("make setup", ["make", "--silent", "setup"], checkout),
        ("the README's first program", [str(binaries / "python"), "-c", _program("README.md")], first),
        ("records for a pipeline", [str(binaries / "python"), "-c", _program("docs/pipelines.md")], second),
        ("hw pipeline run, with the start of Spark", [str(binaries / "hw"), "pipeline", "run", "revenue.yaml"], second),
    ]
    total = 0.0
    for work, command, directory in steps:
        took = _seconds(command, directory)
        total += took
        yield _row(work, took, _LIMIT)
    yield _row("from git clone to what the pipeline wrote", total, _LIMIT)
    if not quick:
        yield _row("make demo", _seconds(["make", "--silent", "demo"], checkout), _DEMO_LIMIT)


def _program(document: str) -> str:
    """The first program of a document."""
    text = (_ROOT / document).read_text(encoding="utf-8")
    match = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"{document} begins with a program"
    return match[1]


def _seconds(command: list[str], directory: Path) -> float:
    """Return how long a step takes a user whose environment knows nothing of Headwater."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "PYTHON"))}
    environment["PIP_NO_CACHE_DIR"] = "1"
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:3])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return time.perf_counter() - begun


def _row(work: str, seconds: float, limit: float) -> Row:
    return Row(work=work, unit="s", ours=seconds, peer_name="a limit", peer=limit, goal=at_most(1))
