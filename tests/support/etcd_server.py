"""etcd as a process of its own, as users have it: started on free ports, stopped, killed and paused.

It is the one that the system has. The one that comes with a Python package can corrupt its data when it is killed, so
nothing is proved with that: where there is no other, these tests are skipped, and say so.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Self

import pytest

from headwater.cluster.local import find_etcd
from headwater.core.address import Address
from tests.support.patience import Patience, has_ended
from tests.support.ports import free_port

PATIENCE: Final = 60.0


_FOUND: Final = find_etcd()
needs_some_etcd = pytest.mark.skipif(_FOUND is None, reason="there is no etcd here: install etcd-server")
needs_etcd = pytest.mark.skipif(
    _FOUND is None or _FOUND.unsafe,
    reason="clusters are not proved: there is no etcd here that survives being killed; install etcd-server",
)


class EtcdServer:
    """One member of etcd, with its data in a directory, so that it can be started again."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        scheme: str = "http",
        name: str = "one",
        host: str = "127.0.0.1",
        within: Sequence[str] = (),
        election_ms: int = 500,
    ) -> None:
        """`within` comes before the command, and has it run elsewhere; `host` is where that is.

        One that is alone elects itself, and waits for nobody: the sooner the better.
        """
        self.directory = directory
        self.address = Address(host, free_port())
        self.peer = f"http://{host}:{free_port()}"
        self.name = name
        self.cluster = f"{name}={self.peer}"
        """All members that it knows: here itself alone."""
        self.url = f"{scheme}://{self.address}"
        self._flags = (*flags, "--election-timeout", str(election_ms), "--heartbeat-interval", str(election_ms // 10))
        self._within = within
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str, wait: bool = True) -> Self:
        """Start it, also again."""
        assert _FOUND is not None
        command = [*self._within, _FOUND.path, "--name", self.name, "--data-dir", str(self.directory / self.name)]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer]
        command += ["--initial-cluster", self.cluster]
        command += ["--logger", "zap", "--log-level", "warn", *self._flags, *flags]
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment())
        if wait:
            self.wait()
        return self

    def wait(self) -> None:
        """Wait until it listens."""
        assert self.process is not None
        patience = Patience(PATIENCE)
        while not patience.exhausted() and self.process.poll() is None:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(self.address) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError(f"etcd does not start:\n{(self.directory / f'{self.name}.log').read_text()}")

    def pause(self) -> None:
        """Stop it in the middle of whatever it does; its connections stay."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # on a busy machine its threads go on for a moment

    def go_on(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait for the end. Doing it twice does no harm."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            assert has_ended(self.process, PATIENCE), "etcd does not end"

    def stop(self) -> None:
        """Ask it to end, and wait for that."""
        assert self.process is not None
        self.process.terminate()
        assert has_ended(self.process, PATIENCE), "etcd does not end"

    def post(self, path: str, *, token: str = "", **content: object) -> dict[str, Any]:
        """Call a method that Headwater itself has no use for, through etcd's own JSON interface."""
        headers = {"Authorization": token} if token else {}
        request = urllib.request.Request(f"{self.url}/v3/{path}", json.dumps(content).encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def end_lease(self, key: str) -> None:
        """End the lease of a key, as if it had not been kept alive; also when the key is gone already."""
        found = self.post("kv/range", key=b64encode(key.encode()).decode())
        for item in found.get("kvs", ()):
            self.post("lease/revoke", ID=item["lease"])

    def compact(self, revision: int) -> None:
        """Forget what was before a revision."""
        self.post("kv/compaction", revision=str(revision), physical=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class EtcdMembers:
    """Several members of one etcd, in place of one."""

    def __init__(self, directory: Path, count: int) -> None:
        self.members = [EtcdServer(directory, name=f"member{number}", election_ms=1000) for number in range(count)]
        cluster = ",".join(member.cluster for member in self.members)
        for member in self.members:
            member.cluster = cluster

    @property
    def address(self) -> str:
        """The addresses of all members."""
        return ",".join(str(member.address) for member in self.members)

    def start(self) -> Self:
        """Start them all."""
        for member in self.members:
            member.start(wait=False)
        for member in self.members:
            member.wait()
        return self

    def kill(self) -> None:
        """kill -9 all of them."""
        for member in self.members:
            member.kill()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


def started_together(directory: Path, count: int) -> list[EtcdServer]:
    """Several members of one etcd, started."""
    return EtcdMembers(directory, count).start().members
