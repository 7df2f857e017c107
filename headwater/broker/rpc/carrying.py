"""Carries calls of users to the broker that can answer them.

A client in another language calls any broker of a cluster. If that one does not lead or coordinate what the call is
about, it makes the same call at the one that does, in the name of its caller, and hands the answer back. Clients that
find leaders by themselves are told where to go instead: see `Call.may_be_carried`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from headwater.broker.arrivals import ArrivalWaiter
from headwater.broker.backend import NamedPartition
from headwater.broker.clustered.backend import ClusteredBackend
from headwater.broker.core import Core
from headwater.broker.limits.budget import Hold
from headwater.broker.rpc.call import Call
from headwater.broker.waiting_reader import CallLimits, PartitionOffsets, ReadAnswer, ReadRequest, WaitingReader
from headwater.core.errors import BrokerUnavailable, NotLeader
from headwater.log.entropy import random_bytes
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb

_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
_Content = TypeVar("_Content", bound=Any)
_CARRYING: Final = 20.0
"""Seconds for another broker to answer, and for a leader to be found, beside those that the call may wait."""
_AGAIN: Final = 0.05
"""Seconds between two looks for the broker that can answer."""


class SpreadReader(Protocol):
    """Reads partitions. See WaitingReader."""

    def expecting(self, request: ReadRequest[_Content]) -> AbstractContextManager[ArrivalWaiter]:
        """A waiter for what is read, for the length of a block."""

    async def read(
        self, request: ReadRequest[_Content], waiter: ArrivalWaiter, deadline: float, limits: CallLimits
    ) -> tuple[ReadAnswer[_Content], Hold]:
        """Read what there is, after waiting for it until the deadline."""

    async def offsets(
        self, partitions: Sequence[NamedPartition], timestamp_ns: int | None, limits: CallLimits
    ) -> list[PartitionOffsets]:
        """The offsets of partitions, and where a time begins in them."""


class CallCarrier(Protocol):
    """The way to the other brokers for calls of users."""

    def reader(self, here: WaitingReader) -> SpreadReader:
        """A reader of plain records for callers that know nothing of leaders. `here` reads what this broker has."""

    async def call_leader(self, partition: TopicPartition, method: str, request: Any, timeout: float, user: str) -> Any:
        """Make a call of a user at the other broker that leads a partition.

        Raises what that one raises, BrokerUnavailable, and NotLeader if there is none.
        """


class NoCarrier:
    """For a broker that is in no cluster: it can answer everything itself."""

    def reader(self, here: WaitingReader) -> SpreadReader:
        """See CallCarrier."""
        return here

    async def call_leader(
        self,
        partition: TopicPartition,
        method: str,  # noqa: ARG002
        request: Any,  # noqa: ARG002
        timeout: float,  # noqa: ARG002
        user: str,  # noqa: ARG002
    ) -> Any:
        """See CallCarrier."""
        raise NotLeader(*partition, None)


class ClusterCarrier:
    """For a broker in a cluster."""

    def __init__(self, backend: ClusteredBackend) -> None:
        self._node = backend.node
        self._reader = backend.leaders_reader

    def reader(self, here: WaitingReader) -> SpreadReader:  # noqa: ARG002 - the backend has its own
        """See CallCarrier."""
        return self._reader

    async def call_leader(self, partition: TopicPartition, method: str, request: Any, timeout: float, user: str) -> Any:
        """See CallCarrier."""
        return await self._node.call_leader(partition, method, request, timeout, user)


class Carrying:
    """Makes methods whose calls are carried."""

    def __init__(self, core: Core, carrier: CallCarrier) -> None:
        self._core = core
        self._carrier = carrier

    def method(
        self, name: str, method: Callable[[_Request, Call], Awaitable[_Answer]]
    ) -> Callable[[_Request, Call], Awaitable[_Answer]]:
        """The method, carried to another broker when this one raises NotLeader."""

        async def answer(request: _Request, call: Call) -> _Answer:
            if not call.may_be_carried:
                return await method(request, call)
            _make_repeatable(request)
            wait = getattr(request, "max_wait_ms", 0) / 1000
            deadline = time.monotonic() + call.within_deadline(_CARRYING + wait)
            while True:
                try:
                    return await method(request, call)
                except NotLeader as error:
                    refused = error
                failure: NotLeader | BrokerUnavailable = refused
                if refused.leader is not None:
                    where, left = TopicPartition(refused.topic, refused.partition), deadline - time.monotonic()
                    try:
                        carried: _Answer = await self._carrier.call_leader(
                            where, name, request, max(left, _AGAIN), call.caller.name
                        )
                    except NotLeader as error:
                        failure = error  # it has moved on
                    except BrokerUnavailable as error:
                        failure = error
                        _note_lost_answer(request)
                    else:
                        return carried
                if time.monotonic() + _AGAIN >= deadline or self._core.runtime.draining.is_set():
                    raise failure
                await asyncio.sleep(_AGAIN)

        return answer


def _make_repeatable(request: object) -> None:
    """Give a member that joins its id now: if the answer is lost, the call can be made again."""
    if isinstance(request, pb.JoinGroupRequest) and not request.member_id:
        request.member_id = random_bytes(16).hex()


def _note_lost_answer(request: object) -> None:
    """A poll may have been answered, and the records are lost on the way: then they have to come again."""
    if isinstance(request, pb.PollRequest):
        request.again = True
