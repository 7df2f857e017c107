"""Heartbeats: members of groups tell the broker that they live, apart from their polls."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable

from headwater.client.group import RemoteGroup
from headwater.core.errors import HeadwaterError, PartitionForked, StoreClosed

_log = logging.getLogger(__name__)


class Heartbeats:
    """One thread for all groups of a store, from the first member on, until it is closed."""

    def __init__(self, groups: Callable[[], Iterable[RemoteGroup]], interval: float) -> None:
        self._groups = weakref.WeakMethod(groups)
        self._interval = interval
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Have a thread; once is enough."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headwater-heartbeat", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            groups = self._groups()
            if groups is None:
                return  # the store was dropped
            for group in groups():
                try:
                    group.heartbeat()
                except (StoreClosed, PartitionForked):
                    return
                except HeadwaterError as error:
                    _log.warning("the broker has not answered a heartbeat of group %r: %s", group.name, error)
            del groups

    def close(self) -> None:
        """End the thread, when it next looks."""
        self._stop.set()
