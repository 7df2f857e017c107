"""The process's inotify instance: one for all that wait, since a user may have only 128.

No thread serves it. Of those who wait at the same time one leads: it reads the events and wakes the others whose files
were written. When it has what it waited for, it hands over to one of those who still wait. Anyone else may read events
at any time, an event loop for instance: whoever reads wakes everyone concerned.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

_IN_MODIFY: Final = 0x2
_IN_MOVED_TO: Final = 0x80
_IN_CREATE: Final = 0x100
_IN_Q_OVERFLOW: Final = 0x4000
_IN_IGNORED: Final = 0x8000
_EVENT = struct.Struct("iIII")
_READ: Final = 65536


class Waiter(Protocol):
    """Someone whose files are watched. Both attributes belong to the instance, which changes them under its mutex."""

    written: bool
    """True if one of its files was written since it last asked."""
    signal: int
    """The descriptor of an eventfd that wakes it."""


class Inotify:
    """An inotify instance that any number of waiters share. Thread-safe; a forked child begins with another one."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._abandon)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._fd = -1
        self._waiters: dict[int, WeakSet[Waiter]] = {}
        self._leader: Waiter | None = None
        self._following: dict[Waiter, None] = {}

    def _abandon(self) -> None:
        """In a forked child: the parent's events are not for us, and reading them would take them from it."""
        if self._fd >= 0:
            os.close(self._fd)
        self._reset()

    # The waiting callers, by the files that they wait for.

    def add(self, waiter: Waiter, path: Path) -> int:
        """Wake the waiter when the file is written; the number of the watch, -1 where it cannot be watched."""
        with self._mutex:
            if self._fd < 0:
                self._fd = _open()
            if self._fd < 0:
                return -1
            number: int = _LIBC.inotify_add_watch(
                self._fd, os.fsencode(path), _IN_MODIFY | _IN_CREATE | _IN_MOVED_TO
            )  # the same number for the same file, whoever asks
            if number >= 0:
                self._waiters.setdefault(number, WeakSet()).add(waiter)
            return number

    def remove(self, waiter: Waiter, numbers: set[int]) -> None:
        """These watches wake the waiter no more."""
        with self._mutex:
            for number in numbers:
                waiters = self._waiters.get(number)
                if waiters is not None:
                    waiters.discard(waiter)
                    self._drop_unused(number)

    def _drop_unused(self, number: int) -> None:
        if not self._waiters[number]:
            del self._waiters[number]
            _LIBC.inotify_rm_watch(self._fd, number)

    @property
    def fd(self) -> int:
        """The descriptor with the events of everyone, -1 where there is none."""
        return self._fd

    # Waiting.

    def take(self, waiter: Waiter) -> bool:
        """Read the events that are there, wake those concerned, and tell whether the waiter itself was one of them."""
        with self._mutex:
            self._read(waiter)
            if waiter.written:
                waiter.written = False
                with suppress(BlockingIOError):  # it has read of it by itself: nobody had to signal
                    os.eventfd_read(waiter.signal)
                return True
            return False

    def sleep(self, waiter: Waiter, seconds: float) -> None:
        """Until one of the waiter's files is written, or there are events to read, or for so long."""
        with self._mutex:
            if waiter.written:
                return
            if self._leader is None:
                self._leader = waiter
            leads = self._leader is waiter
            if not leads:
                self._following[waiter] = None
        # By `poll`: `select` fails in processes with more than 1024 descriptors.
        poll = select.poll()
        poll.register(waiter.signal, select.POLLIN)
        if leads:
            poll.register(self._fd, select.POLLIN)
        poll.poll(seconds * 1000)

    def leave(self, waiter: Waiter) -> None:
        """The waiter waits no longer. If it has led, another one does from now on."""
        with self._mutex:
            self._following.pop(waiter, None)
            if self._leader is waiter:
                self._leader = next(iter(self._following), None)
                if self._leader is not None:
                    del self._following[self._leader]
                    self._wake(self._leader)

    def _read(self, reader: Waiter) -> None:
        """Mark those whose files were written, and wake them; the reader is awake."""
        for number, mask in self._events():
            if mask & _IN_Q_OVERFLOW:  # events were lost: everyone looks at everything
                for waiters in self._waiters.values():
                    self._wake_all(waiters, reader)
            elif number in self._waiters:
                self._wake_all(self._waiters[number], reader)
                if mask & _IN_IGNORED:  # the file is gone, and so is the watch
                    del self._waiters[number]
                else:
                    self._drop_unused(number)

    def _wake_all(self, waiters: WeakSet[Waiter], reader: Waiter) -> None:
        for waiter in waiters:
            if waiter is reader:
                waiter.written = True
            else:
                self._wake(waiter)

    def _wake(self, waiter: Waiter) -> None:
        if not waiter.written:
            waiter.written = True
            os.eventfd_write(waiter.signal, 1)

    def _events(self) -> Iterator[tuple[int, int]]:
        """Number and mask of each event that is there."""
        while self._fd >= 0:
            try:
                content = os.read(self._fd, _READ)
            except BlockingIOError:
                return
            position = 0
            while position < len(content):
                number, mask, _, name_bytes = _EVENT.unpack_from(content, position)
                yield number, mask
                position += _EVENT.size + name_bytes


def _open() -> int:
    """A new inotify instance, or -1 where there is none to be had."""
    if not sys.platform.startswith("linux"):
        return -1
    fd: int = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    return fd


_LIBC = ctypes.CDLL(None, use_errno=True)
INOTIFY: Final = Inotify()
