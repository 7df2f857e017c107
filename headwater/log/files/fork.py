"""Forking: open handles do not survive it, and do no harm in the child.

A `flock` belongs to an open file, which parent and child share: a child that unlocked would unlock its parent. So at
the moment of a fork no handle is in the middle of anything, and in the child each is closed without unlocking. Using
one there raises an error that says to open it again.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    """A handle that must not be used in a forked child."""

    @property
    def mutex(self) -> threading.RLock:
        """Held whenever the handle is in the middle of something."""

    def abandon_in_child(self) -> None:
        """Close everything without unlocking anything. The mutex is held by nobody who still exists."""


_handles: weakref.WeakSet[Forkable] = weakref.WeakSet()
_mutex = threading.Lock()
_held: list[Forkable] = []


def watch(handle: Forkable) -> None:
    """From now on, have the handle quiet at a fork and abandoned in the child."""
    with _mutex:
        _handles.add(handle)


def unwatch(handle: Forkable) -> None:
    """The handle was closed. Its own mutex must not be held: a fork takes the two in the other order."""
    with _mutex:
        _handles.discard(handle)


def _before() -> None:
    _mutex.acquire()
    for handle in list(_handles):
        handle.mutex.acquire()
        _held.append(handle)


def _after_in_parent() -> None:
    while _held:
        _held.pop().mutex.release()
    _mutex.release()


def _after_in_child() -> None:
    while _held:
        _held.pop().abandon_in_child()
    _handles.clear()
    _mutex.release()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
