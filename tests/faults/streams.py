"""Senders and readers of a store's topic, with journals of what they sent, were told is safe, and were given.

They use nothing but the public interface: a producer with its receipts, and a consumer in a group of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple

import headwater as hw
from headwater import HeadwaterError, Producer, Receipt, StaleMember, Store, TopicPartition
from tests.faults.checker import check
from tests.faults.journal import Journal, check_reader
from tests.faults.violation import Kind, Violation

STORE: Final = "store"
TOPIC: Final = "orders"

Way = Literal["sync", "flush", "wait", "go on"]
"""The action of a sender after some records."""
WAYS: Final[tuple[Way, ...]] = ("sync", "flush", "wait")
"""The ways to learn what has become of them."""

LONG: Final = 120.0
"""Longer than anyone is stopped: who waits until then waits for nothing."""

Place = tuple[int, int]
"""A partition and an offset."""


def value_of(name: str, number: int) -> bytes:
    """The value of a sender's record: it says whose it is and which, and by its length whether it is whole."""
    return f"{name}:{number}:".encode().ljust(40 + 37 * number % 400, b".")


class Sent(NamedTuple):
    """The content of a sender's journal: its records in the order of sending, and where it was told that they are."""

    numbers: list[int]
    places: dict[int, Place]

    @classmethod
    def read(cls, journal: Journal) -> Sent:
        """A record that was sent again, because it had failed, counts from there."""
        numbers: dict[int, None] = {}
        places: dict[int, Place] = {}
        for what, *rest in journal.lines():
            for fields in rest:
                number, *place = map(int, fields.split(":"))
                if what == "send":
                    numbers.pop(number, None)
                    numbers[number] = None
                elif what == "done":
                    places[number] = place[0], place[1]
        return cls(list(numbers), places)


class Sender:
    """Sends records through a producer and keeps a journal. Failed records are sent again with the next step.

    Several threads may each have a sender on one producer.
    """

    def __init__(
        self,
        out: Producer,
        name: str,
        directory: Path,
        random: Random,
        partition: int | None = None,
        ways: Sequence[Way] = (*WAYS, "go on"),
    ) -> None:
        self._out = out
        self._name = name
        self._journal = Journal(directory / f"{name}.sent")
        self._random = random
        self._partition = partition
        self._ways = ways
        self._next = max(Sent.read(self._journal).numbers, default=-1) + 1
        self._again: list[int] = []
        self._pending: dict[int, Receipt] = {}

    def step(self) -> None:
        """Send some records, wait for them in one of the ways, and note what is known of them."""
        numbers = self._again
        if not numbers:
            numbers = list(range(self._next, self._next + self._random.randint(1, 60)))
            self._next = numbers[-1] + 1
        self._journal.write("send", *numbers)
        try:
            self._send(numbers)
            match self._random.choice(self._ways):
                case "sync":
                    self._out.sync()
                    self._expect_no_pending()
                case "flush":
                    self._out.flush()
                    self._expect_no_pending()
                case "wait":
                    for receipt in list(self._pending.values()):
                        receipt.wait(LONG)
        finally:
            self._note(numbers)

    def _send(self, numbers: Sequence[int]) -> None:
        if self._random.random() < 0.2:
            values = [value_of(self._name, number) for number in numbers]
            [receipt] = self._out.send_batch(values, partition=self._partition)  # so few are one frame
            places = enumerate(numbers, receipt.number)
            self._pending |= {number: Receipt((receipt.outcome, at)) for at, number in places}
            return
        for number in numbers:
            key = b"%d" % (number % 7) if self._partition is None and self._random.random() < 0.7 else None
            self._pending[number] = self._out.send(value_of(self._name, number), key=key, partition=self._partition)

    def _expect_no_pending(self) -> None:
        for number, receipt in self._pending.items():
            if not receipt.done:
                self._journal.write("false", number)

    def _note(self, numbers: Sequence[int]) -> None:
        """Note where those records are whose outcome is known, and keep those that failed, or were not even taken."""
        self._again = [number for number in numbers if number not in self._pending]
        done: list[str] = []
        for number, receipt in list(self._pending.items()):
            if receipt.done:
                del self._pending[number]
                try:
                    done.append(f"{number}:{receipt.partition}:{receipt.offset}")
                except HeadwaterError:
                    self._again.append(number)
        if done:
            self._journal.write("done", *done)


