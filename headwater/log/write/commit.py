"""Group commit: appends that arrive while another one is being synced share the next write and the next sync.

There is no thread behind it. The first caller to find the queue idle leads: it takes all that is queued and commits it
in one go. When it is done it wakes those it served and hands the lead to the first caller that came in the meantime.
So a lone appender pays for nothing, and eight of them pay for one sync instead of eight.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from headwater.core.errors import PartitionError
from headwater.log.format.frame import Frame, FrameHeader


class Appended(NamedTuple):
    """The offsets of an append in the log: from `base_offset` up to, and without, `end_offset`.

    `duplicate` says that it was there already. For an atomic group that was there already the offsets are -1: only its
    number is remembered.
    """

    base_offset: int
    end_offset: int
    duplicate: bool = False


class Extent(NamedTuple):
    """The place of adjacent frames: the file, whose header names it `log`, and the range of its bytes.

    `stamp` is the checksum of the last one's stamp, by which they are known to be those.
    """

    file: str
    log: bytes
    position: int
    length: int
    stamp: int


class Stretch(NamedTuple):
    """The bytes that one append has added to a log, from offset `start` up to, and without, `end`.

    It is published: readers may see it. The log begins at `log_start`, and what is below `durable_end` is durable.
    """

    start: int
    end: int
    log_start: int
    durable_end: int
    pieces: Sequence[Any]
    extent: Extent


class Ticket:
    """One append on its way: frames that become visible together, then an outcome."""

    __slots__ = ("_turn", "compacted_until", "copied", "error", "frames", "leads", "result", "size")

    def __init__(
        self, frames: Sequence[Frame], copied: Sequence[FrameHeader] = (), *, compacted_until: int = 0
    ) -> None:
        """`copied` are the headers that the frames have in another replica, when they are to be the same here.

        Below `compacted_until` that one may have removed records between them.
        """
        self.frames = frames
        self.copied = copied
        self.compacted_until = compacted_until
        self.size = sum(frame.length for frame in frames)
        self.result: Appended | None = None
        self.error: BaseException | None = None
        self.leads = False
        self._turn: threading.Lock | None = None

    def outcome(self) -> Appended:
        """The result, or the error as an exception."""
        if self.error is not None:
            raise self.error
        assert self.result is not None, "an append ended without an outcome"
        return self.result


_PATIENCE: Final = 0.5
"""The time that a leader waits for the callers served before, as a part of the time that serving them took."""


class CommitQueue:
    """Lets one caller at a time commit for all that wait."""

    def __init__(self, commit: Callable[[Sequence[Ticket]], None]) -> None:
        self._commit = commit
        self._mutex = threading.Lock()
        self._waiting: list[Ticket] = []
        self._busy = False
        self._expected = 0
        self._expected_until = 0.0
        self._all_here: threading.Lock | None = None

    def append(self, ticket: Ticket) -> Appended:
        """Commit the ticket, alone or with others, and return its outcome."""
        try:
            self._enqueue(ticket)
            if ticket._turn is not None:
                ticket._turn.acquire()
            if ticket.leads:
                self._lead(ticket)
        except BaseException:
            # Interrupted (Ctrl-C). A ticket that nobody has taken yet is withdrawn; a lead that is ours goes on to the
            # next.
            with self._mutex:
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                if ticket.leads:
                    self._hand_over(ticket)
            raise
        return ticket.outcome()

    def _enqueue(self, ticket: Ticket) -> None:
        with self._mutex:
            self._waiting.append(ticket)
            if not self._busy:
                ticket.leads = self._busy = True
            else:
                ticket._turn = _taken_lock()
                if self._all_here is not None and len(self._waiting) >= self._expected:
                    self._all_here.release()
                    self._all_here = None

    def _lead(self, ticket: Ticket) -> None:
        self._gather()
        with self._mutex:
            batch, self._waiting = self._waiting, []
        started = time.monotonic()
        try:
            self._commit(batch)
        except BaseException as error:  # noqa: BLE001 - whatever it was, every waiting caller is told
            for waiting in batch:
                if waiting.result is None and waiting.error is None:
                    # An interruption (Ctrl-C) is meant for the thread that leads, not for those it leads.
                    mine = waiting is ticket or isinstance(error, Exception)
                    waiting.error = error if mine else PartitionError("the writing thread was interrupted: retry")
            if not isinstance(error, Exception):
                ticket.error = error  # also when the append has happened
        finally:
            with self._mutex:
                now = time.monotonic()
                self._expected = len(batch) + len(self._waiting)
                self._expected_until = now + (now - started) * _PATIENCE
                self._hand_over(ticket)
            for waiting in batch:
                if waiting._turn is not None and waiting is not ticket:
                    waiting._turn.release()

    def _gather(self) -> None:
        """Wait a little for the callers who have just been served: one sync for all, not one for each half of them.

        A lone caller expects nobody and does not wait. When a crowd goes home, the last one waits once.
        """
        with self._mutex:
            seconds = self._expected_until - time.monotonic()
            if len(self._waiting) >= self._expected or seconds <= 0:
                return
            all_here = self._all_here = _taken_lock()
        all_here.acquire(timeout=seconds)
        with self._mutex:
            self._all_here = None

    def _hand_over(self, ticket: Ticket) -> None:
        """Make the first one waiting the leader instead of `ticket`. The mutex is held."""
        ticket.leads = False
        if not self._waiting:
            self._busy = False
            return
        leader = self._waiting[0]
        leader.leads = True
        assert leader._turn is not None, "only a leader does not wait"
        leader._turn.release()


def _taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
