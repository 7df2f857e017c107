"""The open connections of a server, bounded for each source."""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress

from headwater.serving.sources import source_of


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
            connections = self._sources.get(source_of(host))
            if connections is not None and key in connections:
                connections[key] = connection

    def _greed(self, source: str) -> tuple[int, int]:
        keys = self._sources[source].keys()
        return len(keys - self._answering), len(keys)

    def _close_one_of(self, source: str) -> None:
        connections = self._sources[source]
        key = next((key for key in connections if key not in self._answering), next(iter(connections)))
        with suppress(OSError):  # it is closed already
            # Its owner sees the end of the stream and closes it. There is no farewell of TLS, which might take long.
            socket.socket.shutdown(connections[key], socket.SHUT_RDWR)
        self._remove(source, key)

    def _remove(self, source: str, key: Hashable) -> None:
        self._answering.discard(key)
        connections = self._sources.get(source)
        if connections is not None and connections.pop(key, None) is not None:
            self._count -= 1
            if not connections:
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
