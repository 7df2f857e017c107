"""The origin of figures: the machine, the file system and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts about a machine that a reader needs to judge a figure. They may be "unknown", and are never guessed."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    pyarrow: str
    file_system: str

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_bytes / 2**30:.1f} GiB, {self.file_system}, "
            f"{self.kernel}, Python {self.python}, pyarrow {self.pyarrow}"
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """The code that was measured. `dirty` says that it was not exactly this commit."""

    hash: str
    dirty: bool

    def __str__(self) -> str:
        return f"commit {self.hash[:12]}{' with changes' if self.dirty else ''}"


def this_machine(directory: Path) -> Machine:
    """The machine that runs this, with the file system that holds `directory`."""
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        pyarrow=version("pyarrow"),
        file_system=file_system(directory),
    )


def this_commit(directory: Path) -> Commit | None:
    """The commit that is checked out in `directory`, or None where there is none."""
    head = _output("git", "-C", str(directory), "rev-parse", "--verify", "--quiet", "HEAD")
    if not head:
        return None
    return Commit(head, dirty=_output("git", "-C", str(directory), "status", "--porcelain") != "")


def file_system(directory: Path, mounts: str | None = None) -> str:
    """The type of the file system that holds `directory`, by the kernel's list of `mounts`."""
    if mounts is None:
        mounts = _text(Path("/proc/self/mountinfo"))
    where = directory.resolve()
    best, kind = Path(), "unknown"
    for line in mounts.splitlines():
        # As proc(5) has it: "36 35 98:0 /root /mount/point options [tags] - type source options", with
        # spaces written as \040.
        mount, _, rest = line.partition(" - ")
        mounted = Path(mount.split()[4].replace("\\040", " "))
        # Of two mounts on one point the later one hides the earlier, so a tie goes to the later line.
        if where.is_relative_to(mounted) and len(mounted.parts) >= len(best.parts):
            best, kind = mounted, rest.split()[0]
    return kind


def _cpu() -> str:
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    # macOS says it here; elsewhere, and on ARM, the architecture is all there is.
    return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine() or "unknown"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def _output(*command: str) -> str | None:
    """Return the output of a command, or None if it fails or is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
