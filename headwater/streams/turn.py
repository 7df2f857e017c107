"""A turn: batches of one producer for one partition are written one after the other."""

from __future__ import annotations

import threading
import time

from headwater.core.errors import BufferFull
from headwater.streams.ports import Appender


class Turn:
    """The right to write to one partition, for the length of a block."""

    __slots__ = ("_appender", "_lock", "_partition", "_timeout", "_topic")

    def __init__(self, lock: threading.Lock, appender: Appender, partition: int, timeout: float, topic: str) -> None:
        self._lock = lock
        self._appender = appender
        self._partition = partition
        self._timeout = timeout
        self._topic = topic

    def __enter__(self) -> None:
        begun = time.monotonic()
        if self._lock.acquire(timeout=self._timeout):
            try:
                if self._appender.room(self._partition, max(begun + self._timeout - time.monotonic(), 0)):
                    return
            except BaseException:
                self._lock.release()
                raise
            self._lock.release()
        raise BufferFull(
            f"the producer of {self._topic!r} is still writing the previous batch after {self._timeout:g} s: "
            f"send more slowly, or raise block_timeout"
        )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
