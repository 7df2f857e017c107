"""A connection to a broker, of which there may be several: whichever answers is used.

A call goes on trying, with pauses that grow and are never the same for two clients, until its time is over. So a broker
that is restarted is a pause, not an error. A connection that has failed is not used again: the next attempt makes a new
one, to the next address.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import grpc

from headwater.client import fork
from headwater.client.credentials import Credentials
from headwater.client.joint_commits import JointCommits
from headwater.core.address import Address, parse_address
from headwater.core.config import ClientConfig
from headwater.core.errors import BrokerUnavailable, HeadwaterError, NotLeader, PartitionForked, StoreClosed, StoreError
from headwater.core.options import MIB
from headwater.log.delayed_calls import DelayedCalls
from headwater.wire.faults import AGAIN, error_of
from headwater.wire.packing import unpack_fetched
from headwater.wire.service import FOLLOWS_LEADERS, Stub

_log = logging.getLogger(__name__)

DELAYED: Final = DelayedCalls("headwater-client")
"""The client's own threads, which look after calls on their way and wake after pauses."""
_SHORTEST: Final = 0.05
_LONGEST: Final = 5.0
_FORGOTTEN: Final = 15.0
"""A failure so long ago says nothing of the present. Seconds."""
_KEPT: Final = 16 * MIB
"""A piece of memory of this size is taken and given back, untouched. glibc learns from it that such pieces come again,
and keeps them: otherwise each large message gets new pages, zeroed one by one, which costs as much as all else."""
_READ_BY_HAND: Final = {"Fetch": unpack_fetched, "FetchStream": unpack_fetched}
"""Readers of the answers that are most of what a consumer gets."""
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # they are made here, where it is known what may be repeated
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, not the one that has just failed
    ("grpc.enable_http_proxy", 0),
    # A process that is stopped, and a machine that has vanished, close no connection: they answer no ping.
    ("grpc.keepalive_time_ms", 5_000),  # brokers refuse clients that ask more often
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),  # for streams on which nothing comes for long
    ("grpc.min_reconnect_backoff_ms", 3_000),  # a stopped process accepts connections, and never greets
)


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before each attempt after the first."""
    pause = _SHORTEST
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, _LONGEST)


class Repeats:
    """True if a call was made again after one that may have been carried out: then it may find its own work done."""

    def __init__(self) -> None:
        self._any = False

    def __call__(self) -> None:
        self._any = True

    def __bool__(self) -> bool:
        return self._any


class Channel:
    """One connection, while it is good."""

    def __init__(self, address: str, channel: grpc.Channel) -> None:
        self.address = address
        self.stub: Any = Stub(channel, _READ_BY_HAND)
        self.commits = JointCommits(self.stub)
        self._channel = channel
        self._forked = False
        fork.watch(self)

    def close(self) -> None:
        """Cut it; calls on it fail."""
        if not self._forked:
            self._channel.close()

    def abandon_in_child(self) -> None:
        """After a fork: closing it here would need the parent's threads."""
        self._forked = True


