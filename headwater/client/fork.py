"""Forking: a child leaves alone all that its parent has of gRPC.

The threads that serve a connection do not exist in a forked child, and a lock that one of them held at the fork is held
there for ever. So in the child nothing of the parent's is closed, cancelled or collected, whether it was in use or
garbage that nobody had collected yet: it stays as it is until the child ends.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from typing import Protocol
from weakref import WeakSet


class ForkableCall(Protocol):
    """Something that holds a part of gRPC."""

    def abandon_in_child(self) -> None:
        """In the child: do without what is the parent's from now on. No lock can be relied on."""


_mutex = threading.Lock()
_watched: WeakSet[ForkableCall] = WeakSet()
_kept: list[ForkableCall] = []
"""All that is watched, from before the fork on: other handlers in the child may drop the last reference to it."""


def watch(holder: ForkableCall) -> None:
    """From now on, have it abandoned in forked children."""
    with _mutex:
        _watched.add(holder)


def _before() -> None:
    _mutex.acquire()
    _kept.extend(_watched)


def _after_in_parent() -> None:
    _kept.clear()
    _mutex.release()


def _after_in_child() -> None:
    if _kept:
        gc.freeze()  # calls that have failed are garbage too, by way of their tracebacks
    for holder in _kept:
        holder.abandon_in_child()
        # A reference that nobody gives back: the end of the interpreter would collect it otherwise.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))
    _kept.clear()
    _watched.clear()
    _mutex.release()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
