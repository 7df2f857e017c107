"""Stacks: every process of a proof writes down what its threads are doing when it is told to.

A process that takes part has a file of its own in the directory of its proof. On a signal it appends the stacks of all
of its threads, also when it is blocked in a call that never returns to Python.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.support.patience import Patience

SIGNAL = signal.SIGUSR1
_END_OF_DUMP = "(most recent call first)"
_PATIENCE = 10.0


class _Registered:
    """The directory that this process writes to, and the file, which must stay open."""

    directory: Path | None = None
    file: IO[str] | None = None


def register(directory: Path) -> None:
    """From now on, have this process write its stacks into the directory when it is asked."""
    _Registered.directory = directory
    register_child()


def register_child() -> None:
    """The same for a forked child, with a file of its own."""
    if _Registered.directory is not None:
        _Registered.file = (_Registered.directory / str(os.getpid())).open("a", encoding="utf-8")
        faulthandler.register(SIGNAL, _Registered.file, all_threads=True)


def collect(pids: Iterable[int], directory: Path | None = None) -> str:
    """Return what these processes are doing: the state of their threads, and stacks of those that take part.

    `directory` is where they write; it is this process's own where none is given.
    """
    place = directory or _Registered.directory
    return "\n".join(filter(None, (_stacks_of(place, pid) for pid in pids)))


def _stacks_of(directory: Path | None, pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:120]
    except OSError:
        return ""
    lines = [f"process {pid} ({name}):", *_threads(pid)]
    file = directory / str(pid) if directory is not None else None
    if file is not None and file.exists():
        before = file.stat().st_size
        with suppress(ProcessLookupError):
            os.kill(pid, SIGNAL)
        Patience(_PATIENCE, pid).until(lambda: _END_OF_DUMP in file.read_text(encoding="utf-8")[before:])
        lines.append(file.read_text(encoding="utf-8")[before:])
    return "\n".join(lines)


def _threads(pid: int) -> list[str]:
    """The name and state of each thread, and where in the kernel it waits."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with suppress(OSError, IndexError):
            stat = (task / "stat").read_text(encoding="utf-8", errors="replace")
            name, state = stat.partition("(")[2].rpartition(")")[0], stat.rpartition(")")[2].split()[0]
            place = (task / "wchan").read_text(encoding="ascii") if os.access(task / "wchan", os.R_OK) else ""
            found.append(f"  thread {task.name} {name}: {state} {place}".rstrip())
    return found
