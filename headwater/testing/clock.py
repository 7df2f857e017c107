"""Clocks that stand still until they are told to move."""

from __future__ import annotations

from headwater.log.clock import Clock
from headwater.log.entropy import random_bytes

_START_NS = 1_700_000_000_000_000_000
_BOOTED_NS = 3600 * 10**9


class ManualClock(Clock):
    """A wall clock and a boot clock that are moved by hand, so that a test of a week takes no week."""

    def __init__(self, start_ns: int = _START_NS) -> None:
        self._now_ns = start_ns
        self._boot_ns = _BOOTED_NS
        self._boot_id = random_bytes(16).hex()

    def now_ns(self) -> int:
        return self._now_ns

    def boot_ns(self) -> int:
        return self._boot_ns

    def measured(self, elapsed_ns: int) -> int:  # noqa: ARG002 - this clock has not moved meanwhile
        return 0

    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, seconds: float) -> None:
        """Let time pass, for both clocks."""
        if seconds < 0:
            raise ValueError("time does not pass backwards: use jump to set the wall clock back")
        self._now_ns += round(seconds * 1e9)
        self._boot_ns += round(seconds * 1e9)

    def jump(self, seconds: float) -> None:
        """Set the wall clock ahead, or back by negative seconds, as an administrator or a time server might."""
        self._now_ns += round(seconds * 1e9)

    def reboot(self, off: float = 0.0) -> None:
        """Start the machine again, after it was off for so many seconds."""
        self._now_ns += round(off * 1e9)
        self._boot_ns = 0
        self._boot_id = random_bytes(16).hex()
