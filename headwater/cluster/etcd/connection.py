"""A connection to etcd: whichever of its members answers, with deadlines, and with what is known of a call that failed.

The one thing that must never be guessed is whether a write has happened. A call that may have left this process and has
no answer is unknown; one that found nobody to talk to is not.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from headwater.cluster.etcd import etcd_pb2 as pb
from headwater.core.address import Address
from headwater.core.errors import EtcdRefused, EtcdUnavailable, InvalidConfiguration

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_PAUSE: Final = 0.1
_SLOWEST_PAUSE: Final = 1.0
_OLDEST: Final = (3, 4, 0)
_CORRUPTING: Final = ((3, 5, 0), (3, 5, 5))
_FULL: Final = "database space exceeded"
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is to be a new connection
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd takes offence at anything below five seconds
    ("grpc.keepalive_timeout_ms", 5_000),
)
_UNKNOWN: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
    }
)
"""Codes that say nothing of whether the call was carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAccess:
    """The etcd user, and the certificates by which etcd is known. The password is shown nowhere."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    """A file with the authority of etcd's certificates. With it, or with a certificate of its own, TLS is used."""
    tls_certificate: str | None = None
    tls_key: str | None = None
    allow_unsafe_version: bool = False
    """Use also those versions of etcd that can corrupt themselves when they are killed. For demonstrations."""

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise InvalidConfiguration("the user of etcd and the password belong together: give both, or neither")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidConfiguration("the certificate for etcd and its key belong together: give both, or neither")

    @property
    def secure(self) -> bool:
        """True if connections use TLS."""
        return self.tls_ca is not None or self.tls_certificate is not None

    def check(self, endpoints: Sequence[Address]) -> None:
        """Raise where a password would go over a network in the clear."""
        exposed = [str(endpoint) for endpoint in endpoints if not endpoint.local]
        if self.password is not None and exposed and not self.secure:
            raise InvalidConfiguration(
                f"etcd's password is sent beyond this machine only over TLS: set etcd_tls_ca to connect to {exposed[0]}"
            )

    def channel(self, endpoint: Address) -> grpc.aio.Channel:
        """A channel to a member."""
        if not self.secure:
            return grpc.aio.insecure_channel(str(endpoint), options=_OPTIONS)
        tls = grpc.ssl_channel_credentials(_read(self.tls_ca), _read(self.tls_key), _read(self.tls_certificate))
        return grpc.aio.secure_channel(str(endpoint), tls, options=_OPTIONS)


def _read(file: str | None) -> bytes | None:
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidConfiguration(f"{file} cannot be read: {error.strerror}") from error


class EtcdMethod:
    """A method of etcd: its name on the wire, and its messages."""

    def __init__(self, path: str, request: type[Any], response: type[Any]) -> None:
        self.path = f"/etcdserverpb.{path}"
        self.name = path.partition("/")[2]
        self.pack: Callable[[Any], bytes] = request.SerializeToString
        self.unpack: Callable[[bytes], Any] = response.FromString


