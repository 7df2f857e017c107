"""Messages of a topic, a page at a time, over all its partitions or some, from any offset or time, in either direction.

A page ends when it is full, when there is no more, or when its time is up: then it says how far it has looked, and the
next one goes on there. So a search through millions of records never holds anybody up, and misses nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from headwater.console.decoding import PREVIEW, Decoder, shown
from headwater.console.page_request import NotFound
from headwater.console.selection import Row, Selection
from headwater.core.errors import InvalidConfiguration, OffsetOutOfRange
from headwater.core.schema import Schema
from headwater.log import Partition
from headwater.log.recover.report import Damage
from headwater.streams.start import Start, resolve
from headwater.streams.start import time as time_of
from headwater.streams.topic import Topic

Direction = Literal["older", "newer"]
_PATIENCE: Final = 1.0
_WIDEST: Final = 100_000
"""So many records are looked at in one go, where few of them are wanted."""
MOST: Final = 500
Cursor = dict[int, int]
"""For each partition the offset that comes next; backwards, the one after it."""


def cursor_to_text(cursor: Mapping[int, int]) -> str:
    """A cursor as it goes into an address: `0:17,1:4`."""
    return ",".join(f"{number}:{offset}" for number, offset in sorted(cursor.items()))


def cursor_from_text(text: str) -> Cursor:
    """The reverse; raises InvalidConfiguration."""
    try:
        cursor = {int(number): int(offset) for number, _, offset in (pair.partition(":") for pair in text.split(","))}
    except ValueError:
        raise InvalidConfiguration(f"{text!r:.60} is not a cursor such as 0:17,1:42") from None
    if any(number < 0 or offset < 0 for number, offset in cursor.items()):
        raise InvalidConfiguration(f"{text!r:.60} is not a cursor such as 0:17,1:42")
    return cursor


def start_from_text(text: str) -> Start:
    """`latest`, `earliest`, an offset (negative ones count from the end), or a time such as `-1h`."""
    text = text.strip() or "latest"
    if text == "latest":
        return "latest"
    if text == "earliest":
        return "earliest"
    try:
        return int(text)
    except ValueError:
        return time_of(text)


def partitions_from_text(text: str) -> list[int] | None:
    """`0,3`, or nothing for all."""
    try:
        return [int(number) for number in text.split(",")] if text.strip() else None
    except ValueError:
        raise InvalidConfiguration(f"{text!r:.60} is not a list of partitions") from None


def cursor_at(topic: Topic, partitions: Sequence[int] | None, start: Start) -> Cursor:
    """Return the offset of a position in each partition; instead of an offset that is not there, the nearest one."""
    cursor: Cursor = {}
    for number, partition in topic._chosen(partitions):
        try:
            cursor[number] = resolve(partition, start)
        except OffsetOutOfRange as error:
            cursor[number] = error.start if error.offset < error.start else error.end
    return cursor


class MessagePage:
    """Reads records from a cursor on, in one direction, until there are enough."""

    def __init__(self, topic: Topic, selection: Selection, cursor: Cursor, direction: Direction) -> None:
        self._deadline = time.monotonic() + _PATIENCE
        schema = topic.schema
        self._lanes = [
            _PartitionPage(number, topic.partition(number), schema, selection, at, direction)
            for number, at in cursor.items()
        ]
        self._sign = -1 if direction == "older" else 1
        self.rows: list[Row] = []

    def read(self, limit: int) -> list[Row]:
        """The next records, by time as far as the partitions' own order lets them be."""
        waiting = list(self._lanes)
        while len(self.rows) < limit and waiting:
            for lane in waiting:
                lane.fill(limit - len(self.rows), self._deadline)
            waiting = [lane for lane in waiting if lane.rows]
            if waiting:
                first = min(waiting, key=lambda lane: (self._sign * lane.rows[0].timestamp, lane.number))
                self.rows.append(first.take())
        return self.rows

    @property
    def cursor(self) -> Cursor:
        """The cursor for the next page."""
        return {lane.number: lane.next for lane in self._lanes}

    @property
    def done(self) -> bool:
        """True if there is nothing beyond, at the moment."""
        return all(lane.done for lane in self._lanes)

    @property
    def looked_at(self) -> int:
        """The number of records between the beginning and the cursor. No two pages count the same record."""
        return sum(abs(lane.next - lane.began) for lane in self._lanes)

    @property
    def damage(self) -> list[dict[str, Any]]:
        """The damage that was met."""
        return [stretch for lane in self._lanes for stretch in lane.damage]


