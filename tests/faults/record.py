"""Records of proofs: what was run, when, on which commit, and what it found, as a document of JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import this_commit
from tests.faults.runner import Plan, Result

_KEYS = frozenset({"quick", "budget", "commit", "dirty", "violations"})

ROOT = Path(__file__).parent.parent.parent
_PROVED = ("headwater", "proto", "tests/faults", "tests/cluster", "tests/spark", "tests/*.py")
"""The files that a proof depends on. Other changes leave its record valid."""


def write_record(file: Path, plan: Plan, results: Sequence[Result]) -> None:
    """Write what came of these proofs."""
    commit = this_commit(ROOT)
    document = {
        "seed": plan.seed,
        "quick": plan.quick,
        "budget": plan.budget,
        "commit": commit.hash if commit else None,
        "dirty": _has_changes() if commit else None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": sum(result.runs for result in results),
        "violations": sum(len(result.findings) for result in results),
        "proofs": [result.as_json() for result in results],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    temporary.replace(file)


def is_recorded(file: Path, plan: Plan) -> bool:
    """Return whether the file records the same plan without a violation, whatever the commit and the seed."""
    document = _read(file)
    return _has_plan(document, plan) and document["commit"] is not None and not document["violations"]


def is_current(file: Path, plan: Plan) -> bool:
    """Return whether the file records the same plan on code that has not changed since. Its seed may be another."""
    document = _read(file)
    return (
        _has_plan(document, plan)
        and not document["dirty"]
        and document["commit"] is not None
        and _unchanged_since(document["commit"])
    )


def _read(file: Path) -> dict[str, Any]:
    """Return a record; an empty one if the file is none."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) and document.keys() >= _KEYS else {}


def _has_plan(document: dict[str, Any], plan: Plan) -> bool:
    return bool(document) and (document["quick"], document["budget"]) == (plan.quick, plan.budget)


def _has_changes() -> bool:
    """Return whether files that proofs depend on differ from the commit. The records themselves are no such files."""
    command = ["git", "-C", str(ROOT), "status", "--porcelain", "--", *_PROVED]
    return bool(subprocess.run(command, check=True, capture_output=True).stdout)


def _unchanged_since(commit: str) -> bool:
    command = ["git", "-C", str(ROOT), "diff", "--quiet", commit, "--", *_PROVED]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0
