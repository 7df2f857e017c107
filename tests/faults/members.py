"""Members of a group as processes, with journals of what each was handed and what it has committed.

A journal outlives its member. Times are of the monotonic clock, which all processes share, so journals can be merged.
`python -m tests.faults.members member DIRECTORY ADDRESS NAME MOST WORK` is a member that is not forked.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import headwater as hw
from headwater import ConsumedRecord, StaleMember, Store
from tests.faults.violation import Kind, Violation
from tests.support.patience import Patience

STORE: Final = "store"
TOPIC: Final = "orders"
GROUP: Final = "billing"
HANDED: Final = "handed"
DONE: Final = "done"


class Entry(NamedTuple):
    """A stretch of offsets that a member was handed by a poll that began then, or has committed by then."""

    at: int
    member: str
    event: str
    partition: int
    start: int
    end: int


class Mortal(Protocol):
    """A member's process."""

    def kill(self) -> None:
        """kill -9."""


_Member = TypeVar("_Member", bound=Mortal)


def change(
    random: Random,
    directory: Path,
    members: dict[str, _Member],
    leaving: list[_Member],
    *,
    most: int,
    join: Callable[[], None],
) -> None:
    """Someone joins, leaves or dies; there are at most so many, and never fewer than one."""
    what = random.choice(["join", "leave", "die"])
    if len(members) < 2 or (what == "join" and len(members) < most):
        join()
        return
    name = random.choice(sorted(members))
    if what == "die":
        members.pop(name).kill()
    else:
        (directory / f"{name}.stop").touch()
        leaving.append(members.pop(name))


def produce(store: Store, count: int, burst: int, pause: float = 0.0) -> None:
    """Send `count` records, spread over the partitions, `burst` by burst."""
    with store.producer(TOPIC) as out:
        for first in range(0, count, burst):
            values = [b"%d" % number for number in range(first, min(first + burst, count))]
            out.send_batch(values, keys=values)
            time.sleep(pause)


def consume(
    directory: Path, name: str, max_records: int = 200, work: float = 0.0, where: str | None = None, **options: Any
) -> None:
    """A member: notes what it is handed, does it, commits, and notes that. It leaves when it finds its stop file.

    With `max_records` 0 it takes batches. Options are those of ConsumerConfig. If this member was too late and
    another one was given its records, they are not noted as done. The store is in the directory, or at `where`.
    """
    stop, everyone = directory / f"{name}.stop", directory / "all.stop"
    journal = os.open(directory / f"{name}.journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    options = {"refresh_interval": 0.2} | options
    with open_store(directory, where) as store, store.consumer(TOPIC, group=GROUP, **options) as inbox:
        while not stop.exists() and not everyone.exists():
            began = time.monotonic_ns()
            batches = inbox.poll_batches(timeout=0.1) if max_records == 0 else []
            records = inbox.poll(max_records, timeout=0.1) if max_records > 0 else []
            stretches = [(one.partition, one.start, one.end) for one in batches] or _stretches(records)
            _note(journal, began, HANDED, stretches)
            time.sleep(work)
            try:
                for partition, start, end in stretches:
                    inbox.ack_range(TOPIC, partition, start, end)
                inbox.commit()
            except StaleMember:
                continue
            _note(journal, time.monotonic_ns(), DONE, stretches)


def open_store(directory: Path, where: str | None = None) -> Store:
    """The store in the directory, or behind brokers; of these, who is dead is to be known soon."""
    return hw.open(directory / STORE) if where is None else hw.open(where, client=hw.ClientConfig(heartbeat=0.5))


Stretch = tuple[int, int, int]
"""A partition, the first offset, and the one after the last."""


def _stretches(records: list[ConsumedRecord]) -> list[Stretch]:
    found: list[Stretch] = []
    for record in records:
        partition, start, end = found[-1] if found else (-1, 0, 0)
        if (partition, end) == (record.partition, record.offset):
            found[-1] = partition, start, end + 1
        else:
            found.append((record.partition, record.offset, record.offset + 1))
    return found


def _note(journal: int, at: int, event: str, stretches: list[Stretch]) -> None:
    lines = [f"{at} {event} {partition} {start} {end}\n" for partition, start, end in stretches]
    os.write(journal, "".join(lines).encode())


def read_journals(directory: Path) -> list[Entry]:
    """Return what all members noted, in the order of time."""
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

    def watch(self, seconds: float, expected: int | None = None, pause: float = 0.005) -> Iterator[Violation]:
        """Look for so many seconds, as `Patience` counts them, or until the group has done the `expected` records."""
        patience = Patience(seconds)
        while not patience.exhausted() and not (expected is not None and self.finished(expected)):
            yield from self.look()
            time.sleep(pause)

    def finished(self, expected: int) -> bool:
        """Return whether there are that many records, and the group has done them all."""
        ends = ends_of(self._store)
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


def repeated(directory: Path, ends: dict[int, int]) -> int:
    """Return how many records were handed out more than once."""
    seen = {number: bytearray(end) for number, end in ends.items()}
    total = 0
    for entry in read_journals(directory):
        if entry.event == HANDED:
            total += entry.end - entry.start
            seen[entry.partition][entry.start : entry.end] = b"\1" * (entry.end - entry.start)
    return total - sum(some.count(1) for some in seen.values())


def ends_of(store: Store) -> dict[int, int]:
    """Return the end of each partition."""
    return {number: bounds.end for number, bounds in store.topic(TOPIC).bounds().items()}


if __name__ == "__main__":
    _, _, place, address, member, most, work_seconds = sys.argv
    consume(Path(place), member, int(most), float(work_seconds), address)
