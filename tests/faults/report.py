"""`python -m tests.faults.report FILES > docs/proofs.md`: write the page of proofs from their records.

Of several records of one proof the newest counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.__main__ import load
from tests.faults.proof import Proof

HEADING = """\
# Proofs

This page shows the runs of each fault proof, and their findings. `make proofs` runs them in full and writes this page
from their records. *Runs* is how many were made, and *of* how many a full proof has: one that would take very long on
one machine ends when its time is over. `python -m tests.faults NAME --seed SEED --only RUN` makes one run again.

| row | proof | fault | runs | of | seed | commit | date | violations |
| --: | --- | --- | --: | --: | --: | --- | --- | --: |
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the page."""

    proof: Proof
    runs: int
    planned: int | None
    seed: int
    commit: str
    date: str
    violations: int
    skipped: str | None

    @property
    def line(self) -> str:
        """The line in Markdown."""
        runs = "skipped" if self.skipped is not None else str(self.runs)
        of = "?" if self.planned is None else str(self.planned)
        cells = (
            str(self.proof.row),
            f"`{self.proof.name}`",
            self.proof.title,
            runs,
            of,
            str(self.seed),
            f"`{self.commit}`",
            self.date,
            str(self.violations),
        )
        return f"| {' | '.join(cells)} |\n"


def entries(documents: Iterable[dict[str, Any]], proofs: dict[str, Proof]) -> dict[str, Entry]:
    """The newest record of each proof. Short forms and proofs that are gone are left out."""
    newest: dict[str, Entry] = {}
    for document in sorted(documents, key=lambda document: str(document["date"])):
        commit = str(document["commit"] or "unknown")[:12] + (" with changes" if document["dirty"] else "")
        for result in document["proofs"]:
            name = result["name"]
            if document["quick"] or name not in proofs:
                continue
            newest[name] = Entry(
                proofs[name],
                result["runs"],
                _in_full(proofs[name], result["planned"]),
                document["seed"],
                commit,
                str(document["date"])[:10],
                len(result["violations"]),
                result["skipped"],
            )
    return newest


def _in_full(proof: Proof, planned: int | None) -> int | None:
    """Return how many runs the full form has. An exhaustive one counts its cases when it begins."""
    return planned if proof.runs is None else proof.runs


def page(documents: Iterable[dict[str, Any]], proofs: dict[str, Proof]) -> str:
    """The page, in the order of the fault table. Proofs without a record have lines without figures."""
    found = entries(documents, proofs)
    lines = [
        found[name].line
        if name in found
        else f"| {proof.row} | `{name}` | {proof.title} | 0 | {proof.runs or '?'} | | | | |\n"
        for name, proof in proofs.items()
    ]
    return HEADING + "".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Print the page."""
    documents = [json.loads(Path(name).read_text(encoding="utf-8")) for name in arguments]
    sys.stdout.write(page(documents, load()))


if __name__ == "__main__":
    main(sys.argv[1:])
