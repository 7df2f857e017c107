"""The clock, so that ages can be tested without waiting."""

from __future__ import annotations

import time


class Clock:
    """Wall-clock time, as everyone else sees it."""

    def now_ns(self) -> int:
        """Nanoseconds since 1970 in UTC."""
        return time.time_ns()


REAL_CLOCK = Clock()
