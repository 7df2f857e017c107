"""A torn tail: the last append ends at any of its bytes, as a crash or a copy in the wrong moment leaves it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.faults import Kind, Run, Violation, proof
from tests.faults.specimen import Author, compare, copy, frames, goes_on, open_log


class Shape(NamedTuple):
    """The last append: the records of each of its frames, and whether a segment begins with it."""

    counts: tuple[int, ...]
    fresh_segment: bool


SHAPES = (Shape((3,), False), Shape((2, 1, 3), False), Shape((2, 1), True))


def _cuts() -> list[tuple[Shape, int]]:
    """Every shape with every number of its bytes, from none to all."""
    lengths = [(shape, sum(frame.length for frame in frames(0, shape.counts))) for shape in SHAPES]
    return [(shape, kept) for shape, length in lengths for kept in range(length + 1)]


def _write(directory: Path, shape: Shape) -> tuple[dict[int, bytes], bytes, int]:
    """Write a log that ends with `shape`: what is in it, the state before the last append, and where that begins."""
    with open_log(directory) as partition:
        author = Author(partition)
        author.append(2)
        author.append(1, 2)
        author.append(4)
        if shape.fresh_segment:
            partition.roll()
        state, start = (directory / "state").read_bytes(), max(directory.glob("*.log")).stat().st_size
        author.append(*shape.counts)
    return author.written, state, start


@proof(
    row=3,
    title="torn tail: the last append cut at each byte",
    runs=None,
    quick=70,
    cases=lambda _: len(_cuts()),
)
def torn_tail(run: Run) -> Iterator[Violation]:
    """Cut one append at one byte, under the state before it, under no state, and under the state after it."""
    shape, kept = _cuts()[run.number]
    written, state, start = _write(run.directory / "whole", shape)
    cut = kept < sum(frame.length for frame in frames(0, shape.counts))
    before = len(written) - sum(shape.counts)
    for name in ("before", "none", "after"):
        path = copy(run.directory / "whole", run.directory / name)
        os.truncate(max(path.glob("*.log")), start + kept)
        if name == "before":
            (path / "state").write_bytes(state)
        elif name == "none":
            (path / "state").unlink()
        for violation in _check(path, written, before, cut, acknowledged=name == "after"):
            yield Violation(violation.kind, f"{shape}, {kept} bytes kept, state {name}: {violation.detail}")


def _check(path: Path, written: dict[int, bytes], before: int, cut: bool, acknowledged: bool) -> Iterator[Violation]:
    """`acknowledged`: the state says that the last append was synced, so what is cut of it is damage, to be named."""
    lost = range(before, len(written)) if cut and acknowledged else range(0)
    end = before if cut and not acknowledged else len(written)
    kept = {offset: value for offset, value in written.items() if offset < end}
    with open_log(path) as partition:
        if partition.bounds().end != end:
            yield Violation(Kind.LOST_WRITE, f"the log ends at {partition.bounds().end}, not {end}")
        named = any(report.damage for report in partition.recovery_reports)
        if named != bool(lost):
            what = "the damage of good records" if named else "nothing of the damage"
            yield Violation(Kind.FALSE_SUCCESS, f"the report of recovery names {what}")
        yield from compare(partition, kept, lost)
        author = Author(partition, number=1000)
        yield from goes_on(author, end)
        yield from compare(partition, kept | author.written, lost)
    with open_log(path) as partition:
        yield from compare(partition, kept | author.written, lost)
