"""A group in memory: for consumers of one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.embedded.group import EmbeddedGroup
from headwater.log.clock import Clock
from headwater.streams.group import FORGOTTEN, TopicKey
from headwater.streams.membership import Membership
from headwater.streams.position import Position


class MemoryGroup(EmbeddedGroup):
    """A group within one process. Its members live for as long as they do not leave."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self._mutex = threading.RLock()
        self._membership = Membership()
        self._polled: dict[str, int] = {}
        self._positions: dict[TopicKey, Position] = {}

    @contextmanager
    def _changing(self) -> Iterator[Membership]:
        with self._mutex:
            yield self._membership

    _unchanged = _changing

    def _read(self) -> Membership:
        with self._mutex:
            return Membership.from_dict(self._membership.to_dict())

    def _begin_life(self, member_id: str) -> None:
        self._polled[member_id] = self._clock.boot_ns()

    def _end_life(self, member_id: str) -> None:
        self._polled.pop(member_id, None)

    def _lives(self, member_id: str, oldest_ns: int) -> bool:
        return self._polled.get(member_id, oldest_ns - 1) >= oldest_ns

    def touch(self, member_id: str) -> None:
        self._polled[member_id] = self._clock.boot_ns()

    def generation(self) -> int:
        return self._membership.generation

    def _remembered(self) -> dict[TopicKey, Position]:
        with self._mutex:
            return dict(self._positions)

    def position(self, key: TopicKey) -> Position | None:
        position = self._positions.get(key)
        return None if position is None or position.offset == FORGOTTEN else position

    def _set(self, key: TopicKey, offset: int, generation: int, before: Position | None = None) -> None:
        before = before or self._positions.get(key)
        sequence = before.sequence + 1 if before else 1
        self._positions[key] = Position(*key, sequence, offset, self._clock.now_ns(), generation)

    def _unset(self, key: TopicKey) -> None:
        del self._positions[key]

    def _make_durable(self) -> None:
        """Memory is all there is."""

    def close(self) -> None:
        self._polled.clear()
