"""A console for tests: in this process, at a free port, asked by HTTP as a browser would, or by a browser."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import headwater as hw
from headwater.console.server import Console
from headwater.console.serving import Serving
from headwater.console.sessions import ConsoleSessions
from headwater.core.address import Address
from tests.support.browser import Browser

PATIENCE = 300.0


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


class Asking:
    """A console that is served, and someone who asks it."""

    def __init__(self, serving: Serving, sessions: ConsoleSessions) -> None:
        self.serving = serving
        self.sessions = sessions
        self.port = serving.address.port
        self.cookie = ""
        self.source = "127.0.0.1"
        """The address that requests come from."""

    @property
    def store(self) -> hw.Store:
        """The store that it shows."""
        return self.sessions.find(self.cookie.partition("=")[2]).watch.store

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request on a connection of its own. Headers are named with underscores; an empty one is left out."""
        said = {"Host": f"127.0.0.1:{self.port}"}
        if self.cookie:
            said["Cookie"] = self.cookie
        if body is not None:
            said["Content-Type"] = "application/json"
        said |= {name.replace("_", "-"): value for name, value in headers.items()}
        said = {name: value for name, value in said.items() if value}
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=PATIENCE, source_address=(self.source, 0)
        )
        try:
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, content, said)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **query: object) -> Any:
        """The document at an address; the answer must be good."""
        answer = self.ask("GET", f"{path}?{urlencode(query)}" if query else path)
        assert answer.status == 200, answer
        return answer.json

    def change(self, method: str, path: str, body: Any) -> Any:
        """Return the answer to a change, which must have been made."""
        answer = self.ask(method, path, body)
        assert answer.status == 200, answer
        return answer.json

    def sign_in(self, token: str | None = None) -> Answer:
        """Get in, with the launch token or another one."""
        answer = self.ask("POST", "/api/session", {"token": token or self.sessions.launch_token})
        if answer.status == 200:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    @contextmanager
    def tail(self, topic: str, **query: object) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a live tail, each with its name, place and data."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            address = f"/api/topics/{quote(topic)}/tail?{urlencode(query)}"
            connection.request("GET", address, headers={"Cookie": self.cookie})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield _events(response)
        finally:
            connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {}
    while line := response.readline():
        name, _, text = line.decode().rstrip("\n").partition(": ")
        if not name and found.get("event"):
            yield found
            found = {}
        elif name:
            found[name] = json.loads(text) if name == "data" else text


@contextmanager
def served(store: hw.Store, *, write: bool = True, signed_in: bool = True, interval: float = 0.2) -> Iterator[Asking]:
    """A console over a store, which it closes in the end."""
    sessions = ConsoleSessions(store, interval=interval)
    with Serving(Console(sessions, write=write), Address("127.0.0.1", 0)) as serving:
        asking = Asking(serving, sessions)
        if signed_in:
            asking.sign_in()
        yield asking


class Opened:
    """A console in a browser."""

    def __init__(self, store: hw.Store, browser: Browser) -> None:
        self.store = store
        self.browser = browser
        self.began = time.time()
        self.sessions = ConsoleSessions(store, interval=0.3)
        self.serving = Serving(Console(self.sessions, write=True), Address("127.0.0.1", 0))

    def go(self, page: str) -> None:
        """Open a page of it."""
        self.browser.driver.get(f"{self.serving.link}#/{page}")

    def launch(self) -> None:
        """Open it by the link that the command prints."""
        self.browser.driver.get("about:blank")
        self.browser.driver.get(f"{self.serving.link}#launch={self.sessions.launch_token}")
        self.browser.find("h1", "Overview")
