"""Sources: the addresses that callers come from, and bounds for each of them.

A bound for all callers together lets one of them use it up and keep the others out. So failures and connections are
counted for each source. The tables are bounded too: an attacker with many addresses makes them forget, not grow.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import unquote

_NETWORK_BYTES: Final = 8
"""Of an IPv6 address: whoever has one address has all that begin like it."""
_MOST_SOURCES: Final = 4096


def source_of(host: str) -> str:
    """The source that an address belongs to: an IPv4 address, or the network of 64 bits of an IPv6 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.packed[:_NETWORK_BYTES].hex()


def source_of_peer(peer: str) -> str:
    """The source of a peer as gRPC writes it: `ipv4:10.0.0.7:4711`, `ipv6:%5B::1%5D:4711` or `unix:`.

    A peer by HTTP is written without its port: `http:10.0.0.7`.
    """
    kind, _, address = unquote(peer).partition(":")
    if kind == "http":
        return source_of(address)
    return source_of(address.rpartition(":")[0].strip("[]")) if kind in ("ipv4", "ipv6") else peer


class Failures:
    """Counts the failures of each source, and blocks one that has too many. Thread-safe."""

    def __init__(self, most: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """A source is blocked from its failure number `most` on, until `seconds` after its first one."""
        self._most = most
        self._seconds = seconds
        self._now = now
        self._mutex = threading.Lock()
        self._counted: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counted)

    def note(self, source: str) -> None:
        """Count a failure."""
        now = self._now()
        with self._mutex:
            since, count = self._counted.get(source, (now, 0))
            if now >= since + self._seconds:
                since, count = now, 0
            self._counted[source] = (since, count + 1)
            self._counted.move_to_end(source)
            if len(self._counted) > _MOST_SOURCES:
                self._counted.popitem(last=False)

    def blocks(self, source: str) -> bool:
        """Return whether the source has failed too often of late."""
        with self._mutex:
            since, count = self._counted.get(source, (0.0, 0))
            return count >= self._most and self._now() < since + self._seconds


class Connections:
    """The open connections of a server, bounded for each source and in all. Thread-safe.

    A new connection is always taken. When there are too many, another one is closed: of the same source if that has
    too many, else of the source that has the most. Connections on which no request is being answered go first, and
    of those the oldest.
    """

    def __init__(self, most: int, most_of_source: int) -> None:
        self._most = most
        self._most_of_source = most_of_source
        self._mutex = threading.Lock()
        self._sources: dict[str, OrderedDict[Hashable, socket.socket]] = {}
        self._answering: set[Hashable] = set()
        self._count = 0

    def __len__(self) -> int:
        with self._mutex:
            return self._count

    def add(self, host: str, key: Hashable, connection: socket.socket) -> None:
        """A connection was accepted."""
        source = source_of(host)
        with self._mutex:
            self._sources.setdefault(source, OrderedDict())[key] = connection
            self._count += 1
            if len(self._sources[source]) > self._most_of_source:
                self._close_one_of(source)
            elif self._count > self._most:
                self._close_one_of(max(self._sources, key=self._greed))

    def replace(self, host: str, key: Hashable, connection: socket.socket) -> None:
        """The connection goes on in another object, as with TLS."""
        with self._mutex:
            found = self._sources.get(source_of(host))
            if found is not None and key in found:
                found[key] = connection

    def _greed(self, source: str) -> tuple[int, int]:
        keys = self._sources[source].keys()
        return len(keys - self._answering), len(keys)

    def _close_one_of(self, source: str) -> None:
        found = self._sources[source]
        key = next((key for key in found if key not in self._answering), next(iter(found)))
        with suppress(OSError):  # it is closed already
            # Its owner sees the end of the stream and closes it. There is no farewell of TLS, which might take long.
            socket.socket.shutdown(found[key], socket.SHUT_RDWR)
        self._remove(source, key)

    def _remove(self, source: str, key: Hashable) -> None:
        self._answering.discard(key)
        found = self._sources.get(source)
        if found is not None and found.pop(key, None) is not None:
            self._count -= 1
            if not found:
                del self._sources[source]

    def answering(self, key: Hashable, answering: bool) -> None:
        """A request on the connection is being answered from now on, or no longer."""
        with self._mutex:
            if answering:
                self._answering.add(key)
            else:
                self._answering.discard(key)

    def discard(self, host: str, key: Hashable) -> None:
        """A connection is closed."""
        with self._mutex:
            self._remove(source_of(host), key)
