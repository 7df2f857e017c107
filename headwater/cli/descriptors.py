"""Descriptors: whether there is something to read."""

from __future__ import annotations

import select


def readable(fd: int, seconds: float = 0.0) -> bool:
    """Whether there is something to read within so much time, or the end. Also where descriptors are beyond 1024."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
