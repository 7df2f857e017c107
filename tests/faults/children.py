"""Processes of a proof: forked, killed, stopped and waited for; none outlives its run."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from headwater.log import Disk, encode
from headwater.log.entropy import random_bytes
from headwater.testing import seeded
from tests.faults import stacks
from tests.faults.violation import Kind, Violation
from tests.support.patience import Patience, Stopwatch, descendants


class Child:
    """A forked process that runs `body`. It leaves its error in the file `errors` for the parent."""

    def __init__(self, body: Callable[[], None], errors: Path) -> None:
        self.errors = errors
        self.status: int | None = None
        encode([b""])  # here, and not in each child, pyarrow imports pandas when it is first given Python's objects
        seed = random_bytes(16)  # from the run's seed; two children with one seed would draw the same identities
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the time limit of a run is its parent's business
                stacks.register_child()
                with seeded(seed):
                    body()
                code = 0
            except BaseException:  # noqa: BLE001 - nothing may climb up into the parent's half of the code
                leave_error(errors)
            finally:
                os._exit(code)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has been waited for: its pid may be another's by now."""
        if self.status is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self.send(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """The status of the ended process, as `os.waitstatus_to_exitcode` gives it: negative for a signal."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def wait_stopped(self) -> bool:
        """Wait until the process is stopped by a signal; False when it ended instead."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self.status = os.waitstatus_to_exitcode(status)
        return False

    def ended_within(self, seconds: float) -> bool:
        """Return whether the process ends by itself within so many seconds in which it could have: see `Patience`."""
        return Patience(seconds, self.pid).until(self._has_ended)

    def _has_ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def hangs(self, detail: str) -> Violation:
        """The finding that this process does not end, with its stacks and those of its parent."""
        return Violation(Kind.HANG, detail, stacks.collect([*descendants(self.pid), os.getpid()]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def leave_error(errors: Path) -> None:
    """Keep the traceback of the exception that is being handled."""
    errors.write_text(traceback.format_exc())


def failures(directory: Path) -> Iterator[Violation]:
    """Return what the processes that left their errors in `directory` raised."""
    for errors in sorted(directory.glob("*.error")):
        text = errors.read_text()
        yield Violation(Kind.CRASH, f"in {errors.stem}: {text.strip().splitlines()[-1]}", text)


def limit_memory(headroom: int) -> None:
    """Let this process have so many more bytes of address space and no more: then it gets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + headroom
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class WatchedDisk(Disk):
    """A disk that does something around every change."""

    @contextmanager
    def _change(self) -> Iterator[bool]:
        """Around one change; whether only half of it is to be made first. Only a write has halves."""
        yield False

    def _strike(self) -> None:
        """Between the halves of a write."""

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        with self._change() as half:
            if half:
                content = b"".join(buffers)
                super().pwritev(fd, [content[: len(content) // 2]], position)
                self._strike()
            return super().pwritev(fd, buffers, position)

    def truncate(self, fd: int, size: int) -> None:
        with self._change():
            super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        with self._change():
            super().sync(fd)

    def sync_directory(self, path: Path) -> None:
        with self._change():
            super().sync_directory(path)

    def create(self, path: Path) -> int:
        with self._change():
            return super().create(path)

    def rename(self, source: Path, target: Path) -> None:
        with self._change():
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._change():
            super().unlink(path)


class TimedDisk(WatchedDisk):
    """A disk that knows how long it took: what a busy disk takes is not the fault of whoever held a lock."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def _change(self) -> Iterator[bool]:
        began = time.monotonic()
        yield False
        self.seconds += time.monotonic() - began

    def time_without(self, action: Callable[[], None]) -> float:
        """Return how many seconds the action takes, without those of the disk and of a busy machine."""
        stopwatch, before = Stopwatch(), self.seconds
        action()
        return stopwatch.seconds() - (self.seconds - before)


class SignallingDisk(WatchedDisk):
    """A disk on which this process sends itself a signal, once: before, within or after the Nth change that it makes.

    `announce` is called first: the parent may want to know that the moment has come.
    """

    def __init__(self, number: int, when: str, signum: signal.Signals, announce: Callable[[], None]) -> None:
        self._left = number
        self._when = when
        self._signal = signum
        self._announce = announce
        self._struck = False

    @contextmanager
    def _change(self) -> Iterator[bool]:
        self._left -= 1
        here = self._left == 0
        if here and self._when == "before":
            self._strike()
        yield here and self._when == "within"
        if here and not self._struck:
            self._strike()

    def _strike(self) -> None:
        self._struck = True
        self._announce()
        # To this thread, which goes no further then; a process's signal is taken by any thread, some time.
        signal.pthread_kill(threading.get_ident(), self._signal)
