"""Notices: what the threads of gRPC wake a waiting consumer with."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_SAFETY: Final = 1.0
"""Even without a notice one looks this often."""


class Notice:
    """Wakes one waiter when it is rung, a thread by `wait` or an event loop by `fileno`."""

    def __init__(self) -> None:
        self.signal = -1
        self._rung = threading.Event()
        self._mutex = threading.Lock()
        self._closed = False

    @property
    def complete(self) -> bool:
        return hasattr(os, "eventfd") and not self._closed

    def ring(self) -> None:
        """There may be a reason to look. From any thread."""
        self._rung.set()
        with self._mutex:
            if self.signal >= 0:
                os.eventfd_write(self.signal, 1)

    def fileno(self) -> int:
        with self._mutex:
            if self.signal < 0 and self.complete:
                self.signal = os.eventfd(1 if self._rung.is_set() else 0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            return self.signal

    def drain(self) -> bool:
        rung = self._rung.is_set()
        self._rung.clear()
        with self._mutex, suppress(BlockingIOError):
            if self.signal >= 0:
                os.eventfd_read(self.signal)
        return rung

    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            self.drain()
            if ready():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._rung.wait(min(left, _SAFETY))

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            if self.signal >= 0:
                os.close(self.signal)
                self.signal = -1
