"""Callers that mean harm keep nobody else out of the console: wrong tokens, half-open connections, old sessions."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import headwater as hw
from headwater.broker import Broker
from headwater.broker.security.guard import Guard
from headwater.broker.security.tokens import create_token, tokens_beside
from headwater.console import serving as console_serving
from headwater.console.server import Console
from headwater.console.serving import Serving
from headwater.console.sessions import ConsoleSessions
from headwater.core.address import Address
from headwater.core.config import BrokerConfig
from headwater.core.errors import Unauthenticated
from headwater.embedded.directory_store import DirectoryStore
from tests.support.console import PATIENCE, Asking, served
from tests.support.patience import Patience

FLOOD = 600
ATTACKER, OTHER = "127.0.0.1", "127.0.0.2"
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a machine has one address of its own")


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Asking]:
    with served(hw.open(tmp_path / "store"), signed_in=False) as asking:
        yield asking


@contextmanager
def users_console(directory: Path) -> Iterator[tuple[Asking, str]]:
    """A console for users of a broker, and the token of one of them."""
    access = directory / "access.yaml"
    access.write_text("users:\n  reader:\n    topics: {orders: read}\n")
    token = create_token(tokens_beside(access), "reader")
    with ExitStack() as stack:
        store = stack.enter_context(DirectoryStore(directory / "store", exclusive=True))
        guard = Guard(access)
        broker = stack.enter_context(Broker(store, BrokerConfig(steward=False), guard, listen=Address("127.0.0.1", 0)))
        where = f"hw://{broker.address}"
        sessions = ConsoleSessions(None, lambda given: hw.open(where, token=given))
        serving = stack.enter_context(Serving(Console(sessions, names=None), Address("127.0.0.1", 0)))
        yield Asking(serving, sessions), token


# Wrong tokens.


@linux
def test_wrong_launch_tokens_keep_nobody_out(console: Asking) -> None:
    told = [console.sign_in(f"guess-{number}") for number in range(30)]
    assert {answer.status for answer in told} == {401}
    assert "an earlier start" in told[0].json["error"]
    assert "too many wrong tokens from your address" in told[-1].json["error"]
    console.source = OTHER
    assert "an earlier start" in console.sign_in("guess").json["error"], "others are told what is wrong"
    assert console.sign_in().status == 200
    console.source = ATTACKER
    assert console.sign_in().status == 200, "the right one costs nothing to know, so it is always taken"


@linux
def test_wrong_tokens_of_a_broker_keep_out_only_the_address_that_they_come_from(tmp_path: Path) -> None:
    with users_console(tmp_path) as (console, token):
        wrong = token[:-4] + "AAAA"
        told = [console.sign_in(wrong) for _ in range(25)]
        assert {answer.status for answer in told} == {401}
        assert "too many wrong tokens from your address" in told[-1].json["error"]
        assert "too many" in console.sign_in(token).json["error"], "it is not even looked at"
        console.source = OTHER
        assert console.sign_in(token).status == 200
        console.source = ATTACKER
        assert console.sign_in(token).status == 200, "one that is known by now is taken from anywhere"


@linux
def test_an_address_signs_in_a_few_times_at_once_and_others_meanwhile() -> None:
    asked, go_on = threading.Semaphore(0), threading.Event()

    def connect(token: str) -> hw.Store:
        if token == "slow":
            asked.release()
            go_on.wait(PATIENCE)
            raise Unauthenticated("the token is not known here")
        return hw.open("memory:")

    sessions = ConsoleSessions(None, connect)
    with Serving(Console(sessions, names=None), Address("127.0.0.1", 0)) as serving:
        attacker, other = Asking(serving, sessions), Asking(serving, sessions)
        other.source = OTHER
        threads = [threading.Thread(target=attacker.sign_in, args=("slow",)) for _ in range(2)]
        try:
            for thread in threads:
                thread.start()
                assert asked.acquire(timeout=PATIENCE)
            refused = attacker.sign_in("slow")
            assert (refused.status, "at the same time" in refused.json["error"]) == (401, True)
            assert other.sign_in("good").status == 200
            assert other.get("/api/session")["known"]
        finally:
            go_on.set()
            for thread in threads:
                thread.join()


# Connections.

HALVES = {
    "silent": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: 127",
    "half a body": b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{",
    "kept alive": b"GET /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


@linux
@pytest.mark.parametrize("half", HALVES)
def test_half_open_connections_from_one_address_keep_nobody_out(console: Asking, half: str) -> None:
    with ExitStack() as stack:
        for _ in range(FLOOD):
            opened = stack.enter_context(socket.create_connection(("127.0.0.1", console.port), timeout=PATIENCE))
            try:
                opened.sendall(HALVES[half])
            except OSError:
                continue  # it was closed meanwhile
        for source in (OTHER, ATTACKER):
            console.source = source
            for _ in range(3):
                assert console.ask("GET", "/", None).status == 200
                assert console.sign_in().status == 200


@pytest.mark.parametrize("half", HALVES)
def test_a_request_that_does_not_come_is_not_waited_for(
    console: Asking, half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEAD_SECONDS", "REQUEST_SECONDS", "IDLE_SECONDS"):
        monkeypatch.setattr(console_serving, name, 0.2)
    with socket.create_connection(("127.0.0.1", console.port), timeout=PATIENCE) as opened:
        opened.sendall(HALVES[half])
        while opened.recv(65536):
            pass


def test_bytes_that_trickle_in_win_no_time(console: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_serving, "HEAD_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", console.port), timeout=0.05) as opened:
        patience = Patience(PATIENCE)
        ended = False
        while not ended:
            assert not patience.exhausted(), "it waits for as long as bytes come"
            try:
                opened.sendall(b"G" if not ended else b"")
                ended = opened.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True


def test_a_stranger_sends_no_large_body(console: Asking) -> None:
    body = b'{"token": "' + b"x" * 100_000 + b'"}'
    assert console.ask("POST", "/api/session", body).status == 413


# Sessions.


def test_sessions_end_when_nobody_uses_them_and_when_they_are_old(tmp_path: Path) -> None:
    clock = [1000.0]
    sessions = ConsoleSessions(hw.open(tmp_path / "store"), now=lambda: clock[0])
    try:
        token = str(sessions.launch_token)
        idle, used = sessions.begin(token), sessions.begin(token)
        hour = 3600.0
        for _ in range(13):
            clock[0] += hour
            sessions.find(used)
        with pytest.raises(Unauthenticated):
            sessions.find(idle)
        for _ in range(7 * 24 - 13):
            sessions.find(used)
            clock[0] += hour
        sessions.find(used)
        clock[0] += 1.0
        with pytest.raises(Unauthenticated):
            sessions.find(used)
    finally:
        sessions.close()


def test_what_an_abandoned_session_looks_at_is_closed_though_nobody_asks() -> None:
    clock = [1000.0]
    opened: list[hw.Store] = []

    def connect(_: str) -> hw.Store:
        opened.append(hw.open("memory:"))
        return opened[-1]

    sessions = ConsoleSessions(None, connect, now=lambda: clock[0])
    sessions.begin("a token")
    opened[0].create_topic("there")
    clock[0] += 24 * 3600.0
    sessions.sweep()
    patience = Patience(PATIENCE)
    while True:  # it is closed by a thread of its own
        try:
            opened[0].topics()
        except hw.StoreClosed:
            break
        assert not patience.exhausted()
        time.sleep(0.01)
    sessions.close()


def test_one_user_that_signs_in_again_and_again_ends_no_session_of_others() -> None:
    sessions = ConsoleSessions(None, lambda _: hw.open("memory:"))
    try:
        others = sessions.begin("another token")
        last = [sessions.begin("a token") for _ in range(1000)][-1]
        sessions.find(others)
        sessions.find(last)
    finally:
        sessions.close()


@pytest.mark.parametrize("stream", ["/api/events", "/api/topics/a/tail"])
def test_a_stream_ends_with_its_session(console: Asking, stream: str) -> None:
    console.sign_in()
    console.store.create_topic("a")
    with socket.create_connection(("127.0.0.1", console.port), timeout=PATIENCE) as opened:
        head = f"GET {stream} HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\nCookie: {console.cookie}\r\n"
        opened.sendall(f"{head}Connection: close\r\n\r\n".encode())
        assert opened.recv(65536).startswith(b"HTTP/1.1 200")
        console.change("DELETE", "/api/session", {})
        while opened.recv(65536):
            pass