_STATUS: Final = EtcdMethod("Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
_AUTHENTICATE: Final = EtcdMethod("Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)


class EtcdChannel:
    """A connection to one member, which has answered."""

    def __init__(self, endpoint: Address, channel: grpc.aio.Channel) -> None:
        self.endpoint = endpoint
        self.metadata: tuple[tuple[str, str], ...] = (("hasleader", "true"),)
        """The metadata of each call: a member that is cut off from the others is to say so instead of waiting."""
        self._channel = channel

    async def ready(self, deadline: float) -> None:
        """Wait until the member listens; raises TimeoutError."""
        async with asyncio.timeout(deadline - time.monotonic()):
            while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                await self._channel.wait_for_state_change(state)

    async def call(self, method: EtcdMethod, request: Any, deadline: float) -> Any:
        """One attempt."""
        call = self._channel.unary_unary(method.path, method.pack, method.unpack)
        return await call(request, timeout=_left(deadline), metadata=self.metadata)

    def stream(self, method: EtcdMethod) -> Any:
        """A stream of requests and answers, which the caller cancels."""
        return self._channel.stream_stream(method.path, method.pack, method.unpack)(metadata=self.metadata)

    async def close(self, grace: float) -> None:
        """End it, when what it was asked has been answered, or after a while."""
        await self._channel.close(grace)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


class EtcdConnection:
    """Calls to whichever member answers. It belongs to one event loop."""

    def __init__(
        self, endpoints: Sequence[Address], access: EtcdAccess, *, timeout: float, attempt_timeout: float
    ) -> None:
        if not endpoints:
            raise InvalidConfiguration("name at least one member of etcd, as host:port")
        access.check(endpoints)
        self.timeout = timeout
        self.attempt_timeout = attempt_timeout
        self._endpoints = list(endpoints)
        self._turn = random.randrange(len(self._endpoints))  # not everybody at the first
        self._access = access
        self._channel: EtcdChannel | None = None
        self._connecting = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._warned = False

    def __str__(self) -> str:
        return ",".join(map(str, self._endpoints))

    async def call(self, method: EtcdMethod, request: Any, *, repeatable: bool, timeout: float | None = None) -> Any:
        """The answer of etcd. One that is not repeatable is not tried again once it may have been carried out."""

        async def attempt(channel: EtcdChannel, deadline: float) -> Any:
            return await channel.call(method, request, deadline)

        return await self.attempts(method.name, attempt, repeatable=repeatable, timeout=timeout)

    async def attempts(
        self,
        name: str,
        attempt: Callable[[EtcdChannel, float], Awaitable[_T]],
        *,
        repeatable: bool,
        timeout: float | None = None,
    ) -> _T:
        """Try something at one member after the other until it is answered; raises EtcdUnavailable, EtcdRefused."""
        begun = time.monotonic()
        patience = self.timeout if timeout is None else timeout
        deadline = begun + patience
        renewed = False
        pause = _PAUSE
        why = "no member was reached"
        while time.monotonic() < deadline:
            channel = await self._connected(deadline)
            if channel is None:
                break
            try:
                return await attempt(channel, min(deadline, time.monotonic() + self.attempt_timeout))
            except grpc.aio.AioRpcError as failure:
                code, why = failure.code(), f"{failure.code().name}: {failure.details() or 'no reason given'}"
            except asyncio.CancelledError:
                if cancelled():
                    raise
                code, why = grpc.StatusCode.CANCELLED, "the connection was closed"
            except TimeoutError:
                code, why = grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time"
            except grpc.aio.UsageError:  # another call has closed the dead channel: nothing was sent
                self.lose(channel)
                continue
            if code in _UNKNOWN:
                self.lose(channel)
                if not repeatable:
                    raise EtcdUnavailable(str(self), name, time.monotonic() - begun, why, unknown=True)
            elif code is grpc.StatusCode.UNAUTHENTICATED and self._access.user is not None and not renewed:
                renewed = True  # a token ends after a while, and when etcd is started again
                self.lose(channel)
            elif code is not grpc.StatusCode.RESOURCE_EXHAUSTED or _FULL in why:
                raise EtcdRefused(f"etcd at {channel.endpoint} has refused {name}: {why}", code.name)
            _log.debug("etcd at %s: %s failed (%s)", channel.endpoint, name, why)
            await asyncio.sleep(min(pause, _left(deadline)) * (0.5 + random.random() / 2))
            pause = min(pause * 2, _SLOWEST_PAUSE)
        raise EtcdUnavailable(str(self), name, patience, why)

    # Channels.

    async def channel(self, timeout: float | None = None) -> EtcdChannel:
        """A connection that is good; raises EtcdUnavailable, EtcdRefused."""
        patience = self.timeout if timeout is None else timeout
        channel = await self._connected(time.monotonic() + patience)
        if channel is None:
            raise EtcdUnavailable(str(self), "a connection", patience, "no member was reached")
        return channel

    async def _connected(self, deadline: float) -> EtcdChannel | None:
        """The connection, or a new one to the next member that answers; None when none does until the deadline."""
        while self._channel is None and time.monotonic() < deadline:
            async with self._connecting:  # for one attempt: others may have less time
                if self._channel is None:
                    self._channel = await self._connect(deadline)
        return self._channel

    async def _connect(self, deadline: float) -> EtcdChannel | None:
        endpoint = self._endpoints[self._turn % len(self._endpoints)]
        channel = EtcdChannel(endpoint, self._access.channel(endpoint))
        try:
            await self._greet(channel, min(deadline, time.monotonic() + self.attempt_timeout))
            return channel
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            await self._forget(channel, error)
            await asyncio.sleep(min(_PAUSE, _left(deadline)))
            return None
        except BaseException:
            await channel.close(0)
            raise

    async def _forget(self, channel: EtcdChannel, error: Exception) -> None:
        await channel.close(0)
        self._turn += 1
        if isinstance(error, grpc.aio.AioRpcError) and error.code() not in _UNKNOWN:
            reason = f"etcd at {channel.endpoint} has refused the connection: {error.details()}"
            raise EtcdRefused(reason, error.code().name) from error
        _log.debug("etcd at %s was not reached: %s", channel.endpoint, str(error) or "no answer in time")

    async def _greet(self, channel: EtcdChannel, deadline: float) -> None:
        """Ask a member for its version, before anything is entrusted to it, and tell it who this is."""
        await channel.ready(deadline)
        status = await channel.call(_STATUS, pb.StatusRequest(), deadline)
        self.check_version(channel.endpoint, status.version)
        if self._access.user is not None:
            request = pb.AuthenticateRequest(name=self._access.user, password=self._access.password)
            answer = await channel.call(_AUTHENTICATE, request, deadline)
            channel.metadata = (*channel.metadata, ("token", answer.token))

    def check_version(self, endpoint: Address, text: str) -> None:
        """Refuse an etcd that lacks what is needed, or that can corrupt itself when it is killed."""
        match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
        version = tuple(map(int, match.groups())) if match is not None else ()
        if version < _OLDEST:
            raise EtcdRefused(f"etcd at {endpoint} is version {text!r:.40}: a cluster needs 3.4 or later")
        if _CORRUPTING[0] <= version <= _CORRUPTING[1]:
            danger = (
                f"etcd at {endpoint} is version {text}, which can corrupt its data when it is killed (3.5.0 to 3.5.5)"
            )
            if not self._access.allow_unsafe_version:
                raise EtcdRefused(f"{danger}: use 3.4, or 3.5.6 or later")
            if not self._warned:
                self._warned = True
                _log.warning("%s: this is for demonstrations only", danger)

    def lose(self, channel: EtcdChannel) -> None:
        """The connection has failed: the next call makes a new one, to the next member.

        Calls that others have on it may still be answered, so it is not cut at once.
        """
        if self._channel is channel:
            self._channel = None
            self._turn += 1
            task = asyncio.create_task(channel.close(self.attempt_timeout))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Cut every connection. Closing twice does no harm."""
        channel, self._channel = self._channel, None
        for task in list(self._closing):
            task.cancel()
        if channel is not None:
            await channel.close(0)


def cancelled() -> bool:
    """Return whether the task is to end. A closed channel ends its calls by the very same exception."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
