"""Members of a group as processes, with journals of what each was handed and what it has committed.

A journal outlives its member. Times are of the monotonic clock, which all processes share, so journals can be merged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import headwater as hw
from headwater import ConsumedRecord, Store
from tests.faults.violation import Kind, Violation

STORE: Final = "store"
TOPIC: Final = "orders"
GROUP: Final = "billing"
HANDED: Final = "handed"
DONE: Final = "done"


class Entry(NamedTuple):
    """A stretch of offsets that a member was handed, or has committed."""

    at: int
    member: str
    event: str
    partition: int
    start: int
    end: int


def produce(directory: Path, count: int, batch: int, pause: float) -> None:
    """A producing process: `count` records, spread over the partitions, synced and visible `batch` by batch."""
    with hw.open(directory / STORE) as store, store.producer(TOPIC) as out:
        for first in range(0, count, batch):
            for number in range(first, min(first + batch, count)):
                out.send(b"%d" % number, key=b"%d" % number)
            out.sync()
            time.sleep(pause)


def consume(directory: Path, name: str, max_records: int = 200, work: float = 0.0) -> None:
    """A member: notes what it is handed, does it, commits, and notes that. It leaves when it finds its stop file."""
    stop, everyone = directory / f"{name}.stop", directory / "all.stop"
    journal = os.open(directory / f"{name}.journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with hw.open(directory / STORE) as store, store.consumer(TOPIC, group=GROUP, refresh_interval=0.2) as inbox:
        while not stop.exists() and not everyone.exists():
            records = inbox.poll(max_records, timeout=0.1)
            _note(journal, HANDED, records)
            time.sleep(work)
            for record in records:
                inbox.ack(record)
            inbox.commit()
            _note(journal, DONE, records)


def _note(journal: int, event: str, records: list[ConsumedRecord]) -> None:
    stretches: list[list[int]] = []
    for record in records:
        if stretches and stretches[-1][0] == record.partition and stretches[-1][2] == record.offset:
            stretches[-1][2] += 1
        else:
            stretches.append([record.partition, record.offset, record.offset + 1])
    at = time.monotonic_ns()
    lines = [f"{at} {event} {partition} {start} {end}\n" for partition, start, end in stretches]
    os.write(journal, "".join(lines).encode())


def read_journals(directory: Path) -> list[Entry]:
    """What all members noted, in the order of time."""
    found: list[Entry] = []
    for file in directory.glob("*.journal"):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                at, event, *numbers = line.split()
                found.append(Entry(int(at), file.stem, event, *map(int, numbers)))
    return sorted(found)


class Positions:
    """The group's positions, looked at again and again: they do not move back."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: dict[int, int] = {}

    def look(self) -> Iterator[Violation]:
        """Compare with the last look."""
        for (_, partition), position in self._store.group(GROUP).committed().items():
            before = self._last.get(partition, 0)
            if position.offset < before:
                yield Violation(Kind.POSITION_MOVED_BACK, f"partition {partition}: {before} to {position.offset}")
            self._last[partition] = position.offset

    def watch(self, seconds: float, expected: int | None = None) -> Iterator[Violation]:
        """Look for so long, or until the group has done the `expected` records."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not (expected is not None and self.finished(expected)):
            yield from self.look()
            time.sleep(0.005)

    def finished(self, expected: int) -> bool:
        """Whether there are that many records, and the group has done them all."""
        ends = {number: bounds.end for number, bounds in self._store.topic(TOPIC).bounds().items()}
        return sum(ends.values()) == expected and all(self._last.get(number) == end for number, end in ends.items())


def verify(directory: Path, ends: dict[int, int]) -> Iterator[Violation]:
    """Every record was handed to someone, and to nobody once it was committed."""
    handed: dict[int, bytearray] = {number: bytearray(end) for number, end in ends.items()}
    done: dict[int, bytearray] = {number: bytearray(end) for number, end in ends.items()}
    for entry in read_journals(directory):
        span = slice(entry.start, entry.end)
        if entry.event == DONE:
            done[entry.partition][span] = b"\1" * (entry.end - entry.start)
            continue
        if any(done[entry.partition][span]):
            where = f"partition {entry.partition}, {entry.start} to {entry.end}"
            yield Violation(Kind.DUPLICATE, f"{where}: handed to {entry.member} after it was committed")
        handed[entry.partition][span] = b"\1" * (entry.end - entry.start)
    for number, seen in handed.items():
        missing = seen.find(0)
        if missing >= 0:
            detail = f"partition {number}: {seen.count(0)} records from {missing} on were handed to nobody"
            yield Violation(Kind.SKIPPED_BY_POLL, detail)


def repeated(directory: Path) -> int:
    """How many records were handed out more than once."""
    entries = [entry for entry in read_journals(directory) if entry.event == HANDED]
    total = sum(entry.end - entry.start for entry in entries)
    return total - len({(entry.partition, offset) for entry in entries for offset in range(entry.start, entry.end)})
