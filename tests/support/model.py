"""A log as a plain dict: what every partition must agree with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from headwater import Record
from headwater.core.record import NO_HEADERS
from headwater.log import Appended, Identity

Row = tuple[int, bytes | None, bytes | None, Mapping[str, bytes] | None]
"""Timestamp, key, value and headers."""


class Batch(NamedTuple):
    """An identified append, where it is, and where its first frame ends: with that it is known."""

    identity: Identity
    records: int
    place: Appended
    known_at: int


@dataclass
class Model:
    """The records by offset, where segments begin, and who has written what."""

    records: dict[int, Record] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    bases: list[int] = field(default_factory=lambda: [0])
    batches: list[Batch] = field(default_factory=list)

    def append(self, *frames: list[Row], identity: Identity | None = None) -> Appended:
        """Add the rows of these frames at the end."""
        place = Appended(self.end, self.end + sum(map(len, frames)))
        for timestamp, key, value, headers in chain(*frames):
            self.records[self.end] = Record(self.end, timestamp, key, value, dict(headers) if headers else NO_HEADERS)
            self.end += 1
        if identity is not None:
            self.batches.append(Batch(identity, len(frames[0]), place, place.base_offset + len(frames[0])))
        return place

    def last_sequence(self, producer: bytes) -> int:
        """The sequence of the producer's last record, or of the writer's last group; -1 for none."""
        sequences = [
            batch.identity.sequence + (0 if batch.identity.forever else batch.records - 1)
            for batch in self.batches
            if batch.identity.producer_id == producer
        ]
        return sequences[-1] if sequences else -1

    def roll(self) -> bool:
        """Begin a segment, unless the last one is empty."""
        if self.bases[-1] == self.end:
            return False
        self.bases.append(self.end)
        return True

    def truncate(self, offset: int) -> None:
        """Forget everything from `offset` on."""
        if offset == self.end:
            return
        self.records = {number: record for number, record in self.records.items() if number < offset}
        self.batches = [batch for batch in self.batches if batch.known_at <= offset]
        self.bases = [*(base for base in self.bases if base < offset), offset]
        self.end = offset

    def delete_before(self, offset: int) -> None:
        """Forget everything before `offset`, but not who wrote it."""
        if offset <= self.start:
            return
        if offset == self.end:
            self.roll()
        self.start = offset
        self.records = {number: record for number, record in self.records.items() if number >= offset}
        while len(self.bases) > 1 and self.bases[1] <= offset:
            self.bases.pop(0)

    def retain(self, keep_from: int | None) -> None:
        """Forget every segment but the last, and but those with records from `keep_from` on."""
        for base in self.bases[1:]:
            if keep_from is None or base <= keep_from:
                self.delete_before(base)

    def compact(self, *, drop_markers: bool) -> None:
        """Forget, in all segments but the last, what a newer record there has the key of."""
        closed = [record for record in self.records.values() if record.offset < self.bases[-1]]
        newest = {record.key: record.offset for record in closed}
        for record in closed:
            marker = record.value is None and drop_markers
            if record.key is not None and (newest[record.key] != record.offset or marker):
                del self.records[record.offset]

    def rows(self, start: int | None = None, end: int | None = None) -> list[Record]:
        """The records in [start, end)."""
        first = self.start if start is None else start
        last = self.end if end is None else end
        return [record for offset, record in sorted(self.records.items()) if first <= offset < last]

    def offset_at(self, timestamp: int) -> int | None:
        """The least offset whose record is not older."""
        return next((record.offset for record in self.rows() if record.timestamp >= timestamp), None)
