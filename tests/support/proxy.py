"""A proxy between clients and a broker that behaves like a bad network: it delays, stalls and cuts connections."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from random import Random
from typing import Final, Self

_RESET: Final = struct.pack("ii", 1, 0)
"""Makes closing a socket reset its connection."""


class Proxy:
    """Passes TCP connections on to a port of this machine. Thread-safe.

    Each connection has a delay of its own, drawn from `delay`, so one that is made later can be faster; `resets` is the
    share of connections that are reset after some bytes.
    """

    def __init__(
        self,
        target: int,
        random: Random,
        *,
        port: int = 0,
        delay: tuple[float, float] = (0.0, 0.0),
        resets: float = 0.0,
    ) -> None:
        self.target = target
        self.delay = delay
        self.resets = resets
        self._random = random
        self._mutex = threading.Lock()
        self._links: set[_Link] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._answering = threading.Event()
        self._answering.set()
        self._refusing = False
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                try:
                    if self._refusing:
                        raise ConnectionRefusedError
                    server = socket.create_connection(("127.0.0.1", self.target), 5)
                except OSError:
                    _reset(client)
                    continue
                with self._mutex:
                    delay = self._random.uniform(*self.delay)
                    left = self._random.randint(100, 200_000) if self._random.random() < self.resets else None
                    link = _Link(self, client, server, delay, left)
                    self._links.add(link)
                link.begin()

    def forget(self, link: _Link) -> None:
        """The connection has ended."""
        with self._mutex:
            self._links.discard(link)

    def wait_until_flowing(self, *, answer: bool) -> None:
        """Wait while the network is stalled."""
        self._flowing.wait()
        if answer:
            self._answering.wait()

    def stall(self, *, answers_only: bool = False) -> None:
        """Nothing passes any more, in either direction or on the way back to the clients, and nobody is told."""
        (self._answering if answers_only else self._flowing).clear()

    def go_on(self) -> None:
        """Everything passes again, what was held up too."""
        self._flowing.set()
        self._answering.set()
        self._refusing = False

    def cut(self, *, refuse: bool = False) -> None:
        """Reset all connections; with `refuse`, new ones as well until `go_on`."""
        self._refusing = refuse
        with self._mutex:
            links = list(self._links)
        for link in links:
            link.reset()

    def close(self) -> None:
        """End everything."""
        self.go_on()
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Link:
    """One connection, and its other half."""

    def __init__(
        self, proxy: Proxy, client: socket.socket, server: socket.socket, delay: float, left: int | None
    ) -> None:
        self._proxy = proxy
        self._ends = (client, server)
        self._delay = delay
        self._left = left

    def begin(self) -> None:
        client, server = self._ends
        for source, sink in ((client, server), (server, client)):
            queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
            threading.Thread(target=self._read, args=(source, queue), daemon=True).start()
            threading.Thread(target=self._write, args=(sink, queue, sink is client), daemon=True).start()

    def _read(self, source: socket.socket, queue: SimpleQueue[tuple[float, bytes]]) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                queue.put((time.monotonic() + self._delay, content))
        queue.put((0.0, b""))

    def _write(self, sink: socket.socket, queue: SimpleQueue[tuple[float, bytes]], answer: bool) -> None:
        with suppress(OSError):
            while True:
                due, content = queue.get()
                if not content:
                    break
                time.sleep(max(due - time.monotonic(), 0))
                self._proxy.wait_until_flowing(answer=answer)
                sink.sendall(content)
                if self._left is not None:
                    self._left -= len(content)
                    if self._left < 0:
                        break
        self.reset()

    def reset(self) -> None:
        for end in self._ends:
            _reset(end)
        self._proxy.forget(self)


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        end.close()
