"""Journals: what producers sent and were told is safe, and what readers were given, held against the log in the end.

They are files, so that they outlive the processes that keep them. A producer that starts again goes on from its
journal: what it does not know to be safe, and can identify, it sends again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

from headwater.log import Appended, DirectoryPartition, Frame, Identity, encode
from tests.faults.checker import check
from tests.faults.violation import Kind, Violation

KINDS = ("plain", "group", "idempotent", "writer")
"""Streams of appends: frames and groups of them, unidentified and identified. Only the last two can be retried."""


class Unit(NamedTuple):
    """One append: `serial` counts those of a stream, `first` its records; `counts` are the records of its frames."""

    stream: str
    serial: int
    first: int
    counts: tuple[int, ...]

    @property
    def numbers(self) -> range:
        """The numbers of its records in the stream."""
        return range(self.first, self.first + sum(self.counts))

    def values(self) -> list[list[bytes]]:
        """Its records' values, which say who they are, in frames; and of which unit, so that halves are noticed."""
        groups, number = [], self.first
        for count in self.counts:
            names = [f"{self.stream}:{n}:{self.first}:{self.numbers.stop}:" for n in range(number, number + count)]
            groups.append([name.encode().ljust(50 + 37 * number % 400, b".") for name in names])
            number += count
        return groups

    def frames(self) -> list[Frame]:
        """Return the frames to append."""
        name, kind = self.stream.split("-")
        identity = None
        if kind == "idempotent":
            identity = Identity(name.encode().ljust(16, b"i"), 0, self.first)
        elif kind == "writer":
            identity = Identity(name.encode().ljust(16, b"w"), 0, self.serial, forever=True)
        return [encode(group, identity=identity) for group in self.values()]


class Journal:
    """Lines in a file, each written by one call. Lines of a killed process stay."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("ab") as file:
            file.write(b"\n")  # ends the line that a killed predecessor may have left cut short

    def write(self, *fields: object) -> None:
        """Add a line."""
        self.write_all([fields])

    def write_all(self, lines: Iterable[Iterable[object]]) -> None:
        """Add lines. Each ends with a mark, so that one cut short by a kill is told from a whole one."""
        with self._path.open("ab", buffering=0) as file:
            file.write("".join(" ".join(map(str, fields)) + " .\n" for fields in lines).encode())

    def lines(self) -> list[list[str]]:
        """The fields of every whole line."""
        lines = [line.split(" ") for line in self._path.read_text().splitlines()]
        return [line[:-1] for line in lines if line[-1] == "."]


class Sent(NamedTuple):
    """The content of a producer's journal: the units in the order of sending, and what it was told of each."""

    units: dict[tuple[str, int], Unit]
    answers: dict[tuple[str, int], list[Appended]]

    @classmethod
    def read(cls, journal: Journal) -> Sent:
        """The units and answers in a journal."""
        sent = cls({}, defaultdict(list))
        for what, stream, serial, *rest in journal.lines():
            key = stream, int(serial)
            if what == "send":
                sent.units[key] = Unit(*key, int(rest[0]), tuple(map(int, rest[1].split(","))))
            else:
                base, end, duplicate = map(int, rest)
                sent.answers[key].append(Appended(base, end, bool(duplicate)))
        return sent


class Producer:
    """Sends units of all kinds, one after the other, and keeps a journal of them. One thread uses it."""

    def __init__(self, partition: DirectoryPartition, name: str, directory: Path, random: Random) -> None:
        self._partition = partition
        self._name = name
        self._journal = Journal(directory / f"{name}.sent")
        self._random = random
        self._next = dict.fromkeys(KINDS, (0, 0))
        self._recent: list[Unit] = []

    def resume(self) -> None:
        """Go on from the journal: send again what may not have arrived and can be identified."""
        sent = Sent.read(self._journal)
        for key, unit in sent.units.items():
            kind = unit.stream.split("-")[1]
            self._next[kind] = unit.serial + 1, unit.numbers.stop
            if kind in ("idempotent", "writer") and key not in sent.answers:
                self._append(unit)

    def step(self) -> None:
        """Send the next unit, and sometimes one of the last ones again."""
        kind = self._random.choice(KINDS)
        serial, first = self._next[kind]
        frames = self._random.randint(2, 4) if kind in ("group", "writer") else 1
        counts = tuple(self._random.randint(1, 3) for _ in range(frames))
        unit = Unit(f"{self._name}-{kind}", serial, first, counts)
        self._next[kind] = serial + 1, unit.numbers.stop
        self._journal.write("send", unit.stream, serial, first, ",".join(map(str, counts)))
        self._append(unit)
        if kind == "idempotent":
            self._recent = [*self._recent[-4:], unit]
            if self._random.random() < 0.2:
                self._append(self._random.choice(self._recent))

    def _append(self, unit: Unit) -> None:
        done = self._partition.append(unit.frames())
        self._journal.write("done", unit.stream, unit.serial, done.base_offset, done.end_offset, int(done.duplicate))


