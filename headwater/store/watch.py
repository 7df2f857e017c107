"""Waiting for new records: woken by the file system, within milliseconds.

Publishing an append is a write to the partition's `state` file, and that is what is watched. A watch is added first and
the end looked at afterwards, so nothing falls between. Where there is no inotify, ends are looked at in short intervals
that grow while nothing comes.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_IN_MODIFY: Final = 0x2
_IN_CREATE: Final = 0x100
_IN_MOVED_TO: Final = 0x80
_IN_NONBLOCK: Final = os.O_NONBLOCK
_IN_CLOEXEC: Final = os.O_CLOEXEC
_SHORTEST: Final = 0.0005
_LONGEST: Final = 0.05
_SAFETY: Final = 1.0
"""Even a watched file is looked at this often: a watch can fail to be added, or a queue overflow."""


class Watch:
    """Wakes one waiter when one of some files is written. Not shared between threads."""

    def __init__(self) -> None:
        self._fd = _inotify()
        self._watched: dict[Path, int] = {}

    def add(self, paths: Sequence[Path]) -> None:
        """Watch these files too."""
        if self._fd < 0:
            return
        for path in paths:
            # Again for one that is known, which costs nothing: another file may be there now, under the old name.
            number = _LIBC.inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY | _IN_CREATE | _IN_MOVED_TO)
            if number >= 0:
                self._watched[path] = number

    def fileno(self) -> int:
        """The descriptor that becomes readable, -1 where there is none."""
        return self._fd

    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        """Wait until `ready()`, at most `timeout` seconds; whether it was."""
        deadline = time.monotonic() + timeout
        pause = _SHORTEST
        while True:
            self.drain()
            if ready():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._fd >= 0 and self._watched:
                self._sleep(min(left, _SAFETY))
            else:
                time.sleep(min(left, pause))
                pause = min(pause * 1.5, _LONGEST)

    def _sleep(self, seconds: float) -> None:
        """Until something is written. By `poll`: `select` fails in processes with more than 1024 descriptors."""
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        waiting.poll(seconds * 1000)

    def drain(self) -> None:
        """Forget the events so far: what they tell is looked at next."""
        if self._fd >= 0:
            try:
                while os.read(self._fd, 65536):
                    pass
            except BlockingIOError:
                pass

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _inotify() -> int:
    """A new inotify instance, or -1 where there is none to be had."""
    if not sys.platform.startswith("linux"):
        return -1
    found: int = _LIBC.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
    return found


_LIBC = ctypes.CDLL(None, use_errno=True)
