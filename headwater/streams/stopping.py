"""Stopping when asked: by SIGTERM, by Ctrl-C, or by an event that the caller has.

A library installs no signal handlers, except for the length of a call that promises to stop gracefully.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_SLICE: Final = 0.1
"""A wait goes on for at most so many seconds after a signal has come."""


class Stop:
    """A request to stop, true in a condition once someone has made it."""

    def __init__(self, event: threading.Event | None = None) -> None:
        self._event = event
        self.signal: int | None = None
        """The signal that asked. A handler sets no event: it runs in the middle of anything, also of that event."""

    def __bool__(self) -> bool:
        return self.signal is not None or (self._event is not None and self._event.is_set())

    def wait(self, seconds: float) -> bool:
        """Rest for so long, or until someone asks; whether someone did."""
        deadline = time.monotonic() + seconds
        longest = _SLICE if _has_signals() else seconds
        while not self and (left := deadline - time.monotonic()) > 0:
            if self._event is not None:
                self._event.wait(min(left, longest))
            else:
                time.sleep(min(left, longest))
        return bool(self)


def _has_signals() -> bool:
    """Python runs signal handlers in the main thread, and lets only that one have any."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def stop_on_signals(event: threading.Event | None = None) -> Iterator[Stop]:
    """For the length of a block, SIGTERM and Ctrl-C ask it to stop. A second one does what it did before the block.

    In other threads than the main one just the event counts.
    """
    stop = Stop(event)
    if not _has_signals():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None:  # None: it was installed by other means than Python, and cannot be put back
                signal.signal(number, handler)

    def ask(number: int, _: object) -> None:
        stop.signal = number
        restore()

    for number, handler in before.items():
        # Ignored signals stay ignored: the program runs in the background, or under nohup.
        if handler is not None and handler is not signal.SIG_IGN:
            signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()
