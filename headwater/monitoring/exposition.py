"""Exposition: numbers as Prometheus reads them, in its text format 0.0.4.

A family is one metric: its name, its kind, what it means, and a sample for each set of labels. The counting program
makes the families when it is asked; how they are written is the same for all.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


class MetricSample(NamedTuple):
    """One number of a family. The suffix is for the parts of a histogram."""

    labels: Labels
    value: float
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all of its numbers."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    samples: Sequence[MetricSample] = field(default_factory=tuple)


def exposition(families: Iterable[Family]) -> str:
    """All of them, as Prometheus reads them."""
    lines = []
    for family in families:
        lines += [f"# HELP {family.name} {family.meaning}", f"# TYPE {family.name} {family.kind}"]
        for sample in family.samples:
            labels = ",".join(f'{key}="{_escaped(text)}"' for key, text in sample.labels)
            name = family.name + sample.suffix + (f"{{{labels}}}" if labels else "")
            lines.append(f"{name} {sample.value:.15g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Histogram:
    """Counts of how long something took, by labels. Thread-safe."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._mutex = threading.Lock()
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, labels: Labels, value: float) -> None:
        """Count one."""
        bucket = bisect_left(self._bounds, value)
        with self._mutex:
            counts = self._counts.get(labels)
            if counts is None:
                counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
            counts[bucket] += 1
            self._sums[labels] = self._sums.get(labels, 0.0) + value

    def samples(self) -> list[MetricSample]:
        """The buckets, each with all that is below it, and the sum and the count of each set of labels."""
        with self._mutex:
            snapshot = [(labels, list(counts), self._sums[labels]) for labels, counts in self._counts.items()]
        samples = []
        for labels, counts, total in snapshot:
            below = 0
            for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
                below += count
                limit = "+Inf" if bound == float("inf") else f"{bound:g}"
                samples.append(MetricSample((*labels, ("le", limit)), below, "_bucket"))
            samples += [MetricSample(labels, total, "_sum"), MetricSample(labels, below, "_count")]
        return samples
