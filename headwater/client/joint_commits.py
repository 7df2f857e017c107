"""Joint commits: consumers of one process that commit to the same broker at the same time share a call.

A commit that finds none on its way goes at once, alone. Those that come while it is on its way wait, and go together
when it is back: one of the waiting threads makes the call, for all. So the more commits there are, the less each costs,
here and at the broker. None waits long for a call that is not its own, and one for which the call brings no outcome is
made again on its own, as if it had never been with others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import grpc

from headwater.core.errors import NotLeader
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import AGAIN, code_of, unpack_error

if TYPE_CHECKING:
    from headwater.client.connection import Connection

_log = logging.getLogger(__name__)
_AT_ONCE: Final = 500
"""The most that go in one call."""
_PATIENCE: Final = 0.05
"""A commit waits so many seconds for a call that others have on their way."""
_GATHERING: Final = 0.02
"""For how long those are waited for at most that were told together, and are likely to come again. Seconds."""


class _Waiting:
    """A commit that waits: for its outcome, or for its turn to make the call."""

    __slots__ = ("all_here", "leads", "outcome", "request", "turn")

    def __init__(self, request: pb.CommitRequest) -> None:
        self.request = request
        self.leads = False
        self.outcome: pb.CommitOutcome | None = None
        # Locks that others release: the cheapest way to wake one thread.
        self.turn = threading.Lock()
        self.turn.acquire()
        self.all_here = threading.Lock()
        self.all_here.acquire()


class JointCommits:
    """The commits on one channel. Thread-safe."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self._mutex = threading.Lock()
        self._under_way = 0
        self._awaited = 0.0
        """Until when others wait for what is under way."""
        self._called = False
        """True if one of those who wait makes the next call."""
        self._waiting: list[_Waiting] = []
        self._gathering: _Waiting | None = None
        """The commit that makes the next call, as long as it waits for others."""
        self._expected = 0
        """The number of commits that it waits for, with itself."""
        self._longest = 0.0
        """For how long it does: half as long as the last call took."""
        self._again = 0.0
        """Until when those are waited for who were told together."""

    def commit(self, request: pb.CommitRequest, connection: Connection) -> pb.CommitOutcome | None:
        """The outcome, or None when nobody knows it. Raises what gRPC does when it went alone."""
        mine = _Waiting(request)
        if self._goes_alone(mine):
            return self._make([mine], connection)
        try:
            if not mine.leads and not mine.turn.acquire(timeout=_PATIENCE) and not self._lead(mine):
                # On its way with others, or just told; longer than that, and who made the call was interrupted.
                mine.turn.acquire(timeout=connection.config.attempt_timeout + _PATIENCE)
            if mine.leads and self._gathering is mine:
                mine.all_here.acquire(timeout=self._longest)
        except BaseException:
            self._give_up(mine)
            raise
        return self._make(self._take(mine), connection) if mine.leads else mine.outcome

    def _goes_alone(self, mine: _Waiting) -> bool:
        """Return whether a commit goes at once. Otherwise it waits with others, and may have to make their call."""
        with self._mutex:
            now = time.monotonic()
            if not self._called and (not self._under_way or now > self._awaited):
                if now >= self._again:
                    self._begin()
                    return True
                # The first to come of those who were told together just now.
                mine.leads = self._called = True
                self._gathering = mine
            self._waiting.append(mine)
            if self._gathering is not None and len(self._waiting) >= self._expected:
                self._gathering.all_here.release()
                self._gathering = None
            return False

    def _begin(self) -> None:
        """A call begins. The mutex is held."""
        self._under_way += 1
        self._awaited = time.monotonic() + _PATIENCE

    def _lead(self, mine: _Waiting) -> bool:
        """Be the one that makes the next call, unless the commit is on its way already; whether it is the one."""
        with self._mutex:
            if mine in self._waiting:
                mine.leads = self._called = True
            return mine.leads

    def _take(self, mine: _Waiting) -> list[_Waiting]:
        """The commits that go with the next call."""
        with self._mutex:
            batch = [mine, *(waiting for waiting in self._waiting if not waiting.leads)][:_AT_ONCE]
            self._remove(batch)
            self._begin()
        return batch

    def _give_up(self, mine: _Waiting) -> None:
        """The thread was interrupted: who leads lets others do so."""
        with self._mutex:
            self._remove([mine])

    def _remove(self, batch: list[_Waiting]) -> None:
        """The mutex is held."""
        self._waiting = [waiting for waiting in self._waiting if waiting not in batch]
        self._called = any(waiting.leads for waiting in self._waiting)
        if self._gathering in batch:
            self._gathering = None

    def _make(self, batch: list[_Waiting], connection: Connection) -> pb.CommitOutcome | None:
        """Make the call, tell the others, and have the next one made."""
        begun = time.monotonic()
        try:
            for waiting, outcome in zip(batch, self._call(batch, connection), strict=False):
                waiting.outcome = outcome
        finally:
            with self._mutex:
                self._under_way -= 1
                if not self._called:
                    self._call_next(len(batch), time.monotonic() - begun)
            for waiting in batch[1:]:
                waiting.turn.release()
        return batch[0].outcome

    def _call_next(self, told: int, took: float) -> None:
        """Have one of those who wait make the next call, or the first to come. The mutex is held.

        Those who are told now are likely to come again, and go with it if they do: otherwise they and those who wait
        would take turns from now on, with a call for each half.
        """
        self._expected = told + len(self._waiting) if told > 1 else 0
        self._longest = min(took / 2, _GATHERING) if told > 1 else 0.0
        self._again = time.monotonic() + self._longest
        if self._waiting:
            leader = self._waiting[0]
            self._called = leader.leads = True
            self._gathering = leader if told > 1 else None
            leader.turn.release()

    def _call(self, batch: list[_Waiting], connection: Connection) -> Iterable[pb.CommitOutcome]:
        timeout, metadata = connection.config.attempt_timeout, connection.metadata
        if len(batch) == 1:
            response = self._stub.Commit(batch[0].request, timeout=timeout, metadata=metadata)
            return [pb.CommitOutcome(response=response)]
        request = pb.CommitAllRequest(commits=[waiting.request for waiting in batch])
        try:
            answer: pb.CommitAllResponse = self._stub.CommitAll(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as failure:
            _log.debug("%d commits are made again, one by one: %s", len(batch), failure)
            return []
        return answer.outcomes


def commit(request: pb.CommitRequest, connection: Connection) -> pb.CommitResponse:
    """Commit, with others of this process that do so at the same time; raises what came of it."""
    channel = connection.channel()
    outcome = None
    try:
        outcome = channel.commits.commit(request, connection)
    except grpc.RpcError as failure:
        connection.explain(failure, channel)
    except ValueError:  # the channel was closed by who found out first that it is dead
        pass
    if outcome is not None and outcome.HasField("response"):
        return outcome.response
    if outcome is not None and outcome.HasField("error"):
        error = unpack_error(outcome.error)
        if isinstance(error, NotLeader):
            connection.moved(error)
        if code_of(error) not in AGAIN:
            raise error
    response: pb.CommitResponse = connection.call("Commit", request)
    return response
