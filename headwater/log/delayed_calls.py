"""Delayed calls: threads that do things when their time has come."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Final

Work = Callable[[], None]

_WAITING_AT_MOST: Final = 2


class DelayedCalls:
    """Calls what it was given, after a delay, in a daemon thread that begins with the first call.

    The function must not raise. It may take long, for instance because another process that holds a lock is stopped:
    whoever sets to work leaves somebody behind who waits for the next thing. So there are two threads, and one more for
    each thing that takes long. A forked child has nothing due.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Work]] = []
        self._serial = itertools.count()
        self._waiting = 0

    def call(self, delay: float, work: Work) -> None:
        """Call `work` in `delay` seconds; it is held on to until then."""
        due = time.monotonic() + delay
        with self._changed:
            heapq.heappush(self._due, (due, next(self._serial), work))
            if not self._waiting:
                self._begin_waiting()
            elif self._due[0][0] == due:
                self._changed.notify()

    def _begin_waiting(self) -> None:
        self._waiting += 1
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                work = heapq.heappop(self._due)[2]
                self._waiting -= 1
                if not self._waiting:
                    self._begin_waiting()
                elif self._due:
                    self._changed.notify()  # the one that waits may not know of what is due next
            work()
            del work  # it may be the last to hold something, and the wait for the next may be long
            with self._changed:
                if self._waiting >= _WAITING_AT_MOST:
                    return
                self._waiting += 1
