"""Waiting that is limited by what the machine let others do meanwhile, not by the clock on the wall.

A process that is ready and gets no processor is not late: the machine is busy with something else. So a limit in
seconds counts a second in full only while a processor is free, and in part while more processes are ready than there
are processors. It counts nothing while a watched process waits for the disk, and little while the observer itself was
held up.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.forked import Process

LONGEST_STEP = 1.0
"""Between two looks at most this many seconds count: an observer that was held up knows nothing of the rest."""

PAUSE = 0.01
"""Seconds between two looks at a condition."""

COUNTED = 0.1
"""Seconds between two looks at the machine."""

PACES = (1, 4, 16, 64)
"""Factors for a limit that belongs to what is promised. A slow machine misses the short ones, a broken program all."""

_TICKS = os.sysconf("SC_CLK_TCK")
_RUNNING = re.compile(r"^procs_running (\d+)$", re.MULTILINE)


def fair_share() -> float:
    """The part of a processor that one more ready process would get now, from 0 to 1."""
    match = _RUNNING.search(Path("/proc/stat").read_text(encoding="ascii"))
    ready = int(match[1]) if match else 1
    return min(1.0, len(os.sched_getaffinity(0)) / max(ready, 1))


class Patience:
    """A limit in seconds during which what is awaited could have happened.

    While the process `pid`, or one that it has started, waits for the disk, no time passes.
    """

    def __init__(self, seconds: float, pid: int | None = None) -> None:
        self.limit = seconds
        self.spent = 0.0
        self._pid = pid
        self._looked = time.monotonic()

    def exhausted(self) -> bool:
        """Return whether the time is over. Call it again and again while waiting: it counts between its calls."""
        now = time.monotonic()
        step = now - self._looked
        if step >= COUNTED:
            self._looked = now
            if self._pid is None or not waits_for_disk(self._pid):
                self.spent += min(step, LONGEST_STEP) * fair_share()
        return self.spent >= self.limit

    def restart(self) -> None:
        """Something happened: the whole limit is there again."""
        self.spent = 0.0
        self._looked = time.monotonic()

    def until(self, condition: Callable[[], object]) -> bool:
        """Wait until the condition is true; False when the time is over first."""
        while not condition():
            if self.exhausted():
                return bool(condition())
            time.sleep(PAUSE)
        return True


def wait_until(
    condition: Callable[[], object], problem: str | Callable[[], object] = "it did not happen", *, seconds: float = 60.0
) -> None:
    """Wait until the condition is true; fail, and tell the problem, when the time is over first."""
    if not Patience(seconds).until(condition):
        raise AssertionError(problem() if callable(problem) else problem)


def at_some_pace(attempt: Callable[[int], object], *missed: type[Exception]) -> None:
    """Try something with limits that grow by `PACES`, until it does not miss one, which raises one of these errors."""
    for pace in PACES[:-1]:
        with suppress(*missed):
            attempt(pace)
            return
    attempt(PACES[-1])


def has_ended(process: Process, seconds: float) -> bool:
    """Return whether the process ends by itself within so many seconds in which it could have."""
    return Patience(seconds, process.pid).until(lambda: process.poll() is not None)


def has_finished(thread: threading.Thread, seconds: float) -> bool:
    """Return whether the thread ends by itself within so many seconds in which it could have."""
    return Patience(seconds).until(lambda: not thread.is_alive())


class Stopwatch:
    """The time that this thread takes for something, without the time that the machine gave to others."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._starved = _starved_seconds()
        self._share = fair_share()

    def seconds(self) -> float:
        """Return how many seconds it has taken until now."""
        took = time.monotonic() - self._began - (_starved_seconds() - self._starved)
        return max(took, 0.0) * min(self._share, fair_share())


def _starved_seconds() -> float:
    """Return how long this thread has been ready, all in all, while others had the processors."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def waits_for_disk(pid: int) -> bool:
    """Return whether any thread of the process, or of one that it has started, is in an uninterruptible wait.

    This is asked several times a second during every wait. So it reads the tree of the process alone, not all of /proc.
    """
    pids = [pid]
    for each in pids:
        for thread in _listed(f"/proc/{each}/task"):
            stat = _content(f"/proc/{each}/task/{thread}/stat")
            if stat.rpartition(b")")[2].lstrip().startswith(b"D"):
                return True
            pids += map(int, _content(f"/proc/{each}/task/{thread}/children").split())
    return False


def _listed(directory: str) -> list[str]:
    """Return the names in a directory of /proc; none when the process is gone."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _content(file: str) -> bytes:
    """Return the content of a file of /proc; nothing when the process is gone."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def descendants(pid: int) -> list[int]:
    """The process and all that it and its children have started and that still exist, parents first."""
    parents: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        if fields := _stat(file):
            parents.setdefault(int(fields[1]), []).append(int(file.parent.name))
    found = [pid]
    for parent in found:
        found += parents.get(parent, ())
    return found


def processor_seconds(pid: int) -> float:
    """The processor time that the process and its descendants have used, ended ones that were waited for included."""
    used = 0
    for each in descendants(pid):
        if fields := _stat(Path(f"/proc/{each}/stat")):
            used += sum(int(value) for value in fields[11:15])
    return used / _TICKS


def _stat(file: Path) -> list[str]:
    """The fields of a stat file from the state on; none when the process is gone."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def kill_descendants(pid: int) -> None:
    """Kill -9 the process and everything that it has started, children that begin meanwhile included."""
    killed: set[int] = set()
    while fresh := [each for each in descendants(pid) if each not in killed]:
        for each in fresh:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        killed.update(fresh)
