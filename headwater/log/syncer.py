"""The syncer: one thread per process that syncs partitions in interval mode when their appenders have gone quiet.

Busy appenders sync by themselves on the way. The thread is for the last appends before a pause, which would otherwise
wait for the next one.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
import weakref
from typing import Protocol

from headwater.errors import HeadwaterError

_log = logging.getLogger(__name__)


class Syncable(Protocol):
    """Something with unsynced bytes."""

    def sync(self) -> None:
        """Make them durable."""


class Syncer:
    """Calls `sync` on what is scheduled, when its time has come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, weakref.ref[Syncable]]] = []
        self._serial = itertools.count()
        self._thread: threading.Thread | None = None

    def schedule(self, writer: Syncable, delay: float) -> None:
        """Sync `writer` in `delay` seconds, unless nobody holds it by then."""
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + delay, next(self._serial), weakref.ref(writer)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headwater-syncer", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                writer = heapq.heappop(self._due)[2]()
            try:
                if writer is not None:
                    writer.sync()
            except HeadwaterError as error:
                # The next append of that partition gets the error too; nobody is waiting for this one.
                _log.warning("background sync failed: %s", error)
            del writer


SYNCER = Syncer()


def _renew_after_fork() -> None:
    SYNCER.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_renew_after_fork)
