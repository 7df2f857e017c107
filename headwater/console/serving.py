"""Serving the console: from where it listens to its end, in this process's main thread or in a thread of a program."""

from __future__ import annotations

import logging
import socket
import threading
from types import FrameType
from typing import Final, NamedTuple, Self

import uvicorn

from headwater.console.server import Console
from headwater.errors import StoreError
from headwater.wire.address import Address

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
        self._socket = _listening(listen)
        self.address = Address(listen.host, self._socket.getsockname()[1])
        self._server = _Server(
            console,
            uvicorn.Config(
                console.app,
                log_level=logging.WARNING,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                http="h11",
                h11_max_incomplete_event_size=32 * 1024,
                timeout_graceful_shutdown=_GRACE,
                timeout_keep_alive=30,
                limit_concurrency=500,
                ssl_certfile=tls.certificate if tls is not None else None,
                ssl_keyfile=tls.key if tls is not None else None,
            ),
        )
        self._thread: threading.Thread | None = None
        self.link = f"{'https' if tls else 'http'}://{_named(self.address)}/"
        """Where a browser finds it."""

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
        """End the thread, and close what is looked at."""
        self.end()
        if self._thread is not None:
            self._thread.join(timeout=_STARTING)
            self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(uvicorn.Server):
    """Tells those who listen before it waits for them to leave."""

    def __init__(self, console: Console, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._console = console

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Not as uvicorn has it, which dies by the signal in the end: it was asked to end, and has."""
        self._console.end_streams()
        self.force_exit = self.should_exit
        self.should_exit = True


def _named(address: Address) -> str:
    """An address that a browser on this machine can go to."""
    host = "127.0.0.1" if address.host == "0.0.0.0" else "[::1]" if address.host == "[::]" else address.host
    return f"{host}:{address.port}"


def _listening(address: Address) -> socket.socket:
    host = address.host.strip("[]")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(place)
            found.listen(128)
        except BaseException:
            found.close()
            raise
    except OSError as error:
        raise StoreError(
            f"nothing can listen at {address}: {error.strerror}; is a console running there? --listen takes another one"
        ) from error
    return found
