"""Receipts: what `send` gives at once, and what becomes of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

from headwater.core.errors import StoreError
from headwater.log import Appended

_waiting = threading.Lock()
"""Held while an outcome gets its event or calls, so that two who wait for it wait for the same one."""
# A child would find it held for ever if another thread held it at the fork.
os.register_at_fork(before=_waiting.acquire, after_in_parent=_waiting.release, after_in_child=_waiting.release)

_NOWHERE: Final = Appended(-1, -1)
"""The place of what was sent and is not waited for."""


class Outcome:
    """The outcome of the records of one batch, once it is known."""

    __slots__ = ("_calls", "_event", "appended", "error", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.appended: Appended | None = None
        self.error: BaseException | None = None
        self._event: threading.Event | None = None
        self._calls: list[Callable[[], None]] | None = None

    @property
    def done(self) -> bool:
        """True if it is known."""
        return self.appended is not None or self.error is not None

    def succeed(self, appended: Appended) -> None:
        """The batch is in the log."""
        self.appended = appended
        self._tell()

    def let_go(self) -> None:
        """The batch is on its way, and nobody waits to hear where it comes to be."""
        self.succeed(_NOWHERE)

    def fail(self, error: BaseException) -> None:
        """The batch is not in the log."""
        self.error = error
        self._tell()

    def offset_of(self, number: int, advice: str) -> int:
        """The offset of one of its records; raises what went wrong, or StoreError when it is not known.

        `advice` is for whoever asks while the record is still pending.
        """
        if self.error is not None:
            raise self.error
        if self.appended is None:
            raise StoreError(f"the record is still pending: {advice}")
        if self.appended is _NOWHERE:
            raise StoreError('the record was sent with acks="none": nobody waits to hear its offset')
        return self.appended.base_offset + number

    def _tell(self) -> None:
        if self._event is not None:
            self._event.set()
        if self._calls is not None:
            with _waiting:
                calls, self._calls = self._calls, None
            for call in calls or ():
                call()

    def call_when_done(self, call: Callable[[], None]) -> None:
        """Call it once when the outcome is known, in the thread that brings it; at once if it is known already."""
        with _waiting:
            self._calls = [*(self._calls or ()), call]
        if self.done:  # it may have come before the call was there to be made
            self._tell()

    def wait(self, timeout: float | None) -> bool:
        """Return whether it was known within `timeout` seconds."""
        if not self.done:
            with _waiting:
                self._event = self._event or threading.Event()
            if not self.done:  # it may have come before the event was there to be set
                self._event.wait(timeout)
        return self.done


class Receipt(tuple[Outcome, int]):
    """One sent record. Its place in the log is known once the batch that carries it is written.

    A plain tuple within, because every send makes one: a named tuple takes twice as long to make, an object as well.
    """

    __slots__ = ()

    @property
    def outcome(self) -> Outcome:
        """The outcome of the batch."""
        return self[0]

    @property
    def number(self) -> int:
        """The number of the record in its batch."""
        return self[1]

    @property
    def partition(self) -> int:
        """The partition that the record goes to."""
        return self.outcome.partition

    @property
    def done(self) -> bool:
        """True if the record is in the log or has failed; with `acks="none"`, if it is on its way."""
        return self.outcome.done

    @property
    def offset(self) -> int:
        """The record's offset; raises what went wrong, or StoreError while it is pending, and with `acks="none"`."""
        return self.outcome.offset_of(self.number, "call flush() or sync() on the producer, or wait()")

    def wait(self, timeout: float | None = None) -> int:
        """The record's offset, as soon as it is known; raises TimeoutError."""
        if not self.outcome.wait(timeout):
            raise TimeoutError(f"the record was not written within {timeout:g} s")
        return self.offset

    def __repr__(self) -> str:
        return f"<Receipt of record {self.number} of a batch for partition {self.partition}>"
