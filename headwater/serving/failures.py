"""Failures, such as wrong tokens, bounded for each source.

The table is bounded too: an attacker with many addresses makes it forget, not grow.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_MOST_SOURCES: Final = 4096


class Failures:
    """Counts the failures of each source, and blocks one that has too many. Thread-safe."""

    def __init__(self, most: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """A source is blocked from its failure number `most` on, until `seconds` after its first one."""
        self._most = most
        self._seconds = seconds
        self._now = now
        self._mutex = threading.Lock()
        self._counted: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counted)

    def note(self, source: str) -> None:
        """Count a failure."""
        now = self._now()
        with self._mutex:
            since, count = self._counted.get(source, (now, 0))
            if now >= since + self._seconds:
                since, count = now, 0
            self._counted[source] = (since, count + 1)
            self._counted.move_to_end(source)
            if len(self._counted) > _MOST_SOURCES:
                self._counted.popitem(last=False)

    def blocks(self, source: str) -> bool:
        """Return whether the source has failed too often of late."""
        with self._mutex:
            since, count = self._counted.get(source, (0.0, 0))
            return count >= self._most and self._now() < since + self._seconds
