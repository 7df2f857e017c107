"""Serving the console: from where it listens to its end, in this process's main thread or in a thread of a program.

Connections are bounded for each address and in all, from when they are accepted, and requests that do not come are not
waited for. So a client that holds connections without asking anything keeps nobody else out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final, NamedTuple, Self

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headwater.console.server import Console
from headwater.core.address import Address
from headwater.core.errors import StoreError
from headwater.serving.connections import Connections

HEAD_SECONDS = 10.0
"""Seconds for the head of a request, from the connection's beginning or from its first byte on."""
REQUEST_SECONDS = 120.0
"""The same for the body of a request."""
IDLE_SECONDS = 30.0
"""Seconds for which an idle connection is kept."""
_MOST_CONNECTIONS: Final = 500
_MOST_OF_SOURCE: Final = 128
"""A page listens on one connection, and a browser keeps six or so beside it."""
_SWEEPING_TICKS: Final = 600
_GRACE: Final = 2
_STARTING: Final = 30.0


class Certificate(NamedTuple):
    """The files of TLS."""

    certificate: str
    key: str


class Serving:
    """A console at an address. It listens when it is made, and answers from `run` or `start` on."""

    def __init__(self, console: Console, listen: Address, tls: Certificate | None = None) -> None:
        """A port of 0 is any that is free. Raises StoreError when nothing can listen there."""
        self._console = console
        console.secure = tls is not None
        connections = Connections(_MOST_CONNECTIONS, _MOST_OF_SOURCE)
        self._socket = _listening(listen, connections)
        self.address = Address(listen.host, self._socket.getsockname()[1])
        self._server = _ConsoleServer(
            console,
            uvicorn.Config(
                console.app,
                log_level=logging.WARNING,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                loop="asyncio",  # which accepts by the socket that it is given, and so by its bounds
                http=partial(_Requests, connections),  # type: ignore[arg-type] # it makes a protocol, as a class does
                h11_max_incomplete_event_size=32 * 1024,
                timeout_graceful_shutdown=_GRACE,
                ssl_certfile=tls.certificate if tls is not None else None,
                ssl_keyfile=tls.key if tls is not None else None,
            ),
        )
        self._thread: threading.Thread | None = None
        self.link = f"{'https' if tls else 'http'}://{_named(self.address)}/"
        """The address for a browser."""

    def run(self) -> None:
        """Answer until SIGTERM or Ctrl-C."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._console.close()

    def end(self) -> None:
        """Ask it to end; `run` returns soon after."""
        self._console.end_streams()
        self._server.should_exit = True

    # In a thread.

    def start(self) -> Self:
        """Answer in a thread of this program, until `stop`."""
        self._thread = threading.Thread(target=self.run, name="headwater-console", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread, and close the stores."""
        self.end()
        if self._thread is not None:
            self._thread.join(timeout=_STARTING)
            self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Requests(H11Protocol):
    """The requests of one connection, which have to come in time."""

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited: object = None
        self.timeout_keep_alive = IDLE_SECONDS  # type: ignore[assignment] # it need not be a whole number

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_client()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_client()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._connections.answering(self.client, False)
        self._await_client()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_client(self) -> None:
        """Set the deadline for the client's next part; bytes that trickle in do not move it."""
        state: object = self.conn.their_state
        if state is h11.IDLE and self.timeout_keep_alive_task is not None:
            state = None  # it may be silent for as long as the connection is kept
        if state not in (h11.IDLE, None):
            self._connections.answering(self.client, state is not h11.SEND_BODY)
        if state is self._awaited:
            return
        self._stop_waiting()
        if state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing():
            self._awaited = state
            seconds = HEAD_SECONDS if state is h11.IDLE else REQUEST_SECONDS
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        self._awaited = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _ConsoleServer(uvicorn.Server):
    """A server that tells listeners of its end before it waits for them to leave."""

    def __init__(self, console: Console, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._console = console

    async def on_tick(self, counter: int) -> bool:
        """Also forget expired sessions now and then, which no request would meet any more."""
        if counter % _SWEEPING_TICKS == 0:
            self._console.sweep()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Not as uvicorn has it, which dies by the signal in the end: it was asked to end, and has."""
        self._console.end_streams()
        self.force_exit = self.should_exit
        self.should_exit = True


def _named(address: Address) -> str:
    """An address that a browser on this machine can go to."""
    host = "127.0.0.1" if address.host == "0.0.0.0" else "[::1]" if address.host == "[::]" else address.host
    return f"{host}:{address.port}"


class _Listening(socket.socket):
    """A listening socket that counts its connections from the first moment on, also before a handshake of TLS."""

    connections: Connections

    def accept(self) -> tuple[socket.socket, Any]:
        accepted, address = super().accept()
        counted = _AcceptedSocket(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        host, key = address[0], address[:2]
        counted.closed = partial(self.connections.discard, host, key)
        self.connections.add(host, key, counted)
        return counted, address


class _AcceptedSocket(socket.socket):
    """A connection that tells when it is closed."""

    closed: Callable[[], None]

    def close(self) -> None:
        if self.fileno() >= 0:
            self.closed()
        super().close()


def _listening(address: Address, connections: Connections) -> socket.socket:
    host = address.host.strip("[]")
    try:
        family, kind, protocol, _, socket_address = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0]
        listener = _Listening(family, kind, protocol)
        listener.connections = connections
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(socket_address)
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise StoreError(
            f"the console cannot listen at {address}: {error.strerror}; if another console runs there, "
            "give another address by --listen"
        ) from error
    return listener
