"""A report: what was measured, on which machine, and whether the goals are met."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from benchmarks.machine import Commit, Machine


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on the ratio of ours to the peer's figure."""

    bound: Literal["at least", "at most"]
    ratio: float

    def __post_init__(self) -> None:
        if self.ratio <= 0:
            raise ValueError(f"a goal is a ratio above 0, not {self.ratio}")

    def __str__(self) -> str:
        return f"{'≥' if self.bound == 'at least' else '≤'} {self.ratio:g}×"

    def met(self, ratio: float) -> bool:
        """Return whether `ratio` keeps the bound."""
        return ratio >= self.ratio if self.bound == "at least" else ratio <= self.ratio


def at_least(ratio: float) -> Goal:
    """More is better: ours must be `ratio` times the peer's, or more."""
    return Goal("at least", ratio)


def at_most(ratio: float) -> Goal:
    """Less is better: ours must be `ratio` times the peer's, or less."""
    return Goal("at most", ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One piece of work, done by Headwater and by a peer. `ours` and `peer` are figures in the same `unit`.

    `peer` is None when the peer is not installed. A goal without a competitor ("p99 below 10 µs") is a row
    too: the peer is the figure itself (`peer_name="the goal", peer=10, goal=at_most(1)`).
    """

    work: str
    unit: str
    ours: float
    peer_name: str
    peer: float | None
    goal: Goal

    def __post_init__(self) -> None:
        if self.ours <= 0 or (self.peer is not None and self.peer <= 0):
            raise ValueError(f"{self.work}: figures must be above 0, not {self.ours} and {self.peer}")

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's, or None without the peer."""
        return None if self.peer is None else self.ours / self.peer

    @property
    def met(self) -> bool | None:
        """True if the goal is met, or None if there was nothing to compare with."""
        return None if self.ratio is None else self.goal.met(self.ratio)

    @property
    def peer_label(self) -> str:
        """The peer's name, marked when it was not there."""
        return self.peer_name if self.peer is not None else f"{self.peer_name} (absent)"

    def as_json(self) -> dict[str, Any]:
        """The row for programs: plain values, with `goal` the number and `bound` its direction."""
        return {
            "work": self.work,
            "unit": self.unit,
            "ours": self.ours,
            "peer_name": self.peer_label,
            "peer": self.peer,
            "ratio": self.ratio,
            "goal": self.goal.ratio,
            "bound": self.goal.bound,
            "met": self.met,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All rows of one benchmark, and where they come from: figures without their machine mean nothing."""

    benchmark: str
    quick: bool
    started: str
    machine: Machine
    commit: Commit | None
    rows: Sequence[Row]

    @property
    def missed(self) -> list[Row]:
        """The rows whose goal is not met. Rows without their peer are not among them: they say nothing."""
        return [row for row in self.rows if row.met is False]

    def write_json(self, file: Path) -> None:
        """Write the whole report to `file`."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "benchmark": self.benchmark,
            "quick": self.quick,
            "started": self.started,
            "machine": asdict(self.machine),
            "commit": asdict(self.commit) if self.commit else None,
            "rows": [row.as_json() for row in self.rows],
        }

    def table(self) -> Table:
        """The report for people."""
        commit = str(self.commit) if self.commit else "no commit"
        table = Table(
            title=f"{self.benchmark}{' (quick: not to be quoted)' if self.quick else ''}",
            caption=f"{self.machine}\n{commit}",
            title_justify="left",
            caption_justify="left",
        )
        for heading in ("work", "ours", "peer", "", "ratio", "goal"):
            table.add_column(heading, justify="left" if heading in ("work", "") else "right")
        for row in self.rows:
            table.add_row(
                row.work,
                f"{figure(row.ours)} {row.unit}",
                "–" if row.peer is None else f"{figure(row.peer)} {row.unit}",
                row.peer_label,
                Text("–" if row.ratio is None else f"{figure(row.ratio)}×", style=_STYLES[row.met]),
                str(row.goal),
            )
        return table


_STYLES = {True: "bold green", False: "bold red", None: "dim"}


def figure(value: float) -> str:
    """A figure with the digits that a measurement can carry: three, and no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    decimals = 2 if value >= 1 else 3
    return f"{value:.{decimals}f}" if value >= 0.1 else f"{value:.3g}"
