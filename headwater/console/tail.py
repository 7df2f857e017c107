"""A live tail: records as they come, without a gap, from the cursor that the page has reached.

Each event carries the cursor behind it. A page that pauses remembers that cursor and resumes with it, as does a browser
that reconnects. Records that were written meanwhile come first, as fast as they are taken.
"""

from __future__ import annotations

import json
import time
from heapq import merge
from typing import Any, Final

from headwater.console.decoding import Decoder
from headwater.console.events import ServerEvent
from headwater.console.messages import Cursor, cursor_to_text, row_document
from headwater.console.selection import Row, Selection
from headwater.core.errors import OffsetOutOfRange, RecordsDamaged
from headwater.streams.cursor import ConsumedBatch
from headwater.streams.store import Store

_EVENT_ROWS: Final = 500
_WAIT: Final = 0.5
_QUIET: Final = 15.0
"""After so long without a record an event says that all is well: proxies and browsers give up on silence."""


class LiveTail:
    """Reads a topic from a cursor on. For one thread at a time."""

    def __init__(
        self,
        store: Store,
        topic: str,
        cursor: Cursor,
        selection: Selection,
        decoder: Decoder,
        partitions: frozenset[int] | None = None,
    ) -> None:
        self._topic = topic
        self._selection = selection
        self._decoder = decoder
        self._partitions = partitions
        self._cursor = dict(cursor)
        self._notes: list[dict[str, Any]] = []
        self._quiet_since = time.monotonic()
        # Partitions that come later are read from their beginning: nothing of them was seen.
        self._consumer = store.consumer(
            topic, start="earliest", on_damage=self._damaged, fetch_bytes=256 * 1024, on_loss="skip"
        )
        for tp in self._consumer.assignment():
            if tp.partition in self._cursor:
                self._go_to(tp.partition, self._cursor[tp.partition])

    def _go_to(self, partition: int, offset: int) -> None:
        try:
            self._consumer.seek(self._topic, partition, offset)
        except OffsetOutOfRange as error:
            nearest = error.start if offset < error.start else error.end
            if offset < error.start:
                self._notes.append({"kind": "removed", "partition": partition, "offset": offset, "next": nearest})
            self._consumer.seek(self._topic, partition, nearest)
            self._cursor[partition] = nearest

    def _damaged(self, lost: RecordsDamaged) -> None:
        self._notes.append({"kind": "damaged", "partition": lost.partition, "reason": str(lost)})

    def events(self) -> list[ServerEvent]:
        """Return the events that have come, after waiting a moment for the first. There may be none."""
        batches = self._consumer.poll_batches(timeout=_WAIT)
        events = [ServerEvent("note", json.dumps(note)) for note in self._notes]
        self._notes.clear()
        events += self._gathered(batches)
        if events:
            self._quiet_since = time.monotonic()
        elif time.monotonic() - self._quiet_since > _QUIET:
            self._quiet_since = time.monotonic()
            events.append(ServerEvent("quiet", "{}"))
        return events

    def _gathered(self, batches: list[ConsumedBatch]) -> list[ServerEvent]:
        """Return events with the wanted records, by time as far as the order of each partition allows."""
        mine = [consumed for consumed in batches if self._partitions is None or consumed.partition in self._partitions]
        lanes: dict[int, list[Row]] = {}
        for consumed in mine:
            chosen = self._selection.rows(self._selection.of(consumed.batch, consumed.partition), consumed.partition)
            lanes.setdefault(consumed.partition, []).extend(chosen)
        rows = list(merge(*lanes.values(), key=lambda row: row.timestamp))
        events = []
        for first in range(0, len(rows), _EVENT_ROWS):
            part = rows[first : first + _EVENT_ROWS]
            self._cursor |= {row.partition: row.offset + 1 for row in part}
            events.append(self._event(part, 0))
        if mine:
            # The others were looked at too: a page that comes back need not look at them again.
            self._cursor |= {consumed.partition: consumed.end for consumed in mine}
            events.append(self._event([], sum(consumed.batch.num_rows for consumed in mine)))
        return events

    def _event(self, rows: list[Row], looked_at: int) -> ServerEvent:
        document = {"rows": [row_document(row, self._decoder) for row in rows], "looked_at": looked_at}
        return ServerEvent("records", json.dumps(document), cursor_to_text(self._cursor))

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()
