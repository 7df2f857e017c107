"""File descriptors: waiting for input, and keeping the messages of other programs out of standard error."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def readable(fd: int, seconds: float = 0.0) -> bool:
    """Return whether there is something to read within so much time, or the end. Descriptors may be beyond 1024."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@contextmanager
def silenced_children() -> Iterator[None]:
    """Give the processes that the block starts a standard error that leads nowhere; this program keeps its own.

    Java and Spark would begin with a page about their logging. With --debug they may.
    """
    if "--debug" in sys.argv:
        yield
        return
    own, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    before = sys.stderr
    try:
        with os.fdopen(own, "w", closefd=False) as sys.stderr:
            os.dup2(nowhere, 2)
            yield
    finally:
        sys.stderr = before
        os.dup2(own, 2)
        os.close(own)
        os.close(nowhere)
