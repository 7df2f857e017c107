"""The HTTP server for machines: what it serves, and that a browser cannot be tricked into asking it."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headwater.monitoring.exposition import Family, Histogram, MetricSample, exposition
from headwater.monitoring.pages import Page, PageServer, Request
from tests.support.certificates import Authority, needs_openssl


def hello(request: Request) -> Page:
    return Page(200, f"hello {request.headers.get('x-name', '')}\n")


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    server = PageServer({"/hello": hello}, 0, names=["broker.example"])
    yield server
    server.close()


def ask(server: PageServer, path: str = "/hello", method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_pages_are_served_by_their_paths(server: PageServer) -> None:
    assert ask(server, X_Name="you") == (200, "hello you\n")
    assert ask(server, "/hello?who=me")[0] == 200
    assert ask(server, "/other")[0] == 404
    assert ask(server, method="POST")[0] == 501


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:1", "localhost:9", "LOCALHOST", "[::1]:80", "10.1.2.3", "broker.example"]
)
def test_a_host_that_is_meant_is_answered(server: PageServer, host: str) -> None:
    assert ask(server, Host=host)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "[", ""]
)
def test_a_name_that_anyone_can_point_here_is_refused(server: PageServer, host: str) -> None:
    assert ask(server, Host=host)[0] == 421


def test_any_name_is_answered_where_pages_ask_for_a_secret() -> None:
    server = PageServer({"/hello": hello}, 0, names=None)
    try:
        assert ask(server, Host="broker.internal:9174")[0] == 200
        assert ask(server, Host="broker.internal:9174", Origin="https://evil.example")[0] == 403
    finally:
        server.close()


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}]
)
def test_pages_of_other_sites_are_refused(server: PageServer, headers: dict[str, str]) -> None:
    assert ask(server, **headers)[0] == 403


def test_a_silent_connection_holds_nobody_up(server: PageServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.sendall(b"GET /he")
        assert ask(server)[0] == 200


@pytest.mark.parametrize("secured", [False, pytest.param(True, marks=needs_openssl)])
def test_silent_connections_are_few_and_the_oldest_go(tmp_path: Path, secured: bool) -> None:
    tls, _ = contexts(tmp_path) if secured else (None, None)
    server = PageServer({"/hello": hello}, 0, tls=tls)
    try:
        with ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=300))
                for _ in range(200)
            ]
            assert [connection.recv(1) for connection in silent[:168]] == [b""] * 168, (
                "which does not wait for their time to be up"
            )
            assert len(server._server._connections) <= 32
    finally:
        server.close()


def contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS for a server, and for those who trust it."""
    authority = Authority(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("broker", "IP:127.0.0.1"))
    return context, ssl.create_default_context(cafile=str(authority.certificate))


@needs_openssl
def test_pages_are_served_over_tls(tmp_path: Path) -> None:
    context, trusting = contexts(tmp_path)
    server = PageServer({"/hello": hello}, 0, tls=context)
    try:
        with socket.create_connection(("127.0.0.1", server.port)):  # never says a word
            connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=300, context=trusting)
            connection.request("GET", "/hello")
            assert connection.getresponse().read() == b"hello \n"
            connection.close()
    finally:
        server.close()


def test_a_histogram_counts_what_is_below_each_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 3.0):
        histogram.observe((("method", "Fetch"),), seconds)
    text = exposition([Family("took_seconds", "histogram", "How long it took.", histogram.samples())])
    assert text.splitlines() == [
        "# HELP took_seconds How long it took.",
        "# TYPE took_seconds histogram",
        'took_seconds_bucket{method="Fetch",le="0.1"} 2',
        'took_seconds_bucket{method="Fetch",le="1"} 3',
        'took_seconds_bucket{method="Fetch",le="+Inf"} 4',
        'took_seconds_sum{method="Fetch"} 3.65',
        'took_seconds_count{method="Fetch"} 4',
    ]


def test_labels_cannot_break_a_line() -> None:
    text = exposition([Family("f", "gauge", "m", [MetricSample((("topic", 'a"\\\nb'),), 1)])])
    assert text.splitlines()[-1] == 'f{topic="a\\"\\\\\\nb"} 1'
