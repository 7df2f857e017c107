"""A call: who makes it, what it may take, and how its errors are told.

Every method of the service goes through here. A part of the broker writes `async def produce(self, request, call)` and
raises what the store raises; here that becomes gRPC's code, its message, and the error itself beside them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Final, Self

import grpc
from google.protobuf.message import DecodeError

from headwater.broker.backend import Refused
from headwater.broker.core import CallerConnection, CallerCredentials, Core
from headwater.broker.limits.budget import Hold
from headwater.broker.security.access import OTHER_BROKER, Caller, Kind, Right, TooManyAttempts
from headwater.cluster.link import PASSWORD_KEY, USER_KEY
from headwater.core.errors import HeadwaterError, OpenFailed, PermissionDenied
from headwater.core.names import HISTORY
from headwater.serving.sources import source_of_peer
from headwater.wire.faults import ERROR_KEY, code_of, pack_error
from headwater.wire.service import FOLLOWS_LEADERS

_log = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]
_MARGIN_LEAST: Final = 0.05
_MARGIN_MOST: Final = 1.0
_CONNECTIONS_OF_SOURCE: Final = 100
"""So many connections from one source are always taken; beyond that, no more than half of all."""
_ERROR_BYTES: Final = 4096
"""Metadata has to stay small: many clients take no more than 8 KiB of it."""


class Call:
    """One call."""

    def __init__(
        self, core: Core, context: Context, connection: CallerConnection, credentials: CallerCredentials, caller: Caller
    ) -> None:
        self._core = core
        self.context = context
        self._connection = connection
        self._credentials = credentials
        self.caller = caller
        self.by_broker = caller is OTHER_BROKER
        """True if another broker of the cluster makes it for itself."""
        self.carried = False
        """True if another broker has carried the call of a user here."""

    @classmethod
    async def identified(cls, core: Core, context: Context, connection: CallerConnection) -> Self:
        """A call whose caller is known; raises Unauthenticated, or TooManyAttempts."""
        metadata = tuple(context.invocation_metadata() or ())
        credentials = CallerCredentials(metadata, context.peer(), tuple(context.peer_identities() or ()))
        password = next((value for key, value in metadata if key == PASSWORD_KEY), None)
        if isinstance(password, str) and core.backend.is_peer(password):
            user = next((value for key, value in metadata if key == USER_KEY), None)
            if not isinstance(user, bytes):
                return cls(core, context, connection, credentials, OTHER_BROKER)
            call = cls(core, context, connection, credentials, Caller(user.decode(), credentials.peer))
            call.carried = True
            return call
        return cls(core, context, connection, credentials, await core.identify(credentials, connection.source))

    def identify_again(self) -> None:
        """Raise Unauthenticated if the caller's token is no longer good: for streams, which may outlive it."""
        if self.by_broker or self.carried:
            return
        self.caller = self._core.access.caller(*self._credentials)

    def check(self, right: Right, kind: Kind, name: str) -> None:
        """Raise PermissionDenied unless the caller has the right. A broker has asked its own caller for it.

        The topics that a cluster keeps for itself are written by brokers alone, and read by administrators; its history
        is read by everyone who may read it.
        """
        if self.by_broker:
            return
        if kind == "topic" and name in self._core.backend.reserved_topics:
            if right == "write":
                raise PermissionDenied(self.caller.name, right, kind, name)
            right = right if name == HISTORY else "admin"
        self._core.access.check(self.caller, right, kind, name)

    @property
    def may_be_carried(self) -> bool:
        """True if it goes on to the broker that can answer it; else its caller is told which one that is."""
        return not (self.by_broker or self.carried or FOLLOWS_LEADERS in self._credentials.metadata)

    @property
    def sees_everything(self) -> bool:
        """True if nothing has to be left out of the caller's answers."""
        return self.by_broker or not self._core.access.enforced

    def sees(self, name: str, kind: Kind = "topic") -> bool:
        """Return whether the caller may know of the topic, or of the group."""
        return self.by_broker or self._core.access.sees(self.caller, name, kind)

    def check_seen(self, topic: str) -> None:
        """Raise UnknownTopic unless the caller may know of the topic."""
        self._core.access.check_seen(self.caller, topic)

    def patience(self, wait_ms: int) -> float:
        """The seconds that the caller may be kept waiting: as it said, but so that the answer is not too late."""
        return min(self.within_deadline(wait_ms / 1000), self._core.config.max_wait)

    def within_deadline(self, seconds: float) -> float:
        """So many seconds, or fewer if the call's deadline leaves no more for an answer that is in time."""
        remaining: float | None = self.context.time_remaining()
        left = float("inf") if remaining is None else remaining
        margin = max(min(left / 10, _MARGIN_MOST), _MARGIN_LEAST)
        return min(seconds, left - margin)

    def when_done(self, work: Callable[[], None]) -> None:
        """Do something when the answer has been sent, or the call is over otherwise."""
        self.context.add_done_callback(lambda _: work())  # type: ignore[arg-type]

    async def hold_request(self, size: int) -> Hold:
        """Wait until so many bytes of requests may be in flight, and hold them.

        Waiting requests take memory too: when as much waits as may be in flight, the call is refused.
        """
        core = self._core
        if core.waiting_bytes + size > core.config.max_in_flight_bytes and core.waiting_bytes:
            raise Refused("the broker has too much to write (max_in_flight_bytes): try again")
        hold = Hold()
        core.waiting_bytes += size
        try:
            await hold.take((self._connection.requests, core.requests), size)
        finally:
            core.waiting_bytes -= size
        return hold

    async def hold_response(self, size: int) -> Hold:
        """The same for answers."""
        hold = Hold()
        await hold.take((self._connection.responses, self._core.responses), size)
        return hold


