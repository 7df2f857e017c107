"""Waiting for new records: woken by the file system, within milliseconds.

Publishing an append is a write to the partition's `state` file, and that is what is watched. A watch is added first and
the end looked at afterwards, so nothing falls between. Linux tells by inotify, macOS and BSD by kqueue. Where there is
neither, or no room for one more file, ends are looked at in short intervals that grow while nothing comes.
"""

from __future__ import annotations

import os
import select
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from headwater.embedded.inotify import INOTIFY
from headwater.embedded.kqueue import KqueueWatch
from headwater.log import DirectoryPartition, Partition
from headwater.log.recover.recovery import STATE_FILE

_SHORTEST: Final = 0.0005
_LONGEST: Final = 0.05
_SAFETY: Final = 1.0
"""Even a watched file is looked at this often."""


HAS_KQUEUE: Final = hasattr(select, "kqueue")


def new_watch() -> Watch | KqueueWatch:
    """Return a watch for one waiter, of the kind that this system has."""
    return KqueueWatch() if HAS_KQUEUE else Watch()


class Watch:
    """Wakes one waiter when one of some files is written. Not shared between threads; any number of them may wait.

    A thread waits by `wait`. An event loop takes `fileno()` among the descriptors that it looks at:

        def readable():
            if watch.drain():
                event.set()

        loop.add_reader(watch.fileno(), readable)

    The descriptor becomes readable when one of the files was written, and now and then for nothing; `drain` tells
    which, and makes it unreadable again. Ends are looked at after `fileno` was first called, and again each time that
    `drain` says so: then nothing falls between. A `fileno` of -1, or `complete` being false, means that nobody tells,
    at least not of every file: look in intervals.
    """

    def __init__(self) -> None:
        self.written = False
        self.signal = -1
        self._numbers: set[int] = set()
        self._complete = False
        self._epoll: select.epoll | None = None
        self._close_signal: weakref.finalize[..., Watch] | None = None

    def follow(self, paths: Sequence[Path]) -> None:
        """Watch these files from now on, and no others."""
        if self.signal < 0 and paths and hasattr(os, "eventfd"):
            with suppress(OSError):  # no descriptor is left: then nobody tells
                self.signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._close_signal = weakref.finalize(self, os.close, self.signal)
        # Also those that are known, which costs nothing: another file may be there now, under the old name.
        numbers = {INOTIFY.add(self, path) for path in paths} if self.signal >= 0 else set()
        self._complete = bool(numbers) and -1 not in numbers
        numbers.discard(-1)
        INOTIFY.remove(self, self._numbers - numbers)
        self._numbers = numbers

    @property
    def complete(self) -> bool:
        """True if a write to any of the files wakes; if not, they have to be looked at in intervals."""
        return self._complete

    def fileno(self) -> int:
        """A descriptor, the same one until `close`, that becomes readable with the next write; -1 where there is none.

        It is this watch's own: each of several in one event loop has another one.
        """
        if self._epoll is None:
            if self.signal < 0 or INOTIFY.fd < 0:
                return -1
            # Readable when someone else has read an event for us, or when there are events that nobody has read.
            self._epoll = select.epoll()
            self._epoll.register(self.signal, select.EPOLLIN)
            self._epoll.register(INOTIFY.fd, select.EPOLLIN)
        return self._epoll.fileno()

    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        """Wait until `ready()`, at most `timeout` seconds; whether it was."""
        deadline = time.monotonic() + timeout
        pause = _SHORTEST
        try:
            while True:
                self.drain()
                if ready():
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if self._complete:
                    INOTIFY.sleep(self, min(left, _SAFETY))
                else:
                    time.sleep(min(left, pause))
                    pause = min(pause * 1.5, _LONGEST)
        finally:
            INOTIFY.leave(self)

    def drain(self) -> bool:
        """Forget the writes so far: what they tell is looked at next. Whether there were any."""
        return self.signal >= 0 and INOTIFY.take(self)

    def close(self) -> None:
        """Give the descriptors back. Closing twice does no harm."""
        INOTIFY.remove(self, self._numbers)
        self._numbers = set()
        self._complete = False
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        if self._close_signal is not None:
            self._close_signal()
            self.signal = -1


def state_files(partitions: Iterable[Partition]) -> list[Path]:
    """Return the files that are written with every append to these partitions; those in memory have none."""
    return [partition.path / STATE_FILE for partition in partitions if isinstance(partition, DirectoryPartition)]