class Follower:
    """Reads a log from its beginning on and keeps a journal of what it is given. One thread uses it."""

    def __init__(self, partition: DirectoryPartition, name: str, directory: Path, random: Random) -> None:
        self._partition = partition
        self._journal = Journal(directory / f"{name}.read")
        self._random = random
        lines = self._journal.lines()
        self._position = int(lines[-1][0]) + 1 if lines else 0

    def go_back(self) -> None:
        """Read again from an older offset: what is served there must not have changed."""
        self._position = self._random.randint(0, self._position)
        self._journal.write(self._position - 1, "from")

    def poll(self) -> bool:
        """Read some of what is new; False when nothing is."""
        position, end = self._position, self._partition.bounds().end
        if position >= end:
            return False
        if self._random.random() < 0.5:
            frames = self._partition.read(position, max_bytes=self._random.randint(1, 20_000))
        else:
            frames = list(self._partition.frames(position, self._random.randint(position + 1, end)))
        for record in chain.from_iterable(frame.records(position) for frame in frames):
            self._journal.write(record.offset, record.value.decode())
            self._position = record.offset + 1
        return True


def verify(log: Path, journals: Path) -> Iterator[Violation]:
    """Read the log and hold every journal in the directory `journals` against it."""
    with DirectoryPartition(log) as partition:
        for report in partition.recovery_reports:
            if report.damage:
                yield Violation(Kind.LOST_WRITE, f"a kill damaged the log: {report}")
        read = {record.offset: record.value.decode() for record in partition.records()}
    if list(read) != list(range(len(read))):
        yield Violation(Kind.LOST_WRITE, f"{len(read)} records, and offsets up to {max(read)}")
    sent = [Sent.read(Journal(path)) for path in sorted(journals.glob("*.sent"))]
    if not any(producer.answers for producer in sent):
        yield Violation(Kind.BLOCKED, "nothing was acknowledged: the run proves nothing")
    yield from _check_ids(sent, list(read.values()))
    yield from _check_answers(sent, read)
    yield from _check_units(read)
    for path in sorted(journals.glob("*.read")):
        yield from check_reader(path.stem, Journal(path).lines(), read)


def _check_ids(sent: list[Sent], read: list[str]) -> Iterator[Violation]:
    """Nothing lost, doubled, reordered or made up."""
    all_sent: dict[str, list[tuple[str, str]]] = defaultdict(list)
    acknowledged: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for producer in sent:
        for key, unit in producer.units.items():
            ids = [(unit.stream, str(number)) for number in unit.numbers]
            all_sent[unit.stream] += ids
            if key in producer.answers:
                acknowledged[unit.stream] += ids
    found = [value.split(":") for value in read]
    yield from check(acknowledged, [(stream, number) for stream, number, *_ in found], all_sent)


def _check_answers(sent: list[Sent], log: dict[int, str]) -> Iterator[Violation]:
    """Every answer names the place where the unit is; retries get the same one. Writers' retries get none."""
    for producer in sent:
        for key, answers in producer.answers.items():
            unit = producer.units[key]
            values = [value.decode() for group in unit.values() for value in group]
            for base, end, _ in answers:
                if base >= 0 and [log.get(offset) for offset in range(base, end)] != values:
                    yield Violation(Kind.FALSE_SUCCESS, f"{unit} is not at {base} to {end - 1}, as was answered")


def _check_units(log: dict[int, str]) -> Iterator[Violation]:
    """Check that records which were appended together are there together."""
    names = [value.split(":")[:4] for value in log.values()]
    for (stream, number, _, end), after in pairwise([*names, ["", "0", "0", "0"]]):
        if int(number) + 1 < int(end) and after[:2] != [stream, str(int(number) + 1)]:
            yield Violation(Kind.LOST_WRITE, f"{stream} {number} is there, the rest of its append up to {end} is not")
    for before, (stream, number, first, _) in pairwise([["", "0", "0", "0"], *names]):
        if number != first and before[:2] != [stream, str(int(number) - 1)]:
            yield Violation(Kind.LOST_WRITE, f"{stream} {number} is there, the beginning of its append {first} is not")


def check_reader(name: str, lines: list[list[str]], log: dict[int, str]) -> Iterator[Violation]:
    """A reader was given each offset in turn, and at each what the log has there in the end.

    A line with `from` begins anew behind an offset, no further on than it was and not before what it has `committed`.
    """
    position = committed = 0
    for number, value in lines:
        offset = int(number)
        if value == "committed":
            committed = max(committed, offset)
            continue
        if value == "from":
            if offset + 1 > position:
                yield Violation(Kind.SKIPPED_BY_POLL, f"{name} began at {offset + 1}, it was at {position} before")
            if offset + 1 < committed:
                yield Violation(Kind.POSITION_MOVED_BACK, f"{name} began at {offset + 1}, it had committed {committed}")
            position = offset + 1
            continue
        if offset != position:
            yield Violation(Kind.SKIPPED_BY_POLL, f"{name} came to {offset} and not to {position}")
        if offset not in log:
            yield Violation(Kind.UNSEEN, f"{name} was given {value[:40]!r} at {offset}, where the log has nothing")
        elif log[offset] != value:
            yield Violation(Kind.SERVED_DAMAGE, f"{name} was given {value[:40]!r} at {offset}, the log has another")
        position = offset + 1