class Reader:
    """A consumer, the only one of a group, with a journal. Started again, it goes on from the group's position."""

    def __init__(self, store: Store, name: str, directory: Path, random: Random) -> None:
        self._inbox = store.consumer(TOPIC, group=name, refresh_interval=0.1)
        self._journal = Journal(directory / f"{name}.read")
        self._random = random
        self._begun: set[int] = set()

    def poll(self, timeout: float = 0.0) -> bool:
        """Take some of what is new, and mostly commit it; False when nothing is."""
        records = self._inbox.poll(self._random.choice((5, 5, 5, 200)), timeout)  # mostly less than it reads ahead
        lines: list[tuple[int, int, str]] = []
        for record in records:
            if record.partition not in self._begun:
                self._begun.add(record.partition)
                lines.append((record.partition, record.offset - 1, "from"))
            lines.append((record.partition, record.offset, record.value.decode()))
        self._journal.write_all(lines)
        for record in records:
            self._inbox.ack(record)
        if records and self._random.random() < 0.8:
            try:
                self._inbox.commit()
            except StaleMember:  # it was silent for longer than its session, as on a busy machine: it reads on
                self._begun.clear()
                return True
            ends = {record.partition: record.offset + 1 for record in records}
            self._journal.write_all((partition, end, "committed") for partition, end in ends.items())
        return bool(records)

    def lag(self) -> dict[TopicPartition, int]:
        """Return how many records of each partition it has not done."""
        return self._inbox.lag()


def verify(directory: Path) -> Iterator[Violation]:
    """Read the topic with a new consumer and hold every journal in the directory against it."""
    with hw.open(directory / STORE) as store:
        for unhealthy in store.statistics().unhealthy:
            yield Violation(Kind.LOST_WRITE, f"{unhealthy} is damaged")
        log, ends = read_all(store), {number: bounds.end for number, bounds in store.topic(TOPIC).bounds().items()}
    for partition, end in ends.items():
        if list(log[partition]) != list(range(end)):
            detail = f"partition {partition} ends at {end}, {len(log[partition])} records came"
            yield Violation(Kind.SKIPPED_BY_POLL, detail)
    senders = {path.stem: Journal(path) for path in sorted(directory.glob("*.sent"))}
    sent = {name: Sent.read(journal) for name, journal in senders.items()}
    if not any(sender.places for sender in sent.values()):
        yield Violation(Kind.BLOCKED, "nothing was acknowledged: the run proves nothing")
    yield from _check_ids(sent, log)
    yield from _check_values(log)
    yield from _check_receipts(sent, log)
    for name, journal in senders.items():
        for _, number in (line for line in journal.lines() if line[0] == "false"):
            yield Violation(Kind.FALSE_SUCCESS, f"{name} {number} was pending although a flush or sync had returned")
    for path in sorted(directory.glob("*.read")):
        yield from _check_consumer(path.stem, Journal(path), log)


def read_all(store: Store) -> dict[int, dict[int, str]]:
    """Return what a consumer without a group is given, from the beginning to the end: the values of each partition."""
    log: dict[int, dict[int, str]] = defaultdict(dict)
    with store.consumer(TOPIC) as inbox:
        while records := inbox.poll(10_000):
            for record in records:
                log[record.partition][record.offset] = record.value.decode()
    return log


def _check_ids(sent: dict[str, Sent], log: dict[int, dict[int, str]]) -> Iterator[Violation]:
    """Nothing lost, doubled, reordered or made up, in each partition and over all of them."""
    every = {name: [(name, number) for number in sender.numbers] for name, sender in sent.items()}
    seen: dict[tuple[str, int], int] = {}
    for partition, records in log.items():
        acknowledged = {
            name: [(name, number) for number in sender.numbers if sender.places.get(number, (-1,))[0] == partition]
            for name, sender in sent.items()
        }
        read = [_id_of(value) for value in records.values()]
        yield from check(acknowledged, read, every)
        for identity in read:
            if seen.setdefault(identity, partition) != partition:
                yield Violation(Kind.DUPLICATE, f"{identity!r} is in partition {seen[identity]} and in {partition}")


def _check_values(log: dict[int, dict[int, str]]) -> Iterator[Violation]:
    for partition, records in log.items():
        for offset, value in records.items():
            if value.encode() != value_of(*_id_of(value)):
                yield Violation(Kind.SERVED_DAMAGE, f"partition {partition}, {offset}: {value!r:.60} was not sent so")


def _check_receipts(sent: dict[str, Sent], log: dict[int, dict[int, str]]) -> Iterator[Violation]:
    """Every receipt names the place where the record is."""
    for name, sender in sent.items():
        for number, (partition, offset) in sender.places.items():
            value = log[partition].get(offset, "")
            if _id_of(value) != (name, number):
                detail = f"the receipt of {name} {number} says {partition}/{offset}, where {value!r:.40} is"
                yield Violation(Kind.FALSE_SUCCESS, detail)


def _check_consumer(name: str, journal: Journal, log: dict[int, dict[int, str]]) -> Iterator[Violation]:
    lines: dict[int, list[list[str]]] = defaultdict(list)
    for partition, *rest in journal.lines():
        lines[int(partition)].append(rest)
    for number, some in lines.items():
        yield from check_reader(f"{name} in partition {number}", some, log[number])


def _id_of(value: str) -> tuple[str, int]:
    name, number, _ = f"{value}::".split(":", 2)
    return name, int(number or -1)
