"""The supervisor: each proof runs in a process of its own, which is told when it is late and ended when it hangs.

A proof that inherited the threads of another one could be held up by them, and no proof would be to blame. So a worker
is a new program, not a fork. It is late when it has been able to run for as long as its proof allows and has not come
to the next run: by `Patience`, not by the clock on the wall. Then the stacks of all of its processes are taken down,
and the run is interrupted. A worker that does not react to that is killed with all that it has started.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from tests.faults import stacks
from tests.faults.proof import Proof
from tests.faults.runner import Finding, Plan, Result
from tests.faults.violation import Kind, Violation
from tests.faults.worker import Task
from tests.support.patience import Patience, descendants, kill_descendants

GRACE = 120.0
"""A worker that was interrupted, or told to stop, has so long to clean up. Seconds, as `Patience` counts them."""
BEGINNING = 300.0
"""A worker has so long to import its proof and count its cases, counted likewise."""
_LOOK = 0.25

Progress = Callable[[int, int], None]


def run_apart(proof: Proof, plan: Plan, progress: Progress, stop: threading.Event) -> Result:
    """Make the planned runs of `proof` in another process. When `stop` is set, that is ended soon."""
    with tempfile.TemporaryDirectory(prefix="headwater-stacks-") as directory:
        worker = _Worker(proof, plan, Path(directory))
        try:
            return worker.watch(progress, stop)
        except KeyboardInterrupt:
            worker.stop()
            raise
        finally:
            worker.end()


class _Worker:
    """The process of one proof, and what it has reported."""

    def __init__(self, proof: Proof, plan: Plan, directory: Path) -> None:
        self._proof = proof
        self._directory = directory
        self._limit = proof.timeout + (plan.seconds or 0.0)
        self._patience = Patience(BEGINNING + self._limit)
        self._interrupted = False
        self._result = Result(proof)
        self._unread = b""
        self._reports, theirs = os.pipe()
        task = Task(module=proof.body.__module__, name=proof.name, plan=plan, reports=theirs, stacks=str(directory))
        command = [sys.executable, "-m", "tests.faults.worker", task.to_text()]
        try:
            # In a group of its own: Ctrl-C comes to the supervisor alone, which passes it on once.
            self._process = subprocess.Popen(command, pass_fds=[theirs], stdin=subprocess.DEVNULL, process_group=0)
        finally:
            os.close(theirs)

    def watch(self, progress: Progress, stop: threading.Event) -> Result:
        """Follow the reports to their end."""
        while not stop.is_set():
            if select.select([self._reports], [], [], _LOOK)[0]:
                if not self._read(progress):
                    return self._ended()
            elif self._patience.exhausted():
                if self._interrupted:
                    return self._hanging()
                self._interrupt()
        self.stop()
        return self._result

    def stop(self) -> None:
        """Have the worker clean up and end."""
        self._process.send_signal(signal.SIGINT)
        Patience(GRACE).until(lambda: self._process.poll() is not None)

    def _read(self, progress: Progress) -> bool:
        """Take the reports that have come; whether there may be more."""
        content = os.read(self._reports, 1 << 16)
        *lines, self._unread = (self._unread + content).split(b"\n")
        for line in lines:
            report = json.loads(line)
            progress(report["done"], report["total"])
            self._result = Result.from_json(self._proof, report["result"])
            self._interrupted = False
            self._patience = Patience(self._limit, self._process.pid)
        return bool(content)

    def _interrupt(self) -> None:
        """Take the stacks of all processes down, and have the run end with them."""
        text = stacks.collect(descendants(self._process.pid), self._directory)
        (self._directory / "late").write_text(text, encoding="utf-8")
        self._interrupted = True
        self._patience = Patience(GRACE, self._process.pid)
        self._process.send_signal(signal.SIGALRM)

    def _ended(self) -> Result:
        """The worker reports no more: it has finished, or died."""
        code = self._process.wait()
        if code:
            self._add(Kind.CRASH, f"the process of the proof ended with {code}", None)
        return self._result

    def _hanging(self) -> Result:
        text = (self._directory / "late").read_text(encoding="utf-8")
        self._add(Kind.HANG, f"not over after {self._limit:g} s, nor after it was interrupted", text)
        return self._result

    def _add(self, kind: Kind, detail: str, traceback: str | None) -> None:
        self._result.findings.append(Finding(Violation(kind, detail, traceback), self._result.under_way))

    def end(self) -> None:
        """Leave nothing of the worker behind."""
        os.close(self._reports)
        kill_descendants(self._process.pid)
        self._process.wait()
