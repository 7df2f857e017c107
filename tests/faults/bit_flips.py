"""Bit flips: each bit of every kind of header and small file, and random bits of the records' own bytes.

A flipped bit is found, what it hit is named and never served, and everything else is still there: to a reader that
had the log open before, to the next one that opens it, and after both have written on.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from headwater.core.errors import Damaged
from headwater.log import DirectoryPartition, Identity
from headwater.log.files.segment import SEGMENT_HEADER_BYTES
from headwater.log.format.frame import HEADER_BYTES
from tests.faults import Kind, Run, Violation, proof
from tests.faults.specimen import Author, compare, copy, flip, frames, goes_on, open_log

FLIPS_PER_RUN = 64
BODY_FLIPS = 10_000
START = 2
RETRIED = Identity(b"the producer's i", epoch=1, sequence=2)


class Target(NamedTuple):
    """Bytes of a file from `start` to `stop`, and the offsets that are lost with any bit of them."""

    file: str
    start: int
    stop: int
    lost: range

    @property
    def bits(self) -> int:
        """The number of bits to flip."""
        return 8 * (self.stop - self.start)


class Specimen(NamedTuple):
    """A log of two closed segments and a growing one, and what there is to damage."""

    written: dict[int, bytes]
    retried: int
    headers: list[Target]
    bodies: list[Target]


def _write(directory: Path, delete_last: bool = True) -> Specimen:
    """Write the log. Its last change is an append, or else the deletion of the first records."""
    with open_log(directory) as partition:
        author = Author(partition)
        retried = sequence = 0
        for closed in (True, True, False):
            for count in (2, 1, 3):
                author.append(count)
            if closed:
                retried = author.append(2, identity=RETRIED._replace(sequence=sequence)).base_offset
                sequence = RETRIED.sequence
            author.append(2, 1, 2)
            author.append(3, compression="zstd")
            if closed:
                author.append(1)
                partition.roll()
        for last in (False, True):
            if last == delete_last:
                partition.delete_before(START)
            else:
                author.append(1)
        chosen = [_frame(directory, partition, number) for number in (-14, -4, -1)]
    written = {offset: value for offset, value in author.written.items() if offset >= START}
    heads = [Target(file, start, start + HEADER_BYTES, lost) for file, start, _, lost in chosen]
    bodies = [Target(file, start + HEADER_BYTES, stop, lost) for file, start, stop, lost in chosen]
    return Specimen(written, retried, heads + _files(directory), bodies)


def _frame(directory: Path, partition: DirectoryPartition, number: int) -> Target:
    """Return where the frame with this number lies."""
    frame = list(partition.frames())[number]
    content = frame.data.to_pybytes()
    for log in sorted(directory.glob("*.log")):
        start = log.read_bytes().find(content)
        if start >= 0:
            offsets = range(frame.header.base_offset, frame.header.next_offset)
            return Target(log.name, start, start + len(content), offsets)
    raise LookupError(f"frame {number} is in no segment")


def _files(directory: Path) -> list[Target]:
    """The segments' headers, and all of the small files: they can be made anew from what they speak of."""
    names = sorted(path.name for path in directory.iterdir() if path.is_file() and path.name != "lock")
    return [
        Target(name, 0, SEGMENT_HEADER_BYTES if name.endswith(".log") else (directory / name).stat().st_size, range(0))
        for name in names
    ]


@cache
def _header_bits() -> int:
    with TemporaryDirectory(prefix="headwater-cases-") as directory:
        return sum(target.bits for target in _write(Path(directory, "log")).headers)


def _runs() -> int:
    return -(-(_header_bits() + BODY_FLIPS) // FLIPS_PER_RUN)


@proof(
    row=7,
    title="bit flip in each header bit and random body bits: detected, never served, later good frames kept",
    runs=None,
    quick=3,
    cases=lambda _: _runs(),
)
def bit_flips(run: Run) -> Iterator[Violation]:
    """Flip bits one at a time, each in a fresh copy. The bits of a run are spread over all that there is."""
    specimen = _write(run.directory / "whole", delete_last=run.random.random() < 0.5)
    for number in range(run.number, _header_bits() + BODY_FLIPS, _runs()):
        target, bit = _choose(specimen, number, run.random)
        opened_before = run.random.random() < 0.5
        path = copy(run.directory / "whole", run.directory / "flipped")
        where = f"bit {bit} of {target.file}{', open meanwhile' if opened_before else ''}"
        try:
            for violation in _check(path, specimen, target, bit, opened_before, run.random):
                yield Violation(violation.kind, f"{where}: {violation.detail}")
        except Exception as error:  # noqa: BLE001 - the other bits of this run are still to be tried
            yield Violation(Kind.CRASH, f"{where}: {error!r}", traceback.format_exc())


def _choose(specimen: Specimen, number: int, random: Random) -> tuple[Target, int]:
    for target in specimen.headers:
        if number < target.bits:
            return target, 8 * target.start + number
        number -= target.bits
    target = random.choice(specimen.bodies)
    return target, 8 * target.start + random.randrange(target.bits)


def _check(
    path: Path, specimen: Specimen, target: Target, bit: int, opened_before: bool, random: Random
) -> Iterator[Violation]:
    written, end = specimen.written, max(specimen.written) + 1
    if not opened_before:
        flip(path / target.file, bit)
    with open_log(path) as partition:
        if opened_before:
            flip(path / target.file, bit)
        yield from _bounds(partition, end)
        yield from compare(partition, written, target.lost)
        for offset in random.sample(range(START, end), 3):
            yield from _found(partition, offset, written[offset], target.lost)
        again = partition.append(frames(0, [2], identity=RETRIED))
        if (again.base_offset, again.duplicate) != (specimen.retried, True):
            yield Violation(Kind.DUPLICATE, f"the retry of {specimen.retried} was answered with {again}")
        author = Author(partition, number=1000)
        yield from goes_on(author, end)
        yield from compare(partition, written | author.written, target.lost)
    with open_log(path) as partition:
        yield from _bounds(partition, end + 1)
        yield from compare(partition, written | author.written, target.lost)


def _bounds(partition: DirectoryPartition, end: int) -> Iterator[Violation]:
    found = partition.bounds()
    if found.start != START:
        yield Violation(Kind.POSITION_MOVED_BACK, f"the log starts at {found.start}, not {START}")
    if found.end < end:
        yield Violation(Kind.LOST_WRITE, f"the log ends at {found.end}, not {end}")


def _found(partition: DirectoryPartition, offset: int, value: bytes, lost: range) -> Iterator[Violation]:
    """A read from the middle: it goes by the index."""
    try:
        (record,) = partition.records(offset, offset + 1)
    except Damaged:
        if offset not in lost:
            yield Violation(Kind.LOST_WRITE, f"offset {offset} cannot be read by itself")
        return
    if record.value != value:
        yield Violation(Kind.SERVED_DAMAGE, f"offset {offset} has {record.value[:16]!r} when read by itself")
