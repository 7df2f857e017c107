"""Waiting for new records on macOS and BSD: woken by a kqueue, as inotify does it on Linux.

Each waiter has a queue of its own, which an event loop may look at like any descriptor. Each watched file takes another
one. Where none is left, or in a forked child, which does not inherit the queue, `complete` is false, and files are
looked at in short intervals that grow while nothing comes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

SHORTEST_PAUSE: Final = 0.0005
LONGEST_PAUSE: Final = 0.05
_SAFETY: Final = 1.0
"""Even a watched file is looked at this often."""
_EVENTS_ONLY: Final = getattr(os, "O_EVTONLY", os.O_RDONLY) | os.O_CLOEXEC
"""Opens a file for its events: that does not keep its volume from being unmounted."""


class FileQueue(Protocol):
    """A kernel queue of events of files. Calls raise OSError."""

    def fileno(self) -> int:
        """A descriptor that is readable while there are events."""

    def add(self, fd: int) -> None:
        """Tell of writes to an open file, and of its removal or replacement. Closing the file ends it."""

    def take(self, timeout: float) -> list[tuple[int, bool]]:
        """Wait at most so many seconds for events; return each file's descriptor, and whether the file is gone."""

    def close(self) -> None:
        """Give the descriptor back."""


if sys.platform != "linux" and sys.platform != "win32":
    import select

    class KernelQueue:
        """The kqueue of the system."""

        def __init__(self) -> None:
            self._queue = select.kqueue()

        def fileno(self) -> int:
            return self._queue.fileno()

        def add(self, fd: int) -> None:
            notes = select.KQ_NOTE_WRITE | select.KQ_NOTE_EXTEND | select.KQ_NOTE_DELETE | select.KQ_NOTE_RENAME
            flags = select.KQ_EV_ADD | select.KQ_EV_CLEAR
            self._queue.control([select.kevent(fd, select.KQ_FILTER_VNODE, flags, notes)], 0, 0)

        def take(self, timeout: float) -> list[tuple[int, bool]]:
            gone = select.KQ_NOTE_DELETE | select.KQ_NOTE_RENAME
            return [(event.ident, bool(event.fflags & gone)) for event in self._queue.control(None, 1024, timeout)]

        def close(self) -> None:
            self._queue.close()

    def new_queue() -> FileQueue:
        """Return a new queue."""
        return KernelQueue()

else:

    def new_queue() -> FileQueue:
        """Return a new queue; raises OSError, since there are none on this system."""
        raise OSError("this system has no kqueue")


class KqueueWatch:
    """Wakes one waiter when one of some files is written. A `Wakeup`; not shared between threads."""

    def __init__(self, queue: Callable[[], FileQueue] = new_queue) -> None:
        self._new_queue = queue
        self._queue: FileQueue | None = None
        self._files: dict[Path, int] = {}
        self._complete = False
        self._written = False

    def follow(self, paths: Sequence[Path]) -> None:
        """Watch these files from now on, and no others."""
        wanted = set(paths)
        for path in [path for path, fd in self._files.items() if path not in wanted or not _is_same(path, fd)]:
            self._forget(path)
        if self._queue is None and paths:
            with suppress(OSError):  # no descriptor is left: then nobody tells
                self._queue = self._new_queue()
        watched = [self._add(path) for path in paths]
        self._complete = bool(paths) and all(watched)

    def _add(self, path: Path) -> bool:
        """Watch a file, if it is not watched yet; whether it is now."""
        if self._queue is None:
            return False
        if path in self._files:
            return True
        try:
            fd = os.open(path, _EVENTS_ONLY)
        except OSError:
            return False
        try:
            self._queue.add(fd)
        except OSError:
            os.close(fd)
            return False
        self._files[path] = fd
        return True

    def _forget(self, path: Path) -> None:
        os.close(self._files.pop(path))  # which takes it out of the queue

    @property
    def complete(self) -> bool:
        """True if a write to any of the files wakes; if not, they have to be looked at in intervals."""
        return self._complete

    def fileno(self) -> int:
        """A descriptor, the same one until `close`, that becomes readable with the next write; -1 if there is none."""
        return -1 if self._queue is None else self._queue.fileno()

    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        """Wait until `ready()`, at most `timeout` seconds; whether it was."""
        deadline = time.monotonic() + timeout
        pause = SHORTEST_PAUSE
        while True:
            self.drain()
            if ready():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._complete:
                self._take(min(left, _SAFETY))
            else:
                time.sleep(min(left, pause))
                pause = min(pause * 1.5, LONGEST_PAUSE)

    def drain(self) -> bool:
        """Forget the writes so far: what they tell is looked at next. Whether there were any."""
        self._take(0)
        written, self._written = self._written, False
        return written

    def _take(self, timeout: float) -> None:
        if self._queue is None:
            return
        try:
            events = self._queue.take(timeout)
        except OSError:
            self._complete = False  # a forked child's: nobody tells any more
            return
        self._written |= bool(events)
        for fd, gone in events:
            if gone:
                # Another file may have its name by now, which nobody tells of until the next call of `follow`.
                self._complete = False
                for path in [path for path, known in self._files.items() if known == fd]:
                    self._forget(path)

    def close(self) -> None:
        """Give the descriptors back. Closing twice does no harm."""
        for path in list(self._files):
            self._forget(path)
        self._complete = False
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()


def _is_same(path: Path, fd: int) -> bool:
    """Return whether a name is still that of an open file."""
    try:
        named, opened = os.stat(path), os.fstat(fd)
    except OSError:
        return False
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