def check_readable(request: object) -> None:
    """Raise the DecodeError that came in place of a request."""
    if isinstance(request, DecodeError):
        raise request


class Calls:
    """Makes gRPC's handlers of the methods of a broker's parts."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def unary(
        self, name: str, method: Callable[[Any, Call], Awaitable[Any]]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        """The handler of a method with one answer."""

        async def handle(request: Any, context: Context) -> Any:
            try:
                with self._counted(name, context, timed=True) as connection:
                    check_readable(request)
                    return await method(request, await Call.identified(self._core, context, connection))
            except Exception as error:  # noqa: BLE001 - each is told, and what nobody expected is logged
                await _abort(context, error)

        return handle

    def streaming(
        self, name: str, method: Callable[[Any, Call], AsyncGenerator[Any]]
    ) -> Callable[[Any, Context], Awaitable[None]]:
        """The handler of a method with a stream of answers."""

        async def handle(request: Any, context: Context) -> None:
            # Written here, not yielded to gRPC: that leaves a generator alone whose reader is gone, with all it holds.
            try:
                with self._counted(name, context, timed=False) as connection:
                    check_readable(request)
                    call = await Call.identified(self._core, context, connection)
                    async with aclosing(method(request, call)) as responses:
                        async for response in responses:
                            await context.write(response)
            except Exception as error:  # noqa: BLE001 - as above
                await _abort(context, error)

        return handle

    @contextmanager
    def _counted(self, name: str, context: Context, *, timed: bool) -> Iterator[CallerConnection]:
        """The connection that a call comes by; the call is counted when it ends."""
        began, code = time.perf_counter(), grpc.StatusCode.OK
        try:
            yield self._connected(context)
        except BaseException as error:
            code = _code(error)
            raise
        finally:
            self._core.calls.count(name, code.name, time.perf_counter() - began if timed else None)

    def _connected(self, context: Context) -> CallerConnection:
        """The connection, which counts the call until it is over."""
        core, peer = self._core, context.peer()
        if not core.backend.ready:
            raise Refused("the broker has not joined its cluster yet: connect to another one, or try again")
        if core.runtime.draining.is_set():
            raise Refused("the broker is stopping: connect to another one, or try again")
        connection = core.connections.get(peer)
        if connection is None:
            source, most = source_of_peer(peer), core.config.max_connections
            if len(core.connections) >= most:
                raise Refused(f"the broker has {len(core.connections)} connections (max_connections): try again")
            if core.connected[source] >= max(most // 2, min(most, _CONNECTIONS_OF_SOURCE)):
                raise Refused("half of all connections (max_connections) come from this address: try again")
            connection = core.connections[peer] = CallerConnection(source, core.config.max_connection_bytes)
            core.connected[source] += 1
        connection.calls += 1

        def ended(_: object) -> None:
            connection.calls -= 1
            if not connection.calls:
                del core.connections[peer]
                core.connected[connection.source] -= 1
                if not core.connected[connection.source]:
                    del core.connected[connection.source]

        # When the answer has been sent, not when it was made: until then it takes memory on behalf of the connection.
        context.add_done_callback(ended)  # type: ignore[arg-type]
        return connection


def _code(error: BaseException) -> grpc.StatusCode:
    """gRPC's code for how a call has ended."""
    if isinstance(error, HeadwaterError):
        return code_of(error)
    if isinstance(error, Refused | TooManyAttempts):
        return grpc.StatusCode.UNAVAILABLE
    if isinstance(error, DecodeError | UnicodeError):
        return grpc.StatusCode.INVALID_ARGUMENT
    return grpc.StatusCode.INTERNAL if isinstance(error, Exception) else grpc.StatusCode.CANCELLED


async def _abort(context: Context, error: Exception) -> None:
    """End the call with an error that the client can tell."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, grpc.aio.BaseError):
        return  # the client is gone, and nobody is left to be told
    if isinstance(error, Refused | TooManyAttempts):
        await context.abort(_code(error), str(error))
    if isinstance(error, DecodeError | UnicodeError):
        await context.abort(_code(error), f"the request cannot be read: {error}")
    if isinstance(error, OSError) and not isinstance(error, HeadwaterError):
        _log.error("the operating system has refused something that a call needs", exc_info=error)
        error = OpenFailed(Path(error.filename or "a file of the broker"), error)
    if not isinstance(error, HeadwaterError):
        _log.error("a call has failed", exc_info=error)
        await context.abort(_code(error), "the broker has failed at this call: its log says why")
    packed = pack_error(error)
    if packed.ByteSize() > _ERROR_BYTES:
        packed.message = packed.message[: _ERROR_BYTES // 4]
        packed.attributes = ""
    await context.abort(_code(error), packed.message, ((ERROR_KEY, packed.SerializeToString()),))
