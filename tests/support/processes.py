"""Brokers as processes of their own, as users have them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.forked import fork
from tests.support.patience import Patience, has_ended

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0


def hw(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "headwater.cli", *map(str, arguments)],
        env=_environment(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def _environment(said: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    return inherited | {"PYTHONPATH": str(ROOT)} | dict(said)


class BrokerProcess:
    """`hw broker`, started and listening, with its log in a file."""

    def __init__(self, directory: Path, *arguments: object, log: Path, **environment: str) -> None:
        self._log = log
        command = ["broker", str(directory), "--listen", "127.0.0.1:0", *map(str, arguments)]
        with log.open("ab") as file:
            self.process = fork("headwater.cli", command, _environment(environment), file.fileno())
        self.address = str(self.wait_for("serving")["address"]).removeprefix("hw://")

    def lines(self) -> list[dict[str, Any]]:
        """Every line of the log so far, all of them JSON."""
        whole = self._log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def wait_for(self, message: str) -> dict[str, Any]:
        """The first line of the log with this message."""
        patience = Patience(PATIENCE)
        while not patience.exhausted():
            if re.search(r"^hw: ", self._log.read_text(), re.MULTILINE):
                break
            found = next((line for line in self.lines() if line["message"] == message), None)
            if found is not None:
                return found
            time.sleep(0.02)
        self.kill()
        raise AssertionError(f"no {message!r} in the log:\n{self._log.read_text()}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(number)
        assert has_ended(self.process, PATIENCE), "it does not end"
        return self.process.wait()

    def kill(self) -> None:
        """End it without asking."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