class Connection:
    """Calls to whichever of the brokers answers. Thread-safe."""

    def __init__(self, addresses: Sequence[Address], config: ClientConfig, credentials: Credentials) -> None:
        credentials.check(addresses)
        self.config = config
        self.addresses = list(addresses)
        self._addresses = [str(address) for address in addresses]
        self.credentials = credentials
        self.metadata = (FOLLOWS_LEADERS, *credentials.metadata)
        self._mutex = threading.Lock()
        self._turn = 0
        self._channel: Channel | None = None
        self._old: list[Channel] = []
        self._others: dict[str, Channel] = {}
        """To brokers that were asked for by their addresses."""
        self._closed = threading.Event()
        self._forked = False
        fork.watch(self)
        bytes(_KEPT)

    def __str__(self) -> str:
        return f"hw://{','.join(self._addresses)}"

    # Calling.

    def stream(self, method: str, requests: Callable[[], Iterator[Any]]) -> Any:
        """Call a method that takes a stream of requests; they are made anew for each attempt."""
        return self.call(method, requests)

    def call(
        self,
        method: str,
        request: Any,
        *,
        timeout: float | None = None,
        slow: bool = False,
        on_repeat: Callable[[], None] | None = None,
    ) -> Any:
        """Call a method of the broker, again and again until it is answered, for `timeout` seconds at most.

        A `slow` one has all of the time for its first attempt. `on_repeat` is called before an attempt after one that
        may have been carried out.
        """
        begun = time.monotonic()
        deadline = begun + (self.config.timeout if timeout is None else timeout)
        redirected = False
        for pause in pauses():
            channel = self.channel()
            left = max(deadline - time.monotonic(), 0.001)
            try:
                return getattr(channel.stub, method)(
                    request() if callable(request) else request,
                    timeout=left if slow else min(left, self.config.attempt_timeout),
                    metadata=self.metadata,
                )
            except grpc.RpcError as failure:
                error, why = self.explain(failure, channel)
            except ValueError:  # the channel was closed by who found out first that it is dead
                error, why = None, "the connection was lost"
            if time.monotonic() + pause >= deadline:
                raise error or BrokerUnavailable(
                    str(self), method, time.monotonic() - begun, why, unknown=on_repeat is not None
                )
            elsewhere = isinstance(error, NotLeader) and error.leader is not None
            if elsewhere and not redirected:
                pause = 0.0  # who is asked next is the one to ask; but two that name each other are not asked in vain
            redirected = redirected or elsewhere
            _log.debug("%s: %s failed (%s), trying again in %.2f s", channel.address, method, why, pause)
            self._closed.wait(pause)
            if on_repeat is not None and not elsewhere:  # who names another has done nothing
                on_repeat()
        raise AssertionError("there is always another pause")

    def explain(self, failure: grpc.RpcError, channel: Channel) -> tuple[HeadwaterError | None, str]:
        """Return the broker's error for a call that may be tried again, and why it failed; raises when it may not."""
        error = error_of(failure)
        code = failure.code() if isinstance(failure, grpc.Call) else grpc.StatusCode.UNKNOWN
        if code not in AGAIN:
            raise error or StoreError(f"{channel.address}: {code.name}: {_details(failure)}") from None
        if error is None and code is not grpc.StatusCode.ABORTED:
            self.lose(channel)
        return error, f"{code.name}: {_details(failure)}"

    # Channels.

    def channel(self) -> Channel:
        """The connection that is good, or a new one."""
        channel = self._channel
        if channel is not None and not self._closed.is_set():
            return channel
        with self._mutex:
            self.check_open()
            if self._channel is None:
                address = self._addresses[self._turn % len(self._addresses)]
                self._channel = Channel(address, self.credentials.channel(address, _OPTIONS))
            return self._channel

    def channel_to(self, address: str) -> Channel:
        """The connection to one of the brokers, by its address."""
        with self._mutex:
            self.check_open()
            channel = self._others.get(address)
            if channel is None:
                self.credentials.check([parse_address(address)])
                channel = self._others[address] = Channel(address, self.credentials.channel(address, _OPTIONS))
            return channel

    def learn(self, addresses: Sequence[Address]) -> None:
        """There are these brokers too: any of them may answer when those that were known are gone."""
        with self._mutex:
            self._addresses += [str(address) for address in addresses if str(address) not in self._addresses]

    def lose(self, channel: Channel) -> None:
        """The connection has failed: the next call makes a new one, to the next address.

        Calls that others have on it may still be answered, so it is closed when the next but one takes its place.
        """
        with self._mutex:
            if self._others.get(channel.address) is channel:
                del self._others[channel.address]
            elif self._channel is channel:
                self._channel = None
                self._turn += 1
            else:
                return
            self._old.append(channel)
            closing = [self._old.pop(0)] if len(self._old) > 1 else []
        for old in closing:
            old.close()

    def moved(self, error: NotLeader) -> None:
        """The broker says that another one is to be asked."""

    def leads_elsewhere(self, channel: Channel) -> bool:  # noqa: ARG002 - a single broker leads everything
        """Return whether another broker than that of the channel is the one to ask by now. May ask for it."""
        return False

    def check_open(self) -> None:
        """Raise when it cannot be used any more."""
        if self._forked:
            raise PartitionForked(f"the connection to {self}")
        if self._closed.is_set():
            raise StoreClosed(str(self))

    @property
    def ended(self) -> threading.Event:
        """Set when it is closed: what waits for the next attempt waits no more."""
        return self._closed

    @property
    def closed(self) -> bool:
        """True if it cannot be used any more."""
        return self._closed.is_set()

    def close(self) -> None:
        """Cut all connections. Closing twice does no harm."""
        self._closed.set()
        with self._mutex:
            channels = [*self._old, *self._others.values(), *([self._channel] if self._channel is not None else [])]
            self._channel = None
            self._old.clear()
            self._others.clear()
        for channel in channels:
            channel.close()

    def abandon_in_child(self) -> None:
        """After a fork: connections and threads are the parent's."""
        self._mutex = threading.Lock()
        self._closed = threading.Event()
        self._closed.set()
        self._channel = None
        self._old = []
        self._others = {}
        self._forked = True


def _details(failure: grpc.RpcError) -> str:
    return (failure.details() or "no reason given") if isinstance(failure, grpc.Call) else str(failure)


class Reachability:
    """Counts failures of one caller's attempts: when the next one is due, and when to give up. Not thread-safe."""

    def __init__(self, connection: Connection, wake: Callable[[], None]) -> None:
        """`wake` is called when the next attempt is due."""
        self._connection = connection
        self._wake = wake
        self._pauses = pauses()
        self._failing_since: float | None = None
        self._failed_last = 0.0
        self._failure = ""
        self.refusal: HeadwaterError | None = None
        """An error that `check` raises once."""
        self.next_attempt = 0.0
        """No attempt before this time, in seconds of the monotonic clock."""

    def answered(self) -> None:
        """Note that a broker has answered."""
        self._failing_since = None
        self._pauses = pauses()

    def failed(self, error: HeadwaterError | None, why: str) -> None:
        """Note that an attempt has failed, and have the caller woken for the next one."""
        now = time.monotonic()
        pause = next(self._pauses)
        if self._failing_since is None or now - self._failed_last > _FORGOTTEN:
            self._failing_since = now  # nobody has tried for long: that counts as no failure
        self._failed_last = now
        self._failure = str(error or why)
        self.next_attempt = now + pause
        DELAYED.call(pause, self._wake)

    def check(self) -> None:
        """Raise the refusal that nobody was told yet, or BrokerUnavailable after too many failures."""
        self._connection.check_open()
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal
        since, timeout = self._failing_since, self._connection.config.timeout
        if since is not None and self._failed_last - since > timeout:
            self._failing_since = None  # the next poll tries anew
            raise BrokerUnavailable(str(self._connection), "Fetch", timeout, self._failure or "no answer")
