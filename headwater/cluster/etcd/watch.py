"""Following keys of etcd: all there is, then every change in order, through whatever happens to etcd meanwhile.

A lost connection is made again, and the watch goes on behind the last change that was seen. When etcd no longer has
these changes, because it was compacted, everything is read anew. So nothing is missed, and states in between may be.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import grpc

from headwater.cluster.etcd import etcd_pb2 as pb
from headwater.cluster.etcd.connection import EtcdConnection, EtcdMethod, cancelled
from headwater.cluster.etcd.item import EtcdItem, end_of, name_of
from headwater.core.errors import EtcdRefused, EtcdUnavailable

_log = logging.getLogger(__name__)
_WATCH: Final = EtcdMethod("Watch/Watch", pb.WatchRequest, pb.WatchResponse)
_ASK: Final = 1.0
"""A watch that is silent for so long is asked whether it lives."""
_SILENCE: Final = 5.0
"""And counts as dead after so long."""
_PAUSE: Final = 0.2
_REFUSED_PAUSE: Final = 5.0


class Look(NamedTuple):
    """A look at a revision: everything, or the changes since the look before."""

    revision: int
    items: Sequence[EtcdItem]
    removed: Mapping[str, int] = MappingProxyType({})
    """Keys that are gone, each with the revision since which it is."""
    complete: bool = False


class _Compacted(Exception):
    """etcd no longer has the changes that were asked for."""


class _Lost(Exception):
    """The watch has ended; the message says why."""


async def follow(
    connection: EtcdConnection, prefix: str, read: Callable[[], Awaitable[Look]]
) -> AsyncGenerator[Look, None]:
    """Look at everything below a prefix, and at every change from then on, for ever.

    Raises EtcdRefused only when there has been nothing to see yet; later, the reason may pass.
    """
    seen: int | None = None
    began = False
    while True:
        try:
            if seen is None:
                look = await read()
                yield look
                seen, began = look.revision, True
            async for look in _watch(connection, prefix, seen + 1):
                yield look
                seen = look.revision
        except _Compacted:
            _log.info("etcd was compacted beyond revision %d: all of %s is read again", seen, prefix)
            seen = None
        except (_Lost, EtcdUnavailable) as error:
            _log.debug("the watch on %s is resumed: %s", prefix, error)
            await asyncio.sleep(_PAUSE)
        except EtcdRefused as error:
            if not began:
                raise
            _log.error("this broker cannot follow changes of %s at present: %s", prefix, error)
            await asyncio.sleep(_REFUSED_PAUSE)


async def _watch(connection: EtcdConnection, prefix: str, start: int) -> AsyncGenerator[Look, None]:
    """Changes from a revision on, until the watch is lost."""
    channel = await connection.channel()
    stream = _WatchStream(channel.stream(_WATCH))
    try:
        key = prefix.encode()
        create = pb.WatchCreateRequest(key=key, range_end=end_of(key), start_revision=start)
        await stream.write(pb.WatchRequest(create_request=create))
        while True:
            response = await stream.read()
            if response.compact_revision:
                raise _Compacted
            if response.canceled:
                raise _Lost(response.cancel_reason or "it was cancelled")
            if response.events:
                yield _changes(response.events)
    except (_Lost, grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError, TimeoutError) as error:
        connection.lose(channel)
        raise _Lost(f"{channel.endpoint}: {str(error) or 'silence'}") from error
    except asyncio.CancelledError:
        if cancelled():
            raise
        raise _Lost(f"{channel.endpoint}: the connection was closed") from None
    finally:
        stream.close()


def _changes(events: Sequence[pb.Event]) -> Look:
    """The changes after some events: for each key, the last of them."""
    last = {name_of(event.kv): event for event in events}
    items = [EtcdItem.of(event.kv) for event in last.values() if event.type == pb.Event.PUT]
    removed = {key: event.kv.mod_revision for key, event in last.items() if event.type == pb.Event.DELETE}
    # Not the header's revision: in some versions of etcd it can be ahead of events that are yet to come.
    return Look(max(event.kv.mod_revision for event in events), items, removed)


class _WatchStream:
    """The two directions of a watch. A member that says nothing is asked to, so that a dead one is noticed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._reading: asyncio.Future[Any] | None = None

    async def write(self, request: pb.WatchRequest) -> None:
        """Send something; raises TimeoutError when it cannot be sent."""
        async with asyncio.timeout(_SILENCE):
            await self._stream.write(request)

    async def read(self) -> pb.WatchResponse:
        """The next response; raises TimeoutError when there is none although it was asked for."""
        heard = time.monotonic()
        while time.monotonic() - heard < _SILENCE:
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._stream.read())
            # Not by a timeout on the read itself: that would end the stream.
            await asyncio.wait({self._reading}, timeout=_ASK)
            if self._reading.done():
                reading, self._reading = self._reading, None
                response = reading.result()
                if not isinstance(response, pb.WatchResponse):
                    raise _Lost("it was ended")
                return response
            await self.write(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
        raise TimeoutError

    def close(self) -> None:
        """End the stream."""
        self._stream.cancel()
        if self._reading is not None:
            self._reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())
