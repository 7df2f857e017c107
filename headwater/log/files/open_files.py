"""Open files: which handles have some, and how they give them back.

A program may use thousands of partitions and groups, one after the other, and has far fewer descriptors. So a handle
opens its files when it needs them, and the handles that were unused for longest close theirs when there are too many.
They notice nothing but that their next use takes some microseconds longer.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from weakref import ref

_SHARE: Final = 10
"""Of so many descriptors that the process may have, there is one handle with open files, which has up to four."""
_FEWEST: Final = 8
_MOST: Final = 1024
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})


class OpenFile:
    """A descriptor that is closed when nothing refers to it any more.

    A thread that is about to read holds on to it, so its number cannot become another file's in the meantime.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class Restable(Protocol):
    """A handle that can close its files and open them again when it is used."""

    used: bool
    """Set whenever it is used; taken back when others would need its descriptors."""

    def rest(self) -> bool:
        """Close the files, unless they are in use at this moment; whether none are open now."""


class OpenFiles:
    """The handles of this process that have files open. Thread-safe: all that counts is one step of a deque each."""

    def __init__(self) -> None:
        self._handles: deque[ref[Restable]] = deque()

    def add(self, handle: Restable) -> None:
        """The handle has just opened its files; if those are too many now, others close theirs."""
        handle.used = True
        self._handles.append(ref(handle))
        excess = len(self._handles) - most_handles()
        if excess > 0:
            self._rest(excess, spare_used=True)

    def relieve(self) -> bool:
        """There is no descriptor left: close whatever is not in use at this moment; whether there was any."""
        return self._rest(len(self._handles), spare_used=False) > 0

    def _rest(self, count: int, *, spare_used: bool) -> int:
        """Have the first `count` handles rest that can; how many did. Used ones get a second chance."""
        rested = 0
        for _ in range(2 * len(self._handles)):
            if rested >= count:
                break
            try:
                reference = self._handles.popleft()
            except IndexError:
                break
            handle = reference()
            if handle is None:
                rested += 1
            elif spare_used and handle.used:
                handle.used = False
                self._handles.append(reference)
            elif handle.rest():
                rested += 1
            else:
                self._handles.append(reference)
        return rested


OPEN_FILES: Final = OpenFiles()


def most_handles() -> int:
    """Return the number of handles that may have open files, by the limit that the process has now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(max(soft // _SHARE, _FEWEST), _MOST)


def raise_limit() -> int:
    """Let this process have as many descriptors as it may allow itself; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # where the hard limit is not to be had, the soft one stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def open_file(path: str | Path, flags: int) -> int:
    """A descriptor of the file. When the process has no more, idle handles give theirs back first."""
    flags |= os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno not in _EXHAUSTED or not OPEN_FILES.relieve():
            raise
    return os.open(path, flags, 0o644)
