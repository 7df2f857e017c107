"""Syncing: when appended bytes become durable, and the fail-stop when a sync fails.

Busy appenders sync by themselves on the way. In interval mode a thread syncs the last appends before a pause, which
would otherwise wait for the next one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref

from headwater.core.errors import HeadwaterError, PartitionClosed, PartitionForked, PartitionPoisoned
from headwater.log.delayed_calls import DelayedCalls
from headwater.log.files.counters import count_sync
from headwater.log.files.state import State
from headwater.log.write.owner import PartitionOwner

_log = logging.getLogger(__name__)
_LATER = DelayedCalls("headwater-syncer")


class Syncer:
    """Makes the appends of one handle durable."""

    def __init__(self, owner: PartitionOwner) -> None:
        self._owner = owner
        self._mutex = threading.Lock()
        self._last_sync = time.monotonic()
        self._scheduled = False

    def is_due(self) -> bool:
        """Return whether an append that is made now is to be synced."""
        mode = self._owner.config.sync
        if mode == "always":
            return True
        return mode != "never" and time.monotonic() - self._last_sync >= float(mode)

    def make_durable(self, state: State) -> State:
        """Sync the growing segment under the lock. A failure poisons it: its pages can no longer be trusted."""
        owner = self._owner
        if state.durable_end == state.end:
            return state
        try:
            sync_ns = self._sync_device(owner.log_fd)
        except PartitionPoisoned:
            owner.tell_poison(owner.state)
            raise
        return state._replace(
            durable_end=state.end,
            durable_position=state.position,
            durable_stamp=state.stamp,
            total_syncs=state.total_syncs + 1,
            counters=count_sync(state.counters, sync_ns),
        )

    def _sync_device(self, fd: int) -> int:
        """Sync, and return how long that took.

        One sync at a time: the kernel tells of a failure once, so another caller would hear of success.
        """
        owner = self._owner
        with self._mutex:
            started = owner.clock.boot_ns()
            if owner.poison is None:
                try:
                    owner.disk.sync(fd)
                except OSError as error:
                    owner.poison = str(error)
            if owner.poison is not None:
                raise PartitionPoisoned(owner.directory, owner.poison)
            sync_ns = owner.clock.boot_ns() - started
        self._last_sync = time.monotonic()
        return sync_ns

    def sync(self) -> None:
        """Make everything published durable, without keeping appenders out meanwhile."""
        owner = self._owner
        self._scheduled = False
        with owner.locked() as state:
            if state.durable_end == state.end:
                return
            fd = os.dup(owner.log_fd)
        try:
            sync_ns = self._sync_device(fd)
        except PartitionPoisoned:
            owner.tell_poison_unlocked()
            raise
        finally:
            os.close(fd)
        with owner.locked() as now:
            if now.segment == state.segment and now.durable_end < state.end:
                owner.state = owner.page.write(
                    now._replace(
                        durable_end=state.end,
                        durable_position=state.position,
                        durable_stamp=state.stamp,
                        total_syncs=now.total_syncs + 1,
                        counters=count_sync(now.counters, sync_ns),
                    )
                )

    def schedule(self) -> None:
        """Sync later what is not durable yet, as the mode says."""
        if not self._scheduled and self._owner.config.sync != "never":
            self._scheduled = True
            _sync_later(self, float(self._owner.config.sync))


def _sync_later(syncer: Syncer, delay: float) -> None:
    """Sync in `delay` seconds, unless nobody holds it by then."""
    held = weakref.ref(syncer)

    def sync() -> None:
        alive = held()
        try:
            if alive is not None:
                alive.sync()
        except (PartitionClosed, PartitionForked):
            pass  # whoever closed it has synced it
        except HeadwaterError as error:
            # The next append of that partition gets the error too; nobody is waiting for this one.
            _log.warning("background sync failed: %s", error)

    _LATER.call(delay, sync)
