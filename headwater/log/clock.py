"""The clocks of the machine, so that ages can be tested without waiting."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Final

_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts while the machine sleeps too. Where there is no clock of this name, the monotonic one does."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Clock:
    """The wall clock, which anybody may set, and the boot clock, which nobody can."""

    def now_ns(self) -> int:
        """Nanoseconds since 1970 in UTC, as everyone else sees them."""
        return time.time_ns()

    def boot_ns(self) -> int:
        """Nanoseconds since the machine was started, asleep or awake. They never go back and never jump."""
        return time.clock_gettime_ns(_BOOT_CLOCK)

    def measured(self, elapsed_ns: int) -> int:
        """Return a time span that was measured by the machine's own clock, as this clock sees it."""
        return elapsed_ns

    def boot_id(self) -> str:
        """Return an identifier of the start that the boot clock counts from; empty if the system does not tell."""
        return _boot_id()


@cache
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


REAL_CLOCK = Clock()
