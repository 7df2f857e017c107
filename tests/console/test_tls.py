"""The console of a broker that others reach: over TLS, for people with tokens, who see and do what those may."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.broker.security.tokens import create_token, revoke_token, tokens_beside
from tests.support.broker import BrokerProcess
from tests.support.browser import Browser, needs_browser
from tests.support.certificates import Authority, Pair, needs_openssl
from tests.support.patience import Patience
from tests.support.ports import free_port

pytestmark = needs_openssl
PATIENCE = 300.0
LINK = re.compile(r'"link": "(https://127\.0\.0\.1:(\d+)/)"')
EVERYTHING = "topics: {'*': [read, write, admin]}, groups: {'*': [read, write, admin]}, broker: [read, admin]"
ACCESS = f"""
users:
  reader: {{topics: {{orders: read}}}}
  owner: {{{EVERYTHING}}}
  # The broker's certificate, which the console itself connects with, may do everything: nobody must get in by it.
  localhost: {{{EVERYTHING}}}
"""


class Guarded:
    """A broker with TLS and users, its console, and what it takes to get in."""

    def __init__(self, directory: Path, *, mutual: bool) -> None:
        directory.mkdir(parents=True)
        self.authority = Authority(directory)
        self.access = directory / "access.yaml"
        self.access.write_text(ACCESS)
        self.tokens = {user: create_token(tokens_beside(self.access), user) for user in ("reader", "owner")}
        self._broker_pair = self.authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")
        self._client: Pair | None = self.authority.sign("someone") if mutual else None
        self._where = f"localhost:{free_port()}"
        flags = [
            *("--advertise", self._where, "--access", str(self.access), "--console", "0.0.0.0:0", "--console-write"),
            *("--tls-certificate", str(self._broker_pair.certificate), "--tls-key", str(self._broker_pair.key)),
            *(("--tls-client-ca", str(self.authority.certificate)) if mutual else ()),
        ]
        listen = self._where.replace("localhost", "0.0.0.0")
        self.broker = BrokerProcess(directory / "store", *flags, listen=listen)
        self.link, self.port = "", 0

    def ready(self) -> None:
        """Wait until the console serves, and have topics that not all may see."""
        self.broker.ready()
        patience = Patience(PATIENCE)
        while not (match := LINK.search(self.broker.log.read_text())):
            assert not patience.exhausted(), self.broker.log.read_text()
            time.sleep(0.05)
        self.link, self.port = match[1], int(match[2])
        how: dict[str, Any] = {"token": self.tokens["owner"], "tls_ca": str(self.authority.certificate)}
        if self._client is not None:
            how |= {"tls_certificate": str(self._client.certificate), "tls_key": str(self._client.key)}
        with hw.open(f"hw://{self._where}", **how) as store:
            for name in ("orders", "payroll"):
                store.create_topic(name)
                with store.producer(name) as out:
                    out.send(f"the first of {name}".encode())

    def ask(self, method: str, path: str, body: object = None, cookie: str = "") -> tuple[int, dict[str, str], Any]:
        """One request over TLS, whose certificate is verified."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=context)
        try:
            headers = {"Content-Type": "application/json", **({"Cookie": cookie} if cookie else {})}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, dict(answer.getheaders()), json.loads(content) if path.startswith("/api") else content
        finally:
            connection.close()

    def sign_in(self, token: str) -> tuple[int, str]:
        """The answer to a token: its status, and the whole cookie."""
        status, headers, _ = self.ask("POST", "/api/session", {"token": token})
        return status, headers.get("set-cookie", "")


@contextmanager
def guarded(directory: Path, *, mutual: bool) -> Iterator[Guarded]:
    console = Guarded(directory, mutual=mutual)
    with console.broker:
        console.ready()
        yield console


@needs_browser
def test_people_sign_in_over_https_and_see_and_do_what_their_tokens_may(tmp_path: Path) -> None:
    with guarded(tmp_path / "mutual", mutual=True) as console:
        browser = Browser(tmp_path)
        try:
            browser.driver.get(console.link)
            browser.type("input[name=token]", "hw_000000000000_" + "x" * 43)
            browser.click("button", "Sign in")
            browser.find(".problem", "not known")
            browser.find("input[name=token]").clear()
            browser.type("input[name=token]", console.tokens["reader"])
            browser.click("button", "Sign in")
            browser.find("h1", "Overview")
            browser.driver.get(f"{console.link}#/topics")
            browser.find(".vt-row", "orders")
            assert "payroll" not in browser.text()
            browser.driver.get(f"{console.link}#/topics/payroll")
            browser.find("h1", "Not found")
            browser.driver.get(f"{console.link}#/topics/orders/messages?mode=browse")
            browser.find(".vt-row", "the first of orders")
            browser.click("button", "New record")
            browser.type("dialog textarea[name=value]", "forged")
            browser.click("dialog button[type=submit]")
            browser.find("dialog .problem", "reader")
            browser.driver.get(f"{console.link}#/cluster")
            browser.find(".hint-box", "reader")  # how the broker is, is not for readers of a topic

            revoke_token(tokens_beside(console.access), console.tokens["reader"][3:15])
            browser.find("h1", "Headwater")  # by itself, as soon as the broker knows: back at the door
            browser.type("input[name=token]", console.tokens["owner"])
            browser.click("button", "Sign in")
            browser.driver.get(f"{console.link}#/topics/payroll/messages?mode=browse")
            browser.find(".vt-row", "the first of payroll")
            browser.click("button", "New record")
            browser.type("dialog textarea[name=value]", "the second")
            browser.click("dialog button[type=submit]")
            browser.find(".vt-row", "the second")
            assert browser.complaints() == []
        finally:
            browser.close()

        # Not by the certificate that the console itself has.
        for nobody in ("", " ", "\t", "Bearer", "null", console.tokens["reader"]):
            status, cookie = console.sign_in(nobody)
            assert (status in (400, 401), cookie) == (True, ""), nobody
        status, cookie = console.sign_in(console.tokens["owner"])
        assert (status, "Secure" in cookie, "HttpOnly" in cookie, "SameSite=strict" in cookie) == (
            200,
            True,
            True,
            True,
        )


def test_the_certificate_may_be_of_an_authority_that_this_machine_does_not_know(tmp_path: Path) -> None:
    with guarded(tmp_path / "private", mutual=False) as console:
        plain = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE)
        plain.request("GET", "/")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        assert b"Headwater" in console.ask("GET", "/")[2]
        assert console.ask("GET", "/api/topics")[0] == 401
        for user, sees in (("reader", ["orders"]), ("owner", ["orders", "payroll"])):
            status, cookie = console.sign_in(console.tokens[user])
            assert status == 200
            _, _, answer = console.ask("GET", "/api/topics", cookie=cookie.partition(";")[0])
            assert [topic["name"] for topic in answer["topics"]] == sees


def test_without_users_nothing_is_served_beyond_this_machine(tmp_path: Path) -> None:
    for arguments in (
        ["broker", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "--console", "0.0.0.0:0"],
        ["console", str(tmp_path), "--listen", "0.0.0.0:0", "--no-browser"],
    ):
        command = [sys.executable, "-m", "headwater.cli", *arguments]
        told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert told.returncode != 0
        assert "is not only for this machine" in told.stderr
        assert "Traceback" not in told.stderr