class _PartitionPage:
    """One partition of a page: the records that were found and not yet taken, and the next offset to look at."""

    def __init__(
        self, number: int, partition: Partition, schema: Schema, selection: Selection, at: int, direction: Direction
    ) -> None:
        self.number = number
        self.rows: deque[Row] = deque()
        self.damage: list[dict[str, Any]] = []
        self._partition = partition
        self._schema = schema
        self._selection = selection
        self._older = direction == "older"
        bounds = partition.bounds()
        self._start, self._end = bounds.start, bounds.end
        self._at = self.began = min(max(at, self._start), self._end)
        self._span = 0

    @property
    def next(self) -> int:
        """Everything up to here was taken, or is not wanted."""
        if not self.rows:
            return self._at
        return self.rows[0].offset + (1 if self._older else 0)

    @property
    def done(self) -> bool:
        return not self.rows and self._at == (self._start if self._older else self._end)

    def take(self) -> Row:
        return self.rows.popleft()

    def fill(self, wanted: int, deadline: float) -> None:
        """Look further until something is found, the end is reached, or the time is up."""
        self._span = max(self._span, wanted)
        while not self.rows and not self.done and time.monotonic() < deadline:
            rows = self._look()
            if self._older:
                rows.reverse()
            self.rows.extend(rows)
            self._span = min(self._span * 4, _WIDEST) if not rows else max(wanted, 1)

    def _look(self) -> list[Row]:
        """Return the wanted records of the next stretch."""
        if self._older:
            first, last = max(self._at - self._span, self._start), self._at
            self._at = first
        else:
            first, last = self._at, min(self._at + self._span, self._end)
            self._at = last
        rows: list[Row] = []
        batches = self._partition.scan(first, last, schema=self._schema, on_damage=self._damaged)
        for batch in batches:
            chosen = self._selection.of(batch, self.number)
            rows += self._selection.rows(chosen, self.number)
        return rows

    def _damaged(self, damage: Damage) -> None:
        self.damage.append(
            {
                "partition": self.number,
                "offset": damage.offset,
                "next_offset": damage.next_offset,
                "reason": damage.reason,
                "file": damage.file.name,
            }
        )


def row_document(row: Row, decoder: Decoder, limit: int = PREVIEW) -> dict[str, Any]:
    """A record as a page shows it."""
    return {
        "p": row.partition,
        "o": row.offset,
        "t": row.timestamp / 1e6,
        "k": shown(row.key, "auto", limit),
        "v": shown(row.value, decoder, limit),
        "h": [[name, shown(value, "auto", limit)] for name, value in row.headers],
    }


def one_record(topic: Topic, selection: Selection, partition: int, offset: int) -> Row:
    """Return the record of an offset; raises OffsetOutOfRange, or NotFound for one that compaction has removed."""
    log = topic.partition(partition)
    bounds = log.bounds()
    if not bounds.start <= offset < bounds.end:
        raise OffsetOutOfRange(offset, bounds.start, bounds.end, f"{topic.name}/{partition}")
    for batch in log.scan(offset, offset + 1, schema=topic.schema):
        for row in selection.rows(batch, partition):
            return row
    raise NotFound(f"{topic.name}/{partition} has no record {offset}: it was removed by compaction, or is damaged")
