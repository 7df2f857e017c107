"""Borrowing: memory of a broker on this machine, in which frames reach it without being sent."""

from __future__ import annotations

import os
import stat
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final
from weakref import finalize

from headwater.v1 import broker_pb2 as pb
from headwater.wire.packing import View

_FIRST: Final = 4096
"""The position of the first frame: before it is the key by which the memory is known."""


class _Region:
    """Bytes of the memory that are taken, until the broker has answered."""

    __slots__ = ("answered", "end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.answered = False


class BorrowedMemory:
    """Memory that the broker has lent to one stream. Thread-safe.

    It is used round and round. A frame that it has no room for is to be sent.
    """

    def __init__(self, lent: pb.LentMemory) -> None:
        """Raises OSError where it cannot be opened, because the broker is another user's or in a container."""
        self._size = lent.size
        self._mutex = threading.Lock()
        self._taken: deque[_Region] = deque()
        """In the order in which they were taken, which is that of their places but for where it begins anew."""
        self._by_id: dict[int, _Region] = {}
        self._fd = os.open(lent.file, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        finalize(self, os.close, self._fd)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink or status.st_size < self._size or not lent.key:
            raise FileNotFoundError(lent.file)
        if os.pread(self._fd, len(lent.key), 0) != lent.key:
            raise FileNotFoundError(lent.file)  # the process of that number is another one here: its files are not ours

    def put(self, request_id: int, pieces: Sequence[View]) -> pb.Region | None:
        """Put a frame there, until the broker has answered the request; None where there is no room."""
        size = sum(map(len, pieces))
        with self._mutex:
            start = self._room(size)
            if start is None:
                return None
            region = self._by_id[request_id] = _Region(start, start + size)
            self._taken.append(region)
        try:
            whole = os.pwritev(self._fd, pieces, start) == size
        except OSError:
            whole = False
        # If it is not, the system is out of memory. The place is free again when the request is answered all the same.
        return pb.Region(position=start, length=size) if whole else None

    def _room(self, size: int) -> int | None:
        if not self._taken:
            return _FIRST if _FIRST + size <= self._size else None
        first, last = self._taken[0].start, self._taken[-1].end
        if first < last:
            if last + size <= self._size:
                return last
            last = _FIRST
        return last if last + size <= first else None

    def answered(self, request_id: int) -> None:
        """The broker has what a request has put here, if it has."""
        with self._mutex:
            region = self._by_id.pop(request_id, None)
            if region is not None:
                region.answered = True
            while self._taken and self._taken[0].answered:
                self._taken.popleft()
