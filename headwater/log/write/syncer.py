"""The syncer: a thread that syncs partitions in interval mode when their appenders have gone quiet.

Busy appenders sync by themselves on the way. The thread is for the last appends before a pause, which would otherwise
wait for the next one.
"""

from __future__ import annotations

import logging
import weakref
from typing import Protocol

from headwater.core.errors import HeadwaterError, PartitionClosed, PartitionForked
from headwater.log.delayed_calls import DelayedCalls

_log = logging.getLogger(__name__)
_LATER = DelayedCalls("headwater-syncer")


class Syncable(Protocol):
    """Something with unsynced bytes."""

    def sync(self) -> None:
        """Make them durable."""


def sync_later(writer: Syncable, delay: float) -> None:
    """Sync `writer` in `delay` seconds, unless nobody holds it by then."""
    held = weakref.ref(writer)

    def sync() -> None:
        found = held()
        try:
            if found is not None:
                found.sync()
        except (PartitionClosed, PartitionForked):
            pass  # whoever closed it has synced it
        except HeadwaterError as error:
            # The next append of that partition gets the error too; nobody is waiting for this one.
            _log.warning("background sync failed: %s", error)

    _LATER.call(delay, sync)
