"""A clock that stands still until it is told to move."""

from __future__ import annotations

from headwater.log.clock import Clock

_START_NS = 1_700_000_000_000_000_000


class ManualClock(Clock):
    """Time passes by `advance` alone, so that a test of a week takes no week."""

    def __init__(self, start_ns: int = _START_NS) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Let time pass. Negative seconds set the clock back, as an administrator might."""
        self._now_ns += round(seconds * 1e9)
