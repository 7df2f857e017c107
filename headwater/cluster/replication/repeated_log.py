"""Logging of what may happen again and again: a line that everybody has read need not be written a thousand times."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

INTERVAL: Final = 60.0
"""The time for which the same message about the same subject is left out after it was logged. Seconds."""
_KEPT: Final = 10_000
"""The most messages that are remembered."""


class RepeatedLog:
    """Logs the same message about the same subject once per interval, with a count of what was left out.

    A message is the same where its text is before its arguments are put in, and the kinds of errors among these are.
    The first argument is its subject. Thread-safe.
    """

    def __init__(
        self, logger: logging.Logger, interval: float = INTERVAL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._interval = interval
        self._clock = clock
        self._mutex = threading.Lock()
        self._last: dict[tuple[str, ...], tuple[float, int]] = {}

    def log(
        self, level: int, message: str, subject: object, *args: object, exc_info: BaseException | None = None
    ) -> None:
        """Log it, unless it was logged within the interval."""
        kinds = [type(argument).__name__ for argument in args if isinstance(argument, BaseException)]
        key = (message, str(subject), *kinds)
        now = self._clock()
        with self._mutex:
            logged, left_out = self._last.get(key, (now - self._interval, 0))
            if now - logged < self._interval:
                self._last[key] = logged, left_out + 1
                return
            if len(self._last) >= _KEPT:
                self._last.clear()
            self._last[key] = now, 0
        if left_out:
            message, args = f"{message} (%d times more in the last %.0f s)", (*args, left_out, now - logged)
        self._logger.log(level, message, subject, *args, exc_info=exc_info)
