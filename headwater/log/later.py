"""Later: one thread that does things when their time has come."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable

Work = Callable[[], None]


class Later:
    """Calls what it was given, after a delay, in a daemon thread that begins with the first call.

    What is called must not raise, and must not take long: the next one waits for it. A forked child has nothing due.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Work]] = []
        self._serial = itertools.count()
        self._thread: threading.Thread | None = None

    def call(self, delay: float, work: Work) -> None:
        """Call `work` in `delay` seconds; it is held on to until then."""
        due = time.monotonic() + delay
        with self._changed:
            heapq.heappush(self._due, (due, next(self._serial), work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif self._due[0][0] == due:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                work = heapq.heappop(self._due)[2]
            work()
            del work  # it may be the last to hold something, and the wait for the next may be long
