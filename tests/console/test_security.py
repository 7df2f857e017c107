"""Nobody gets at a store through the console who should not: not other sites, not strangers, not the records."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

import headwater as hw
from headwater.broker import Broker
from headwater.broker.security.guard import Guard
from headwater.broker.security.tokens import create_token, revoke_token, tokens_beside
from headwater.cli.broker.console import check_exposure
from headwater.console.security import MAX_BODY
from headwater.console.server import _CALLS_ANSWERED, Console
from headwater.console.serving import Serving
from headwater.console.sessions import ConsoleSessions
from headwater.core.address import Address, parse_address
from headwater.core.config import BrokerConfig
from headwater.core.errors import InvalidConfiguration
from headwater.embedded.directory_store import DirectoryStore
from tests.support.console import Asking, served
from tests.support.patience import wait_until

PROTECTED = ["/api/events", "/api/topics/a/tail", "/api/topics/a/download", *(call.path for call in _CALLS_ANSWERED)]
STATIC = Path(str(resources.files("headwater.console"))) / "static"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    """A console that may write; it is asked for nothing that changes it."""
    store = hw.open(tmp_path_factory.mktemp("console") / "store")
    store.create_topic("a")
    with served(store) as asking:
        yield asking


def concrete(path: str) -> str:
    return re.sub(r"\{\w+(:\w+)?\}", lambda match: "0" if match[1] else "a", path)


def test_without_a_session_there_is_nothing_but_the_page(console: Asking) -> None:
    for call in _CALLS_ANSWERED:
        assert console.ask(call.method, concrete(call.path), {}, Cookie="").status == 401, call
        assert console.ask(call.method, concrete(call.path), {}, Cookie=f"headwater-{console.port}=guess").status == 401
    for path in PROTECTED[:3]:
        assert console.ask("GET", path, Cookie="").status == 401
    assert console.ask("GET", "/", Cookie="").status == 200
    session = console.ask("GET", "/api/session", Cookie="").json
    assert (session["known"], session.keys()) == (False, {"known", "by_token", "version"})


def test_the_launch_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(console: Asking) -> None:
    for wrong in ("", "x", "x" * 2000, "\ud800", str(console.sessions.launch_token)[:-1]):
        assert console.ask("POST", "/api/session", {"token": wrong}, Cookie="").status == 401
    answer = console.ask("POST", "/api/session", {"token": console.sessions.launch_token}, Cookie="")
    parts = [attribute.strip().lower() for attribute in answer.headers["set-cookie"].split(";")]
    assert parts[0].startswith(f"headwater-{console.port}=")
    assert set(parts[1:]) == {"httponly", "path=/", "samesite=strict"}
    cookie = answer.headers["set-cookie"].partition(";")[0]
    assert console.ask("GET", "/api/topics", Cookie=cookie).status == 200
    assert console.ask("DELETE", "/api/session", {}, Cookie=cookie).status == 200
    assert console.ask("GET", "/api/topics", Cookie=cookie).status == 401


def test_guessing_is_slow(tmp_path: Path) -> None:
    with served(hw.open(tmp_path / "store"), signed_in=False) as console:
        told = [console.sign_in(f"guess-{number}").json["error"] for number in range(22)]
        assert "an earlier start" in told[0]
        assert "too many" in told[-1]
        assert console.sign_in().status == 200, "on one machine all have one address: guessing keeps out nobody"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil"])
def test_a_site_whose_name_points_here_is_refused(console: Asking, host: str) -> None:
    for path in ("/", "/api/session", "/api/topics"):
        answer = console.ask("GET", path, Host=host or "x" * 300)
        assert answer.status == 421
        assert b"topics" not in answer.content


def test_requests_that_another_site_has_made_are_refused(console: Asking) -> None:
    good = f"http://127.0.0.1:{console.port}"
    body = {"name": "made", "partitions": 1}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": good.replace("127.0.0.1", "localhost")},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        assert console.ask("GET", "/api/topics", None, **headers).status == 403
        assert console.ask("POST", "/api/topics", body, **headers).status == 403
    # Content types that a form, or a script without leave, can send across origins.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert console.ask("POST", "/api/topics", json.dumps(body).encode(), Content_Type=kind).status == 415
    assert console.get("/api/topics/a")["records"] == 0
    assert "made" not in console.store.topics()
    assert console.ask("GET", "/api/topics", Origin=good, Sec_Fetch_Site="same-origin").status == 200


def test_a_link_to_the_page_may_be_anywhere(console: Asking) -> None:
    followed = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert console.ask("GET", "/", **followed).status == 200
    for path in ("/api/topics", "/api/topics/a/download", "/app.js"):
        assert console.ask("GET", path, **followed).status == 403
    for other in ({"Sec_Fetch_Dest": "iframe"}, {"Sec_Fetch_Mode": "no-cors"}, {"Origin": "http://evil.example"}):
        assert console.ask("GET", "/", **(followed | other)).status == 403
    assert console.ask("POST", "/", {}, **followed).status == 403


def test_every_answer_forbids_what_the_page_does_not_need(console: Asking) -> None:
    for path in ("/", "/app.js", "/api/topics", "/nothing", "/api/topics/nothing"):
        headers = console.ask("GET", path).headers
        policy = dict(
            directive.strip().partition(" ")[::2] for directive in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    assert console.ask("GET", "/app.js").headers["content-type"].startswith("text/javascript")
    assert console.ask("GET", "/api/topics").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    ["/../pyproject.toml", "/%2e%2e/server.py", "/..%2fserver.py", "/static/app.js", "/pages/../../server.py",
     "/pages/", "/vendor", "//etc/passwd", "/api/topics/..%2f..%2fetc",
     "/api/topics/a/segments/0/../../..", "/app.js%00"],
)  # fmt: skip
def test_paths_lead_nowhere_else(console: Asking, path: str) -> None:
    answer = console.ask("GET", path)
    assert answer.status in (400, 404)
    assert b"import" not in answer.content


def test_names_that_are_no_names_are_refused_before_any_file_is_looked_for(console: Asking) -> None:
    for name in ("..", "%2e%2e", "a%2f..", "x" * 300, "%00", "store.lock"):
        assert console.ask("GET", f"/api/topics/{name}").status in (400, 404)
        assert console.ask("GET", f"/api/topics/{name}/segments/0/0").status in (400, 404)
        assert console.ask("GET", f"/api/groups/{name}").status in (400, 404)


def test_what_is_too_large_is_refused(console: Asking) -> None:
    assert console.ask("POST", "/api/topics", b"{}", Content_Length=str(MAX_BODY + 1)).status == 413
    assert console.ask("GET", "/api/topics?" + "x" * 9000).status == 414
    assert console.ask("POST", "/api/topics", b"[" * 100_000).status == 400
    assert console.ask("POST", "/api/topics", b"[]").status == 400
    # One that does not say how large it is: it is cut off while it comes, also that of someone who is signed in.
    with socket.create_connection(("127.0.0.1", console.port), timeout=60) as sent:
        head = f"POST /api/topics HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\nContent-Type: application/json\r\n"
        sent.sendall(f"{head}Cookie: {console.cookie}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        try:
            for _ in range(MAX_BODY // 0x100000 + 2):
                sent.sendall(chunk)
        except OSError:
            pass  # it has seen enough
        try:
            answer = sent.recv(100)
        except ConnectionResetError:
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 413")


def test_it_only_reads_unless_it_was_told_to_write(tmp_path: Path) -> None:
    store = hw.open(tmp_path / "store")
    store.create_topic("a")
    with served(store, write=False) as console:
        for call in _CALLS_ANSWERED:
            if call.writes:
                answer = console.ask(call.method, concrete(call.path), {"name": "b", "partitions": 1, "confirm": "a"})
                assert (answer.status, "--write" in answer.json["error"]) == (403, True), call
            elif call.method != "GET":
                assert call.path.endswith("/plan")
        assert store.topics() == ["a"]
        assert console.get("/api/session")["write"] is False


def test_the_page_makes_no_markup_of_strings_and_has_no_script_inside() -> None:
    for path in STATIC.rglob("*"):
        if path.suffix in (".js", ".html") and "vendor" not in path.parts:
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), (
                path
            )
            assert not re.search(r"https?://(?!www\.w3\.org/)", text), path
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|style=|<style", page)


@pytest.mark.parametrize(
    ("listen", "store", "users", "certificate", "says"),
    [
        ("0.0.0.0:6175", "events", False, None, "not only for this machine"),
        ("[::]:6175", "hw://127.0.0.1:6174", False, "c.pem", "not only for this machine"),
        ("console.example:6175", "hw://127.0.0.1:6174", True, None, "tokens would cross the network"),
        ("127.0.0.1:6175", "events", True, None, "--users needs a broker"),
        ("127.0.0.1:6175", "events", False, None, None),
        ("localhost:6175", "hw://broker:6174", True, None, None),
        ("0.0.0.0:6175", "hw://broker:6174", True, "c.pem", None),
    ],
)
def test_others_than_this_machine_need_tokens_and_tls(
    listen: str, store: str, users: bool, certificate: str | None, says: str | None
) -> None:
    arguments = (parse_address(listen), store, users, certificate, certificate)
    if says is None:
        check_exposure(*arguments)
    else:
        with pytest.raises(InvalidConfiguration, match=says):
            check_exposure(*arguments)


@pytest.mark.parametrize("interval", [0.2, 60.0])  # seconds: who is out is told by the watch, or by the call itself
def test_users_of_a_broker_see_and_do_what_they_may(tmp_path: Path, interval: float) -> None:
    access = tmp_path / "access.yaml"
    access.write_text(
        "users:\n"
        "  reader:\n    topics: {orders: read}\n"
        "  owner:\n    topics: {'*': [read, write, admin]}\n    groups: {'*': [read, write, admin]}\n"
    )
    tokens = {user: create_token(tokens_beside(access), user) for user in ("reader", "owner")}
    with DirectoryStore(tmp_path / "store", exclusive=True) as store:
        store.create_topic("orders")
        store.create_topic("payroll")
        guard = Guard(access)
        with Broker(store, BrokerConfig(steward=False), guard, listen=Address("127.0.0.1", 0)) as broker:
            where = f"hw://{broker.address}"
            sessions = ConsoleSessions(None, lambda token: hw.open(where, token=token), interval=interval)
            with Serving(Console(sessions, write=True, names=None), Address("127.0.0.1", 0)) as serving:
                console = Asking(serving, sessions)
                assert console.sign_in("hw_000000000000_" + "x" * 43).status == 401
                assert console.ask("GET", "/api/session").json["by_token"]
                assert console.sign_in(tokens["reader"]).status == 200
                assert [topic["name"] for topic in console.get("/api/topics")["topics"]] == ["orders"]
                assert console.ask("GET", "/api/topics/payroll").status == 404
                assert console.ask("GET", "/api/topics/payroll/messages").status == 404
                assert console.ask("GET", "/api/topics/__history/messages").status == 404
                record = {"value": {"as": "text", "text": "x"}}
                assert console.ask("POST", "/api/topics/orders/messages", record).status == 403
                assert console.ask("DELETE", "/api/topics/orders", {"confirm": "orders"}).status == 403
                assert console.ask("POST", "/api/topics", {"name": "mine", "partitions": 1}).status == 403

                # A user who has lost a token is out, and no longer sees earlier results.
                revoke_token(tokens_beside(access), tokens["reader"][3:15])
                guard.reload()
                if interval > 1:
                    wait_until(lambda: console.ask("GET", "/api/topics/orders/messages").status == 401)
                wait_until(lambda: not console.ask("GET", "/api/session").json["known"])
                assert console.sign_in(tokens["owner"]).status == 200
                console.change("POST", "/api/topics/payroll/messages", record)
        assert [bounds.end for bounds in store.topic("payroll").bounds().values()] == [1]
        assert store.topics() == ["orders", "payroll"]
