"""`python -m tests.support.verdict DIRECTORY`: what failed in parts that ran side by side, a line each.

Each part leaves a file: pytest by `--junitxml`, fault proofs by `--json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree


def failures(directory: Path) -> Iterator[str]:
    """Return the failures and their reasons."""
    for file in sorted(directory.glob("*.xml")):
        for case in ElementTree.parse(file).iter("testcase"):
            for what in case:
                if what.tag in ("failure", "error"):
                    yield f"{case.get('classname')}::{case.get('name')}: {_first_line(what.get('message', ''))}"
    for file in sorted(directory.glob("*.json")):
        for proof in json.loads(file.read_text())["proofs"]:
            for found in proof["violations"]:
                yield f"{proof['name']}, run {found['run']}: {found['kind']}: {_first_line(found['detail'])}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:500]


if __name__ == "__main__":
    for line in failures(Path(sys.argv[1])):
        print("failed:", line)  # noqa: T201
