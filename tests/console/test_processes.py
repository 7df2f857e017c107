"""The console as a process: by `hw console`, and beside a broker."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headwater as hw
from headwater.core.config import BrokerConfig

HW = [sys.executable, "-m", "headwater.cli"]
PATIENCE = 300
LINK = re.compile(r"http://127\.0\.0\.1:(\d+)/#launch=([\w-]+)")


def ask(port: int, method: str, path: str, body: object = None, cookie: str = "") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        headers = {"Content-Type": "application/json", **({"Cookie": cookie} if cookie else {})}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def topics_by(link: str) -> list[str]:
    """The topics that someone sees who opens the link."""
    match = LINK.search(link)
    assert match is not None, link
    port, token = int(match[1]), match[2]
    status, headers, _ = ask(port, "POST", "/api/session", {"token": token})
    assert status == 200
    cookie = headers["set-cookie"].partition(";")[0]
    status, _, content = ask(port, "GET", "/api/topics", cookie=cookie)
    assert status == 200
    return [topic["name"] for topic in json.loads(content)["topics"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_a_link_and_ends_well(tmp_path: Path, number: signal.Signals) -> None:
    with hw.open(tmp_path / "store") as store:
        store.create_topic("orders")
    command = [*HW, "console", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = ""
        while not LINK.search(said):  # a long path takes more than one line
            said += child.stdout.readline()
        assert "reads only" in said
        assert topics_by(said) == ["orders"]
        child.send_signal(number)
        _, errors = child.communicate(timeout=PATIENCE)
        assert (child.returncode, errors) == (0, "")


def test_a_broker_serves_it_beside_itself_and_takes_it_along(tmp_path: Path) -> None:
    with hw.open(tmp_path / "store") as store:
        store.create_topic("orders")
    command = [*HW, "broker", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        link = next(json.loads(line)["link"] for line in child.stderr if '"link"' in line)
        assert topics_by(link) == ["orders"]
        child.kill()  # it can tell nobody: the console notices by itself
        child.wait()
    match = LINK.search(link)
    assert match is not None
    with pytest.raises(OSError):  # noqa: PT012, PT011 - as soon as it is gone
        while True:
            ask(int(match[1]), "GET", "/")


def test_a_broker_does_not_show_everything_to_everyone() -> None:
    from headwater.broker.security.exposure import check_exposure

    for config in (
        BrokerConfig(console="0.0.0.0:6175"),
        BrokerConfig(console="0.0.0.0:6175", insecure_no_authentication=True),
        BrokerConfig(console="console.example:6175", access="access.yaml"),
    ):
        with pytest.raises(hw.InvalidConfiguration, match="is not only for this machine"):
            check_exposure(config)
