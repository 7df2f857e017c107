"""Taking measurements: one side alone, or two sides in turns.

Noise on a shared machine comes in waves. Two sides measured one after the other meet different waves, so
`compare` lets them take turns, and alternates who goes first, so that neither always finds the caches warm.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from statistics import median
from time import perf_counter

Measure = Callable[[], float]
"""Does the work once and returns its figure, in any unit; what it prepares first is not in the figure."""


def timed(function: Callable[[], object]) -> Measure:
    """A measure of the seconds that a call of `function` takes."""

    def seconds() -> float:
        started = perf_counter()
        function()
        return perf_counter() - started

    return seconds


def best_of(repeats: int, function: Callable[[], object]) -> float:
    """The seconds of the fastest of several calls: what the work costs when nothing disturbs it.

    Right for the floor of a machine, where all noise is someone else's. Wrong between two systems, whose
    stalls (a sync, a garbage collection) are their own: that is `compare`.
    """
    measure = timed(function)
    return min(_undisturbed(measure) for _ in range(repeats))


def compare(ours: Measure, peer: Measure | None, *, repeats: int = 5, warm_up: int = 1) -> tuple[float, float | None]:
    """The median figure of each side, after the turns to warm up, which do not count.

    Medians, not bests: a best is a run that users hardly ever see, and it flatters the side that varies more.
    And medians of figures, not of ratios: the reader can divide the two figures and gets the ratio that is
    reported.
    """
    sides = [ours] if peer is None else [ours, peer]
    figures: list[list[float]] = [[] for _ in sides]
    for turn in range(warm_up + repeats):
        order = range(len(sides)) if turn % 2 else reversed(range(len(sides)))
        for side in order:
            figure = _undisturbed(sides[side])
            if turn >= warm_up:
                figures[side].append(figure)
    return median(figures[0]), None if peer is None else median(figures[1])


def _undisturbed(measure: Measure) -> float:
    # The garbage of the side before is collected now, and what it left unwritten goes to the disk, not on the time of
    # this one: a file system that is asked to sync one file may have to write the others first. The work that a
    # side causes itself stays in its figure: its users pay for that too.
    gc.collect()
    os.sync()
    return measure()
