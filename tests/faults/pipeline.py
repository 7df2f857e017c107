"""A pipeline: what is read from one topic is written to two others, and how far it is, in one transaction.

Chance decides what comes next; the same seed gives the same actions. Results are noted, so that a fault can be
inflicted anywhere and the store be held against its notes: outputs are those of the inputs before the group's
positions, each once, and nothing that was noted is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final
from unittest.mock import patch

from headwater.core.config import Sync
from headwater.core.errors import StaleMember
from headwater.embedded import directory_ledger
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Disk, encode
from headwater.streams import Consumer, Staged
from headwater.testing import ManualClock
from tests.faults.verification import UnsyncedDisk
from tests.faults.violation import Kind, Violation

INPUT: Final = "orders"
OUTPUTS: Final = {"invoices": 3, "shipments": 2}
NAMED: Final = {"days": 3, "totals": 2}
"""The topics that the blocks of a named writer write to."""
GROUP: Final = "fulfilment"
WRITER: Final = "nightly"
NUMBERS: Final = 6
"""So many blocks the named writer has to do."""
SEGMENT: Final = 8192
"""Small, so that the partitions roll."""


_FEW_RESERVED = patch.object(directory_ledger, "_RESERVED_AT_ONCE", 2)
"""Sequences are set aside again and again, so that a fault meets it."""


@dataclass(frozen=True, slots=True)
class Noted:
    """The results so far: how far the group is in each partition, and the last number of the named writer."""

    positions: dict[int, int]
    number: int


class GivenUp(Exception):
    """Raised in a block that is to be given up."""


def set_up(directory: Path, mode: Sync) -> None:
    """The topics, empty."""
    with DirectoryStore(directory, disk=UnsyncedDisk(), clock=ManualClock()) as store:
        for name, partitions in {INPUT: 2, **OUTPUTS, **NAMED}.items():
            store.create_topic(name, partitions=partitions, sync=mode, segment_bytes=SEGMENT)


class Pipeline:
    """The program. It does not know whether it runs for the first time."""

    def __init__(self, directory: Path, disk: Disk, random: Random, note: Callable[[Noted], None]) -> None:
        self._directory = directory
        self._disk = disk
        self._random = random
        self._note = note
        self._positions: dict[int, int] = {}
        self._number = -1

    def run(self, actions: int, serial: int = 0) -> None:
        """So many actions, with inputs numbered from `serial` on."""
        left = actions
        while left > 0:
            stretch = min(left, self._random.randint(3, 8))
            with self._open() as store, store.consumer(INPUT, group=GROUP) as inbox, _FEW_RESERVED:
                for _ in range(stretch):
                    serial = self._act(store, inbox, serial)
            left -= stretch

    def finish(self) -> None:
        """Do everything that is left to do."""
        with self._open() as store, _FEW_RESERVED:
            with store.consumer(INPUT, group=GROUP) as inbox:
                while self._transform(store, inbox):
                    pass
            for number in range(NUMBERS):
                self._write_named(store, number)

    def _open(self) -> DirectoryStore:
        return DirectoryStore(self._directory, disk=self._disk, clock=ManualClock())

    def _act(self, store: DirectoryStore, inbox: Consumer, serial: int) -> int:
        action = self._random.choice(["produce", "produce", "transform", "transform", "transform", "give up", "named"])
        if action == "produce":
            serial = self._produce(store, serial)
        elif action == "named":
            self._write_named(store, min(self._number + 1, NUMBERS - 1))
        else:
            self._transform(store, inbox, give_up=action == "give up")
        return serial

    def _produce(self, store: DirectoryStore, serial: int) -> int:
        with store.producer(INPUT, linger=3600.0) as out:
            for _ in range(self._random.randint(1, 6)):
                out.send(b"%d" % serial, partition=self._random.randrange(2))
                serial += 1
        return serial

    def _transform(self, store: DirectoryStore, inbox: Consumer, *, give_up: bool = False) -> bool:
        """One block; whether there was anything to do."""
        try:
            with store.transaction(inbox) as block:
                outputs = [block.producer(name, linger=3600.0) for name in OUTPUTS]
                records = inbox.poll(self._random.randint(1, 5))
                for record in records:
                    for output in outputs:
                        output.send(record.value, key=record.value)
                    inbox.ack(record)
                if give_up:
                    raise GivenUp
        except GivenUp:
            return True
        except StaleMember:
            return True
        for record in records:
            self._positions[record.partition] = record.offset + 1
        self._note(Noted(dict(self._positions), self._number))
        return bool(records)

    def _write_named(self, store: DirectoryStore, number: int) -> None:
        staged = self._random.random() < 0.5
        with store.transaction(writer=WRITER, sequence=number) as block:
            for name in NAMED:
                # Another partition each time: that a repetition does nothing must not hang on its being the same.
                partition = self._random.randrange(NAMED[name])
                if staged:
                    block.adopt(_stage(store, name, partition, b"%d" % number))
                else:
                    block.producer(name, linger=3600.0).send(b"%d" % number, partition=partition)
        self._number = max(number, self._number)
        self._note(Noted(dict(self._positions), self._number))


def _stage(store: DirectoryStore, topic: str, partition: int, value: bytes) -> Staged:
    """As another process would."""
    with store.stage() as staging:
        staging.append(store.describe_topic(topic), partition, encode([value]))
        return staging.seal()


def verify(directory: Path, noted: Noted | None, *, finished: bool = False) -> Iterator[Violation]:
    """Open the store, which carries out what is decided, and look whether everything is there exactly once."""
    with DirectoryStore(directory, disk=UnsyncedDisk(), clock=ManualClock()) as store:
        positions = _positions(store)
        for partition, position in (noted.positions if noted is not None else {}).items():
            if positions.get(partition, 0) < position:
                detail = f"partition {partition} is at {positions.get(partition, 0)}, and was at {position}"
                yield Violation(Kind.POSITION_MOVED_BACK, detail)
        done: Counter[bytes] = Counter()
        for partition, bounds in store.topic(INPUT).bounds().items():
            position = positions.get(partition, 0)
            if position > bounds.end or (finished and position < bounds.end):
                detail = f"partition {partition} is at {position}, and the topic ends at {bounds.end}"
                yield Violation(Kind.SKIPPED_BY_POLL if position > bounds.end else Kind.BLOCKED, detail)
            done.update(_values(store, INPUT, [partition], min(position, bounds.end)))
        for name in OUTPUTS:
            yield from _compare(name, done, Counter(_values(store, name)))
        yield from _verify_named(store, NUMBERS - 1 if finished else noted.number if noted is not None else -1)


def _verify_named(store: DirectoryStore, number: int) -> Iterator[Violation]:
    found = {name: Counter(_values(store, name)) for name in NAMED}
    last = max((int(value) for values in found.values() for value in values), default=-1)
    for name in NAMED:
        yield from _compare(name, Counter(b"%d" % one for one in range(max(last, number) + 1)), found[name])


def _compare(name: str, expected: Counter[bytes], found: Counter[bytes]) -> Iterator[Violation]:
    for value in expected.keys() | found.keys():
        detail = f"{value!r} is in {name!r} {found[value]} times, not {expected[value]}"
        if found[value] < expected[value]:
            yield Violation(Kind.LOST_WRITE, detail)
        elif not expected[value]:
            yield Violation(Kind.UNSEEN, f"{detail}: its input is not done")
        elif found[value] > expected[value]:
            yield Violation(Kind.DUPLICATE, detail)


def _positions(store: DirectoryStore) -> dict[int, int]:
    uuid = store.describe_topic(INPUT).uuid
    committed = store.group(GROUP).committed()
    return {partition: position.offset for (topic, partition), position in committed.items() if topic == uuid}


def _values(
    store: DirectoryStore, name: str, partitions: Sequence[int] | None = None, end: int | None = None
) -> Iterator[bytes]:
    topic = store.topic(name)
    for number in range(topic.info.partitions) if partitions is None else partitions:
        for record in topic.partition(number).records(end=end):
            yield record.value
