"""Running mutants: each in a copy of the tree, never in the tree itself."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.mutants.mutant import Inapplicable, Mutant
from tests.support.patience import Patience, kill_descendants, processor_seconds

ROOT = Path(__file__).parent.parent.parent
PROCESSOR_SECONDS = 600.0
"""A killer that uses more has been kept from its end by the mutant, which is noticed."""
PATIENCE = 600.0
"""The same for one that does not end and uses no processor: seconds in which it could have gone on."""
LAST_LINES = 15

_PASSED, _FAILED = 0, 1
_PR_SET_PDEATHSIG = 1
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


class Verdict(Enum):
    """The fate of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    UNDECIDED = "undecided"
    """The change cannot be made, or a killer fails without it, or could not run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A mutant, its verdict, and the reason."""

    mutant: Mutant
    verdict: Verdict
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class _Run:
    """The end of a killer: its exit code, None when it had to be stopped, and the last of its output."""

    code: int | None
    output: str

    def failed_test(self) -> str | None:
        """The test that failed, when the killer is one or more tests and ended at the first that did."""
        found = _FAILED_TEST.search(self.output)
        return found[1] if found else None


class Laboratory:
    """A copy of the tree in which mutants are made one after the other."""

    def __init__(self, directory: Path) -> None:
        self._tree = directory.resolve() / "tree"
        self._compiled = directory / "compiled"
        self._temporary = directory / "tmp"
        self._temporary.mkdir()
        self._unchanged: dict[str, _Run] = {}
        _copy_tree(ROOT, self._tree)

    def examine(self, mutant: Mutant) -> Outcome:
        """Make the change, run what must notice it, and take the change back."""
        began = time.monotonic()
        verdict, reason = self._verdict(mutant)
        return Outcome(mutant, verdict, reason, time.monotonic() - began)

    def _verdict(self, mutant: Mutant) -> tuple[Verdict, str]:
        try:
            changed = mutant.applied_to(self._tree)
        except Inapplicable as error:
            return Verdict.UNDECIDED, str(error)
        for killer in mutant.killers:
            with self._changed(mutant.file, changed):
                run = self._run(killer)
            if run.code == _PASSED:
                continue
            if run.code not in (_FAILED, None):
                return Verdict.UNDECIDED, f"{killer} ended with {run.code}:\n{run.output}"
            # A killer that fails anyway has noticed nothing. The test that failed is enough to see that.
            noticed_by = shlex.quote(test) if (test := run.failed_test()) else killer
            if (before := self._run_unchanged(noticed_by)).code != _PASSED:
                return Verdict.UNDECIDED, f"{noticed_by} fails without the change too:\n{before.output}"
            return Verdict.KILLED, f"{noticed_by}{' did not end' if run.code is None else ''}"
        return Verdict.SURVIVED, f"noticed by none of: {', '.join(mutant.killers)}"

    def _run_unchanged(self, killer: str) -> _Run:
        if killer not in self._unchanged:
            self._unchanged[killer] = self._run(killer)
        return self._unchanged[killer]

    @contextmanager
    def _changed(self, name: str, text: str) -> Iterator[None]:
        file = self._tree / name
        before = file.read_text(encoding="utf-8")
        try:
            self._write(file, text)
            yield
        finally:
            self._write(file, before)

    def _write(self, file: Path, text: str) -> None:
        """Write a source file. Python trusts the age and size of compiled code, so that is removed with it."""
        file.write_text(text, encoding="utf-8")
        for compiled in (self._compiled / file.parent.relative_to("/")).glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

    def _run(self, killer: str) -> _Run:
        environment = os.environ | {
            "PYTHONPATH": str(self._tree),
            "PYTHONPYCACHEPREFIX": str(self._compiled),
            "TMPDIR": str(self._temporary),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # most of a short killer's time goes into compiling
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                _command(killer),
                cwd=self._tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - it only calls the kernel
            )
            try:
                code = _wait(process)
            finally:
                kill_descendants(process.pid)
                process.wait()
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary.mkdir(exist_ok=True)
            output.seek(0)
            return _Run(code, "".join(output.readlines()[-LAST_LINES:]))


def _die_with_parent() -> None:
    """In a killer's process: end when the runner is killed, even if a mutant keeps the killer going for ever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _command(killer: str) -> list[str]:
    words = shlex.split(killer)
    if words[0].startswith("tests/"):
        return [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *words]
    chosen = [] if "--runs" in words or "--only" in words else ["--quick"]
    seed = [] if "--seed" in words else ["--seed", "1"]
    return [sys.executable, "-m", "tests.faults", *words, *chosen, *seed]


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code, or None for a process that will not end."""
    patience = Patience(PATIENCE)
    while (code := process.poll()) is None:
        time.sleep(0.2)
        if processor_seconds(process.pid) > PROCESSOR_SECONDS or patience.exhausted():
            return None
    return code


def _copy_tree(source: Path, target: Path) -> None:
    """Copy the files that are tracked, and those that are new and not ignored."""
    command = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)
