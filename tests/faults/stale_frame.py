"""A stale frame: in the place of one frame lies another that was written there in an earlier life of the log.

A disk that lost a write, or gave an old block back, does this. Such a frame is whole, has the right length and the
right offset, and was even written by the log itself. Only the chain tells: it does not follow the frame before it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from headwater.log import DirectoryPartition
from tests.faults import Kind, Run, Violation, proof
from tests.faults.specimen import Author, compare, copy, goes_on, open_log


@proof(row=24, title="a frame of an earlier life in the place of a newer one", runs=200, quick=20)
def stale_frame(run: Run) -> Iterator[Violation]:
    """Write two futures of one log, and put a frame of the one, or its state, into the other."""
    counts = [run.random.randint(1, 4) for _ in range(6)]
    with open_log(run.directory / "past") as partition:
        past = Author(partition)
        past.append(counts[0])
        past.append(counts[1], counts[2])
    places, _ = _write(run.directory, "other", counts[3:5], number=1000)
    after, written = _write(run.directory, "future", counts[3:], number=2000)
    (start, stop), end = places[1], sum(counts)
    lost = range(sum(counts[:4]), sum(counts[:5]))
    stale = _bytes(run.directory / "other")[start:stop]
    if after[:2] != places:
        yield Violation(Kind.CRASH, f"the two futures do not fit: {places} and {after}: the run proves nothing")
    written = past.written | written
    begun = {offset: value for offset, value in written.items() if offset < lost.start}
    for state in ("past", "none", "future"):
        for closed in (False, True) if state == "future" else (False,):
            path = _mix(run.directory, state, stale, start, closed)
            yield from _told(f"in the middle, state {state}", _check(path, written, lost, end))
    path = copy(run.directory / "future", run.directory / "mixture")
    shutil.copy(run.directory / "other" / "state", path / "state")
    yield from _told("nothing stale but the state", _check(path, written, range(0), end))
    for state in ("past", "none"):
        path = _mix(run.directory, state, stale, start, closed=False)
        os.truncate(max(path.glob("*.log")), stop)
        yield from _told(f"at the end, state {state}", _check(path, begun, range(0), lost.start))


def _write(
    directory: Path, name: str, counts: list[int], number: int
) -> tuple[list[tuple[int, int]], dict[int, bytes]]:
    """A future of the past log: where each of its appends lies, and what is in them."""
    log = copy(directory / "past", directory / name)
    places = []
    with open_log(log) as partition:
        author = Author(partition, number=number)
        for count in counts:
            start = len(_bytes(log))
            author.append(count)
            places.append((start, len(_bytes(log))))
    return places, author.written


def _bytes(log: Path) -> bytes:
    return max(log.glob("*.log")).read_bytes()


def _mix(directory: Path, state: str, stale: bytes, start: int, closed: bool) -> Path:
    """The future log, in a closed segment or the growing one, with a stale frame in it and the state of some moment."""
    path = copy(directory / "future", directory / "mixture")
    log = max(path.glob("*.log"))
    if closed:
        with open_log(path) as partition:
            partition.roll()
    with log.open("r+b") as file:
        file.seek(start)
        file.write(stale)
    if state == "past":
        shutil.copy(directory / "past" / "state", path / "state")
    elif state == "none":
        (path / "state").unlink()
    return path


def _told(where: str, found: Iterator[Violation]) -> Iterator[Violation]:
    for violation in found:
        yield Violation(violation.kind, f"{where}: {violation.detail}")


def _check(path: Path, written: dict[int, bytes], lost: range, end: int) -> Iterator[Violation]:
    with open_log(path) as partition:
        yield from _served(partition, written, lost, end)
        author = Author(partition, number=3000)
        yield from goes_on(author, end)
    with open_log(path) as partition:
        yield from _served(partition, written | author.written, lost, end + 1)


def _served(partition: DirectoryPartition, written: dict[int, bytes], lost: range, end: int) -> Iterator[Violation]:
    if partition.bounds().end != end:
        yield Violation(Kind.LOST_WRITE, f"the log ends at {partition.bounds().end}, not at {end}")
    yield from compare(partition, written, lost)
