"""The cursors of a consumer: one for each partition that it reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from headwater.streams.cursor import ConsumedBatch, ConsumedRecord, Cursor
from headwater.streams.group import Commit
from headwater.streams.topic import TopicPartition


class Cursors(dict[TopicPartition, Cursor]):
    """Cursors by partition, the order in which they take turns, and those that pause. Not thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._order: deque[TopicPartition] = deque()
        self.paused: set[TopicPartition] = set()

    def active(self) -> list[Cursor]:
        """Return the cursors that do not pause, in their order."""
        return [self[partition] for partition in self._order if partition not in self.paused]

    def next_turn(self) -> None:
        """Have another partition come first."""
        self._order.rotate(-1)

    def add(self, cursors: Iterable[Cursor]) -> None:
        """Begin with more partitions."""
        self.update((cursor.tp, cursor) for cursor in cursors)
        self._order = deque(sorted(self))

    def drop(self, partitions: Iterable[TopicPartition]) -> bool:
        """Give partitions up; whether something was handed out there that is not committed."""
        lost = False
        for partition in partitions:
            cursor = self.pop(partition, None)
            lost = lost or (cursor is not None and cursor.delivered > cursor.committed)
            self.paused.discard(partition)
        self._order = deque(sorted(self))
        return lost

    def take_as_done(self) -> None:
        """Acknowledge everything that was handed out."""
        for cursor in self.values():
            cursor.take_as_done()

    def done(self) -> dict[TopicPartition, Commit]:
        """Return the positions that are acknowledged and not committed."""
        return {
            partition: Commit(cursor.key, cursor.acks.position)
            for partition, cursor in self.items()
            if cursor.acks.position > cursor.committed
        }

    def uncommitted(self) -> int:
        """Return the number of offsets that are acknowledged and not committed."""
        return sum(max(cursor.acks.position - cursor.committed, 0) for cursor in self.values())

    def give_back(self, consumed: Sequence[ConsumedRecord | ConsumedBatch]) -> int:
        """Read again what nobody has got of a poll, or the last of it; return the number of records."""
        spans: dict[TopicPartition, tuple[int, int]] = {}
        count = 0
        for item in consumed:
            if isinstance(item, ConsumedBatch):
                start, end, records = item.start, item.end, item.batch.num_rows
            else:
                start, end, records = item.offset, item.offset + 1, 1
            partition = TopicPartition(item.topic, item.partition)
            spans[partition] = (spans.get(partition, (start, end))[0], end)
            count += records
        for partition, (start, end) in spans.items():
            if partition in self and self[partition].delivered == end:
                self[partition].back_to(start)
        return count
