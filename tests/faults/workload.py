"""A workload: everything that a partition does, in a random order, with a note before and after each action.

The same seed gives the same actions, so that a fault can be inflicted at each operation of one workload. The notes from
before the fault is what `Expected` holds the log against after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa

from headwater.core.config import PartitionConfig, Sync
from headwater.core.errors import PartitionPoisoned
from headwater.core.schema import Schema
from headwater.log import Appended, Bounds, DirectoryPartition, Disk, Frame, Identity, encode, encode_batch
from headwater.testing import ManualClock

TYPED = Schema(pa.schema([("id", pa.binary()), ("more", pa.int64())]))
KEYS = (None, b"a", b"b", b"c", b"d")
DELETIONS = 0.15
"""So many of the records with a key delete it."""


class Kind(Enum):
    """The actions on a partition."""

    OPEN = "open"
    APPEND = "append"
    SYNC = "sync"
    ROLL = "roll"
    COMPACT = "compact"
    RETAIN = "retain"
    DELETE_BEFORE = "delete before"
    TRUNCATE = "truncate"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Sent:
    """One record: its value says which one it is and, by its length, whether it is whole. None deletes the key."""

    value: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Action:
    """Something done to a partition: for an append what is sent, frame by frame; for a cut where."""

    kind: Kind
    frames: tuple[tuple[Sent, ...], ...] = ()
    identity: Identity | None = None
    typed: bool = False
    offset: int = 0

    @property
    def records(self) -> list[Sent]:
        """The records of an append."""
        return [record for frame in self.frames for record in frame]

    def encoded(self, timestamp: int) -> list[Frame]:
        """The frames of an append."""
        return [self._encode(frame, timestamp) for frame in self.frames]

    def _encode(self, records: tuple[Sent, ...], timestamp: int) -> Frame:
        keys = [record.key for record in records]
        values = [record.value for record in records]
        if not self.typed:
            return encode(values, keys=keys, timestamps=timestamp, identity=self.identity)
        sizes = [None if value is None else len(value) for value in values]
        batch = pa.record_batch([pa.array(values, pa.binary()), pa.array(sizes, pa.int64())], TYPED.payload)
        return encode_batch(batch, TYPED, keys=keys, timestamps=timestamp, identity=self.identity)


@dataclass(frozen=True, slots=True)
class Began:
    """An action began. `growing` is the base of the segment that grew at that moment."""

    action: Action
    growing: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The action succeeded, and this is what the partition says now, unless it was closed."""

    action: Action
    bounds: Bounds | None
    appended: Appended | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The action raised."""

    action: Action
    error: Exception


Event = Began | Ended | Failed


@dataclass(slots=True)
class Producer:
    """An idempotent producer, or the writer of atomic groups, and its next sequence."""

    producer_id: bytes
    forever: bool
    sequence: int = 0

    def next(self, count: int) -> Identity:
        """The identity of the next append, of so many records."""
        identity = Identity(self.producer_id, 0, self.sequence, self.forever)
        self.sequence += 1 if self.forever else count
        return identity


@dataclass(slots=True)
class Workload:
    """Does random things to the partition in a directory and notes them."""

    directory: Path
    disk: Disk
    random: Random
    note: Callable[[Event], None]
    sync: Sync = "always"
    clock: ManualClock = field(default_factory=ManualClock)
    raised: tuple[type[Exception], ...] = ()
    """Errors that end an action but not the workload."""
    weights: Mapping[Kind, int] = field(default_factory=lambda: WEIGHTS)
    """The weight of each action."""
    serial: int = 0
    """The number of the last record. A workload that continues another one begins with its number."""
    _producers: list[Producer] = field(default_factory=list)
    _partition: DirectoryPartition | None = None
    _poisoned: bool = False

    def run(self, actions: int) -> None:
        """Open the partition, do so many things, close it."""
        self._renew_producers()
        for _ in range(actions):
            self.act(self._choose())
        if self._partition is not None:
            self.act(Action(Kind.CLOSE))

    def abandon(self) -> None:
        """Let go of the partition without noting it, as the end of a process does."""
        if self._partition is not None:
            self._partition.close()

    @property
    def partition(self) -> DirectoryPartition:
        """The open partition."""
        assert self._partition is not None, "the partition is not open"
        return self._partition

    def act(self, action: Action) -> None:
        """Do it, and note what came of it."""
        self.note(Began(action, growing_base(self.directory)))
        try:
            appended = self._do(action)
        except self.raised as error:
            self._poisoned |= isinstance(error, PartitionPoisoned)
            self._renew_producers()
            self.note(Failed(action, error))
            return
        self.note(Ended(action, self._partition.bounds() if self._partition else None, appended))

    def _do(self, action: Action) -> Appended | None:
        match action.kind:
            case Kind.OPEN:
                self._partition = DirectoryPartition(
                    self.directory, config(self.sync), disk=self.disk, clock=self.clock
                )
            case Kind.APPEND:
                return self.partition.append(action.encoded(self.clock.now_ns()))
            case Kind.SYNC:
                self.partition.sync()
            case Kind.ROLL:
                self.partition.roll()
            case Kind.COMPACT:
                self.partition.compact()
            case Kind.RETAIN:
                self.partition.retain()
            case Kind.DELETE_BEFORE:
                self.partition.delete_before(action.offset)
            case Kind.TRUNCATE:
                self._renew_producers()
                self.partition.truncate(action.offset)
            case Kind.CLOSE:
                partition, self._partition, self._poisoned = self.partition, None, False
                partition.close()
        return None

    def _choose(self) -> Action:
        if self._partition is None:
            return Action(Kind.OPEN)
        if self._poisoned:
            return Action(Kind.CLOSE)
        self.clock.advance(self.random.random() * 60)
        [kind] = self.random.choices(list(self.weights), list(self.weights.values()))
        if kind is Kind.APPEND:
            return self.append()
        bounds = self._partition.bounds()
        least = max(bounds.start, bounds.end - 20) if kind is Kind.TRUNCATE else bounds.start
        most = bounds.end if kind is Kind.TRUNCATE or self.random.random() < 0.1 else (bounds.start + bounds.end) // 2
        return Action(kind, offset=self.random.randint(least, most))

    def append(self) -> Action:
        """The next append: of one frame or several, by no one in particular or by a producer."""
        producer = self.random.choice([None, None, *self._producers])
        groups = producer is None or producer.forever
        frames = tuple(self._frame() for _ in range(self.random.choice((1, 1, 2, 4)) if groups else 1))
        typed = self.random.random() < 0.1
        identity = producer.next(len(frames[0])) if producer else None
        return Action(Kind.APPEND, frames, identity, typed)

    def _frame(self) -> tuple[Sent, ...]:
        return tuple(self._record() for _ in range(self.random.choice((1, 1, 2, 5))))

    def _record(self) -> Sent:
        self.serial += 1
        size = self.random.choice((0, 10, 100, 100, 1000, 3000))
        key = self.random.choice(KEYS)
        if key is not None and self.random.random() < DELETIONS:
            return Sent(None, key)
        return Sent(b"%d:" % self.serial + self.random.randbytes(size), key)

    def _renew_producers(self) -> None:
        """Producers whose appends may be cut off, or have failed, start anew: the next sequence would be refused."""
        self._producers = [Producer(self.random.randbytes(16), forever) for forever in (False, False, True)]


WEIGHTS: Final[dict[Kind, int]] = {
    Kind.APPEND: 30,
    Kind.SYNC: 2,
    Kind.ROLL: 3,
    Kind.COMPACT: 2,
    Kind.RETAIN: 2,
    Kind.DELETE_BEFORE: 2,
    Kind.TRUNCATE: 2,
    Kind.CLOSE: 2,
}


CLEANING = WEIGHTS | {Kind.ROLL: 8, Kind.COMPACT: 8, Kind.CLOSE: 1}
"""For workloads in which much is compacted."""


def config(sync: Sync = "always") -> PartitionConfig:
    """Segments so small that a short workload fills many."""
    return PartitionConfig(
        sync=sync, segment_bytes=8192, index_interval=512, retention_bytes=32768, delete_grace=60, segment_age=300
    )


def growing_base(directory: Path) -> int:
    """The base of the newest segment."""
    return max((int(path.stem) for path in directory.glob("*.log")), default=0)
