"""Programs that are forked from a server which has imported them already: a broker starts without a second of imports.

A forked program is a process like any other: it has its own pid, signals, environment and exit code, and can be killed.
It differs in its command line, which is the server's, and in the modules that were imported before its first line.

The server forks a keeper for each program, and the keeper forks the program, waits for it, and reports its end. So the
exit code comes through a pipe, because only a parent can ask the system for it.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol

ROOT = Path(__file__).parents[2]
_REQUEST_BYTES = 1 << 20


class Process(Protocol):
    """A process that was started, forked or by `subprocess`."""

    pid: int
    returncode: Any

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Forked:
    """A program that the server has forked."""

    def __init__(self, pid: int, reports: int, module: str) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._reports = reports
        self._module = module

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self._module, timeout or 0.0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._reports], [], [], timeout)[0]:
            # Without a report someone has killed the keeper, and with it all that it would have told.
            report = os.read(self._reports, 64)
            self.returncode = int(report) if report else -signal.SIGKILL
            os.close(self._reports)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        if self.returncode is None:
            os.close(self._reports)


class _Server:
    """The server of this process, started when it is first needed. It ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._socket: socket.socket | None = None

    def fork(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], output: int) -> Forked:
        request = {"module": module, "arguments": arguments, "environment": dict(environment), "directory": os.getcwd()}
        reports, theirs = os.pipe()
        try:
            with self._lock:
                connection = self._connected()
                socket.send_fds(connection, [json.dumps(request).encode()], [output, theirs])
        finally:
            os.close(theirs)
        pid = b""
        while not pid.endswith(b"\n"):
            pid += os.read(reports, 1) or _fail()
        return Forked(int(pid), reports, module)

    def _connected(self) -> socket.socket:
        if self._socket is None or self._owner != os.getpid():  # a forked process has a server of its own
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
            command = [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())]
            environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment | {"PYTHONPATH": str(ROOT)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            theirs.close()
            self._socket, self._owner = ours, os.getpid()
            atexit.register(_end, ours, process)
        return self._socket


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.wait()


def _fail() -> NoReturn:
    raise RuntimeError("the server of forked programs has ended")


_server = _Server()


def fork(module: str, arguments: Sequence[str], environment: Mapping[str, str], output: int) -> Forked:
    """Start a module as `python -m` does, with its output to a descriptor and no input. Does not wait for its end."""
    return _server.fork(module, arguments, environment, output)


def _serve(connection: socket.socket) -> None:
    """Fork what is asked for until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 2)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # a keeper that has ended; its processor time counts as ours now
        if not message:
            return
        output, reports = descriptors
        if not os.fork():
            program = os.fork()
            if not program:
                connection.close()
                os.close(reports)
                _become(json.loads(message), output)
                return
            _keep(program, reports)
        os.close(output)
        os.close(reports)


def _keep(program: int, reports: int) -> NoReturn:
    """Report the pid of a program and, when it ends, its exit code. Hold nothing else open."""
    os.write(reports, b"%d\n" % program)
    os.dup2(reports, 3)
    os.closerange(4, 1 << 16)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with suppress(BrokenPipeError):  # nobody asks any more
        os.write(3, b"%d" % code)
    os._exit(0)


def _become(request: dict[str, Any], output: int) -> None:
    """Be the program, from its first line on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.argv[1:] = request["arguments"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _import() -> None:
    """Import what a broker imports when it starts, alone or in a cluster."""
    for name in ("headwater.broker", "headwater.cli.broker", "headwater.cluster"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    for name in ("typer.main", "rich.table", "pydantic", "http.server"):  # the command line, and the pages for metrics
        with suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    _import()
    _serve(socket.socket(fileno=int(sys.argv[1])))
