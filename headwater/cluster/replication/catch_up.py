"""Catching up at a bounded pace: a broker that was away for long leaves its leaders time for producers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_SAVED: Final = 1.0
"""So many seconds of what was not fetched may be fetched at once later on."""
_SHARES: Final = 8
"""One question asks for no more than this part of what a second allows."""


class CatchUp:
    """The budget of all followers of a broker that are behind. For one event loop.

    How much an answer brings is known only afterwards. A follower pays back an excess by waiting.
    """

    def __init__(self, bytes_per_second: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        """None bounds nothing."""
        self._rate = bytes_per_second
        self._clock = clock
        self._left = 0.0 if bytes_per_second is None else bytes_per_second * _SAVED
        self._seen = clock()

    @property
    def at_once(self) -> int | None:
        """The bytes to ask for at a time; None if nothing is bounded."""
        return None if self._rate is None else self._rate // _SHARES

    def wait(self) -> float:
        """Return the seconds until more may be asked for."""
        if self._rate is None:
            return 0.0
        now = self._clock()
        self._left = min(self._left + (now - self._seen) * self._rate, self._rate * _SAVED)
        self._seen = now
        return max(-self._left / self._rate, 0.0)

    def spend(self, size: int) -> None:
        """So many bytes are fetched, or about to be; what is less than zero was not."""
        self._left -= size
