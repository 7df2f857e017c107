"""Heartbeats: members of groups tell the broker that they live, apart from their polls."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial

from headwater.client.connection import DELAYED
from headwater.client.group import RemoteGroup
from headwater.core.errors import HeadwaterError, PartitionForked, StoreClosed

_log = logging.getLogger(__name__)


class Heartbeats:
    """One thread for all groups of a store, from the first member on, until it is closed."""

    def __init__(self, groups: Callable[[], Iterable[RemoteGroup]], interval: float) -> None:
        self._groups = weakref.WeakMethod(groups)
        self._interval = interval
        self._changed = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._under_way: weakref.WeakSet[RemoteGroup] = weakref.WeakSet()

    def begin(self) -> None:
        """Have a thread; once is enough."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headwater-heartbeat", daemon=True)
            self._thread.start()

    def hurry(self, interval: float) -> None:
        """Send heartbeats at least as often as a broker asks for."""
        if 0 < interval < self._interval:
            self._interval = interval
            self._changed.set()

    def _run(self) -> None:
        while not self._stopped:
            if self._changed.wait(self._interval):
                self._changed.clear()
                continue
            groups = self._groups()
            if groups is None:
                return  # the store was dropped
            for group in groups():
                # Each in a thread of its own: a coordinator that does not answer costs no other group its members.
                if group not in self._under_way:
                    self._under_way.add(group)
                    DELAYED.call(0, partial(self._beat, group))
            del groups

    def _beat(self, group: RemoteGroup) -> None:
        try:
            group.heartbeat()
        except (StoreClosed, PartitionForked):
            self.close()
        except HeadwaterError as error:
            _log.warning("the broker has not answered a heartbeat of group %r: %s", group.name, error)
        finally:
            self._under_way.discard(group)

    def close(self) -> None:
        """End the thread."""
        self._stopped = True
        self._changed.set()
