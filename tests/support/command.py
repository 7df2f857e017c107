"""`hw` called in this process, on a store in a directory or behind a broker: for what needs no process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.broker import Broker
from headwater.cli import main
from headwater.core.address import Address
from headwater.core.config import BrokerConfig
from headwater.embedded.directory_store import DirectoryStore

KINDS = ("directory", "broker")


class Command:
    """Calls `hw` with a store, and gives what it has written."""

    def __init__(self, store: str, capture: pytest.CaptureFixture[bytes], patch: pytest.MonkeyPatch) -> None:
        self.store = store
        self._capture = capture
        self._patch = patch

    def __call__(self, *arguments: object, code: int = 0, stdin: str | bytes = b"", text: str = "") -> str:
        """Standard output; the exit code must be `code`, and `text` must be in standard error."""
        return self.binary(*arguments, code=code, stdin=stdin, text=text).decode()

    def binary(
        self,
        *arguments: object,
        code: int = 0,
        stdin: str | bytes = b"",
        text: str = "",
        refused: bool = True,
    ) -> bytes:
        """The same, as it was written."""
        content = stdin.encode() if isinstance(stdin, str) else stdin
        file = Path(os.environ["XDG_CONFIG_HOME"]) / "stdin"
        file.write_bytes(content)
        self._capture.readouterr()
        with file.open() as opened, self._patch.context() as patch:
            patch.setattr(sys, "argv", ["hw", *map(str, arguments)])
            patch.setattr(sys, "stdin", opened)
            patch.setenv("HEADWATER_STORE", self.store)
            with pytest.raises(SystemExit) as ended:
                main()
        written, errors = self._capture.readouterr()
        told = errors.decode()
        assert ended.value.code == code, told
        assert text in told, told
        if code and refused:
            assert told.startswith("hw: "), told
            assert told.count("\n") == 1, told
        return written

    def json(self, *arguments: object, **options: Any) -> Any:
        """The JSON document that it writes."""
        return json.loads(self(*arguments, **options))

    def lines(self, *arguments: object, **options: Any) -> list[Any]:
        """The lines of JSON that it writes."""
        return [json.loads(line) for line in self(*arguments, **options).splitlines()]

    def refused(self, *arguments: object, code: int = 1, **options: Any) -> None:
        """It fails in one line and writes nothing else."""
        assert self(*arguments, code=code, **options) == ""

    def verdict(self, *arguments: object) -> str:
        """Return its output when its verdict is no: the exit code is 1, and there is no error."""
        return self.binary(*arguments, code=1, refused=False).decode()

    @contextmanager
    def open(self) -> Iterator[headwater.Store]:
        """The store itself."""
        with headwater.open(self.store) as store:
            yield store


@contextmanager
def served(path: Path) -> Iterator[str]:
    """The address of a broker over a store in a directory."""
    with DirectoryStore(path, exclusive=True) as store:
        broker = Broker(store, BrokerConfig(steward=False), listen=Address("127.0.0.1", 0)).start()
        try:
            yield f"hw://{broker.address}"
        finally:
            broker.stop()


@pytest.fixture(params=KINDS)
def hw(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Command]:
    """The command, on a new store of each kind."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    if request.param == "directory":
        yield Command(str(tmp_path / "events"), capfdbinary, monkeypatch)
        return
    with served(tmp_path / "events") as address:
        yield Command(address, capfdbinary, monkeypatch)


@pytest.fixture
def local_hw(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, on a new store in a directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    return Command(str(tmp_path / "events"), capfdbinary, monkeypatch)
