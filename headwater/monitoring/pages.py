"""Pages: a small HTTP server for what machines ask of a program, such as its metrics. It has a thread of its own.

It refuses requests that another web site has made a browser send; see `headwater.serving.cross_site`.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final, NamedTuple

from headwater.serving.connections import Connections
from headwater.serving.cross_site import cross_site_refusal

PLAIN: Final = "text/plain; charset=utf-8"
_TIMEOUT_SECONDS: Final = 10.0
"""The longest that a connection may be silent: it holds a thread."""
_MOST_CONNECTIONS: Final = 100
_MOST_OF_SOURCE: Final = 32


class Page(NamedTuple):
    """An answer."""

    status: int
    content: str
    content_type: str = PLAIN
    headers: Mapping[str, str] = {}


class Request(NamedTuple):
    """A request for a page: headers, their names in lower case, and the address that they come from."""

    headers: Mapping[str, str]
    host: str


Handler = Callable[[Request], Page]
"""Makes a page."""


class PageServer:
    """Serves pages by their paths at `http://host:port` until it is closed."""

    def __init__(
        self,
        pages: Mapping[str, Handler],
        port: int,
        host: str = "127.0.0.1",
        *,
        names: Collection[str] | None = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`names` are those that requests may call this host by, besides its addresses; None is any."""

        class Requests(BaseHTTPRequestHandler):
            timeout = _TIMEOUT_SECONDS
            server_version = "headwater"
            sys_version = ""

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                refusal = cross_site_refusal(headers, names)
                if refusal is None:
                    page = self._page(Request(headers, self.client_address[0]))
                else:
                    page = Page(refusal.status, f"{refusal.message}\n")
                content = page.content.encode()
                self.send_response(page.status)
                self.send_header("Content-Type", page.content_type)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("X-Content-Type-Options", "nosniff")
                for name, value in page.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def _page(self, request: Request) -> Page:
                handler = pages.get(self.path.split("?")[0])
                return Page(404, "there is no such page\n") if handler is None else handler(request)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: it is asked every few seconds."""

        self.host = host
        self._server = _Server((host.strip("[]"), port), Requests, tls)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="pages", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: Any, tls: ssl.SSLContext | None) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._tls = tls
        self._connections = Connections(_MOST_CONNECTIONS, _MOST_OF_SOURCE)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread. Each address has so many at most, and all together so many."""
        self._connections.add(client_address[0], client_address, request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Count the connection for as long as the request takes, however it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.discard(client_address[0], client_address)

    def server_bind(self) -> None:
        """Without asking the name service what this host is called, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the request's own thread, so that a slow handshake holds up nobody else."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(_TIMEOUT_SECONDS)
        with self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as secured:
            self._connections.replace(client_address[0], client_address, secured)  # the first one is no more
            secured.do_handshake()
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that broke, or was none of ours."""
