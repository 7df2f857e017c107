"""The idle thread: writes the last records of producers that have gone quiet.

Busy producers write by themselves. One thread per process is enough for the rest: it looks at each producer once its
linger has passed, and writes what nobody has written by then. It holds on to the producer meanwhile: one that is
dropped with records in its buffer still gets them written.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from typing import Protocol


class Lingering(Protocol):
    """Something that may hold records for too long."""

    def write_overdue(self) -> None:
        """Write what has been held for longer than it should. Errors are kept for the next call, not raised."""


class IdleThread:
    """Calls `write_overdue` when it is time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Lingering]] = []
        self._serial = itertools.count()
        self._thread: threading.Thread | None = None

    def watch(self, producer: Lingering, delay: float) -> None:
        """Look at `producer` in `delay` seconds."""
        due = time.monotonic() + delay
        with self._changed:
            heapq.heappush(self._due, (due, next(self._serial), producer))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headwater-idle", daemon=True)
                self._thread.start()
            elif self._due[0][0] == due:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                producer = heapq.heappop(self._due)[2]
            producer.write_overdue()
            del producer  # it may be the last one to hold it, and the wait for the next may be long


IDLE = IdleThread()


def _renew_after_fork() -> None:
    IDLE.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_renew_after_fork)
