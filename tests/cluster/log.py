"""A log on a disk that keeps what was synced, and of the rest whatever it likes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from headwater.cluster.replica import EpochEnd


class Entry(NamedTuple):
    """One record: in which epoch it was appended, and which producer's how-manieth it is."""

    epoch: int
    producer: int
    sequence: int


class SimulatedLog:
    """The records of one replica."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._durable = 0

    @property
    def end(self) -> int:
        return len(self.entries)

    @property
    def durable_end(self) -> int:
        return self._durable

    def epoch_before(self, offset: int) -> int:
        return self.entries[offset - 1].epoch if 0 < offset <= len(self.entries) else 0

    def end_of(self, epoch: int) -> EpochEnd:
        for offset in range(len(self.entries), 0, -1):
            if self.entries[offset - 1].epoch <= epoch:
                return EpochEnd(self.entries[offset - 1].epoch, offset)
        return EpochEnd(0, 0)

    def read(self, start: int) -> Sequence[Entry]:
        return tuple(self.entries[start : start + 4])

    def add(self, batches: Sequence[Entry]) -> None:
        self.entries.extend(batches)

    def truncate(self, offset: int) -> None:
        del self.entries[offset:]
        self._durable = min(self._durable, offset)

    def sync(self) -> None:
        """Everything is on the device."""
        self._durable = len(self.entries)

    def lose_power(self, random: Random) -> None:
        """What was not synced is there or not, from some record on."""
        del self.entries[random.randint(self._durable, len(self.entries)) :]
        self._durable = len(self.entries)  # recovery syncs what it has found

    def lose_disk(self) -> None:
        """A new, empty disk."""
        self.entries = []
        self._durable = 0

    def find(self, producer: int, sequence: int) -> int | None:
        """The offset of a producer's record."""
        for offset, entry in enumerate(self.entries):
            if (entry.producer, entry.sequence) == (producer, sequence):
                return offset
        return None

    def last_sequence(self, producer: int) -> int:
        """The last that the producer has sent; -1 for none."""
        return max((entry.sequence for entry in self.entries if entry.producer == producer), default=-1)
