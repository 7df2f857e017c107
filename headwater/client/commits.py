"""The commits of one consumer, on their way while it handles the next records.

One is on its way at a time. Records that are done meanwhile wait, and go with the next one. So a consumer that gets
a record each millisecond does not make a call for each of them, and none of its polls waits for a call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from headwater.client.connection import DELAYED
from headwater.core.errors import HeadwaterError
from headwater.streams.group import Commit, TopicKey
from headwater.streams.ports import GroupCoordinator
from headwater.streams.topic import TopicPartition

_PACE: Final = 0.05
"""There are no two commits within so many seconds, unless somebody waits for them."""


class _Wanted(NamedTuple):
    """Positions that are to be set."""

    group: GroupCoordinator
    member: str | None
    commits: dict[TopicPartition, Commit]
    known: Mapping[TopicKey, int] | None


class Commits:
    """Sets positions without keeping the consumer waiting. For one consumer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next: _Wanted | None = None
        self._due = False
        """True if a thread will look for what is next."""
        self._running = False
        self._begun = 0.0
        self._member: str | None = None
        self._set: dict[TopicPartition, Commit] = {}
        self._refused: frozenset[TopicPartition] = frozenset()
        self._error: HeadwaterError | None = None

    def send(
        self,
        group: GroupCoordinator,
        member: str | None,
        commits: dict[TopicPartition, Commit],
        known: Mapping[TopicKey, int] | None,
    ) -> tuple[dict[TopicPartition, Commit], frozenset[TopicPartition]]:
        """Have positions set; what has been set since the last call, and what was refused. Raises what went wrong."""
        with self._changed:
            done, refused, error = self._set, self._refused, self._error
            self._set, self._refused, self._error = {}, frozenset(), None
            if member != self._member:  # that was told to who this consumer was before
                self._member, done, refused = member, {}, frozenset()
            left = {tp: commit for tp, commit in commits.items() if done.get(tp) != commit and tp not in refused}
            self._next = _Wanted(group, member, left, known) if left else None
            if self._next is not None and not self._due and not self._running:
                self._due = True
                DELAYED.call(max(self._begun + _PACE - time.monotonic(), 0.0), self._work)
        if error is not None:
            raise error
        return done, refused

    def _work(self) -> None:
        with self._changed:
            wanted, self._next = self._next, None
            self._due = False
            if wanted is None:
                return
            self._running = True
        self._begun = time.monotonic()
        refused: frozenset[TopicPartition] = frozenset()
        error: HeadwaterError | None = None
        try:
            refused = wanted.group.commit(wanted.member, wanted.commits, known=wanted.known)
        except HeadwaterError as failure:
            error = failure
        with self._changed:
            if wanted.member == self._member:
                self._error = error
                self._refused |= refused
                if error is None:
                    self._set |= {tp: commit for tp, commit in wanted.commits.items() if tp not in refused}
            self._running = False
            self._due = self._next is not None
            if self._due:
                DELAYED.call(_PACE, self._work)
            self._changed.notify_all()

    def finish(self) -> None:
        """Return when nothing is on its way any more. Waiting commits are forgotten: the caller makes them, or has
        them undone."""
        with self._changed:
            self._next = None
            self._changed.wait_for(lambda: not self._running)
            self._set, self._refused, self._error = {}, frozenset(), None
