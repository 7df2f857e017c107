"""A log on a disk that keeps what was synced, and of the rest whatever it likes. Some of it may be damaged."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from headwater.cluster.replication.replica import EpochEnd

KEPT = 5
"""So many of a producer's last records are known when they are sent again."""


class Entry(NamedTuple):
    """One record: in which epoch it was appended, and which producer's how-manieth it is."""

    epoch: int
    producer: int
    sequence: int


class DamageMet(Exception):
    """The record to read is damaged."""


class LogStart(NamedTuple):
    """The offset at which a log begins, and what the log knows of the records before that."""

    offset: int
    epochs: tuple[tuple[int, int], ...] = ()
    """The epochs that begin there, each with its first offset."""
    producers: tuple[tuple[int, int, int], ...] = ()
    """The last records of each producer: whose, the how-manieth, and where."""


class SimulatedLog:
    """The records of one replica."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        """Those that are there: the first is at `start`."""
        self.begins = LogStart(0)
        self._durable = 0
        self.damaged: set[int] = set()
        self.known_damage: set[int] = set()
        """The part of it that somebody has met, which is not forgotten."""

    @property
    def start(self) -> int:
        return self.begins.offset

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    @property
    def durable_end(self) -> int:
        return self._durable

    def at(self, offset: int) -> Entry:
        """The record at an offset that is there."""
        return self.entries[offset - self.start]

    def epochs(self) -> list[tuple[int, int]]:
        """The epochs of all records, also of those that are deleted, each with its first offset."""
        epochs = list(self.begins.epochs)
        for offset, entry in enumerate(self.entries, self.start):
            if not epochs or entry.epoch > epochs[-1][0]:
                epochs.append((entry.epoch, offset))
        return epochs

    def epoch_before(self, offset: int) -> int:
        if self.start < offset <= self.end:
            return self.at(offset - 1).epoch
        return max((epoch for epoch, start in self.begins.epochs if start < offset <= self.end), default=0)

    def end_of(self, epoch: int) -> EpochEnd:
        end = self.end
        for begun, start in reversed(self.epochs()):
            if begun <= epoch:
                return EpochEnd(begun, end)
            end = start
        return EpochEnd(0, 0)

    def read(self, start: int) -> Sequence[Entry]:
        """The next few records; raises DamageMet."""
        return tuple(map(self.verified, range(max(start, self.start), min(start + 4, self.end))))

    def verified(self, offset: int) -> Entry:
        """The record at an offset that is there, as it was written; raises DamageMet."""
        if offset in self.damaged:
            self.known_damage.add(offset)
            raise DamageMet
        return self.at(offset)

    def add(self, batches: Sequence[Entry]) -> None:
        self.entries.extend(batches)

    def truncate(self, offset: int) -> None:
        del self.entries[max(offset - self.start, 0) :]
        self._durable = min(self._durable, self.end)
        self.damaged = {damaged for damaged in self.damaged if damaged < offset}
        self.known_damage &= self.damaged

    def sync(self) -> None:
        """Everything is on the device."""
        self._durable = self.end

    # Faults.

    def lose_power(self, random: Random) -> None:
        """Lose some, none or all of the records that were not synced: every record from a random one on."""
        self.truncate(random.randint(self._durable, self.end))
        self._durable = self.end  # recovery syncs what it has found

    def lose_disk(self) -> None:
        """A new, empty disk."""
        self.restart(LogStart(0))
        self._durable = 0

    def damage(self, offset: int) -> None:
        """A record is not what it was, and nobody knows."""
        self.damaged.add(offset)

    def repair(self, offset: int, entry: Entry) -> None:
        """Put a record of another replica in the place of a damaged one."""
        self.entries[offset - self.start] = entry
        self.damaged.discard(offset)
        self.known_damage.discard(offset)

    def scrub(self) -> None:
        """Look at every record."""
        self.known_damage |= self.damaged

    # Deletion.

    def begin_at(self, offset: int) -> LogStart:
        """Return what a log that begins at an offset has to know of the records before it."""
        epochs = tuple(entry for entry in self.epochs() if entry[1] < offset)
        producers = [*self.begins.producers]
        producers += [
            (entry.producer, entry.sequence, position)
            for position, entry in enumerate(self.entries, self.start)
            if position < offset
        ]
        names = {name for name, _, _ in producers}
        kept = [
            record for name in sorted(names) for record in [record for record in producers if record[0] == name][-KEPT:]
        ]
        return LogStart(offset, epochs, tuple(kept))

    def delete_before(self, offset: int) -> None:
        """Begin later."""
        if offset > self.start:
            self.begins, self.entries = self.begin_at(offset), self.entries[offset - self.start :]
            self.damaged = {damaged for damaged in self.damaged if damaged >= offset}
            self.known_damage &= self.damaged

    def restart(self, begins: LogStart) -> None:
        """Go on where another log begins, without anything of what was here."""
        self.begins, self.entries = begins, []
        self._durable = begins.offset
        self.damaged, self.known_damage = set(), set()

    # Producers.

    def find(self, producer: int, sequence: int) -> int | None:
        """The offset of a producer's record, as far as it is known."""
        for offset, entry in enumerate(self.entries, self.start):
            if (entry.producer, entry.sequence) == (producer, sequence):
                return offset
        known = [offset for name, number, offset in self.begins.producers if (name, number) == (producer, sequence)]
        return known[0] if known else None

    def last_sequence(self, producer: int) -> int:
        """The last that the producer has sent; -1 for none."""
        known = [number for name, number, _ in self.begins.producers if name == producer]
        return max((*known, *(entry.sequence for entry in self.entries if entry.producer == producer)), default=-1)
