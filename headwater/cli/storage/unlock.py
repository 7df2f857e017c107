"""`hw unlock`: show the process that holds the lock of a partition, and end it.

The holder notes its pid in the lock file, but a note may be old, or from another container. So the kernel is asked
too, and only a process that the kernel names as the holder is ever ended.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from headwater.cli.output import Json, Yes, console, printable, shown, wants_json, write_json
from headwater.core.errors import HeadwaterError
from headwater.embedded.directory_store import LOCK_FILE as STORE_LOCK_FILE
from headwater.log.files.lock import PartitionLock
from headwater.log.write.owner import LOCK_FILE

_PATIENCE: Final = 1.0
"""A healthy holder lets go well within this many seconds."""
_DEATH_TIMEOUT: Final = 5.0
_STATES: Final = {"T": "stopped", "t": "stopped by a debugger", "D": "waiting for a device", "R": "running"}


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock. `pid` is None when it cannot be seen from here."""

    pid: int | None
    since: float | None
    command: str
    condition: str

    @property
    def seconds(self) -> float | None:
        """For how long it has held the lock."""
        return None if self.since is None else max(time.time() - self.since, 0.0)


app = typer.Typer(add_completion=False)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "  hw unlock events/orders/0               the holder, and since when\n"
    "  hw unlock --kill events/orders/0        end that process, after asking\n"
    "  hw unlock --kill --yes events/orders/0  end it without asking",
)
def unlock(
    partition: Annotated[Path, typer.Argument(metavar="PARTITION", help="The directory of a partition.")],
    kill: Annotated[bool, typer.Option("--kill", help="End the process that holds the lock (SIGKILL).")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Show the process that holds the lock of a partition and, with --kill, end it.

    A dead process holds no lock: this is for one that is stopped or hangs. Records that it had acknowledged
    are safe, and the next writer recovers an append that it was in the middle of.
    """
    path = partition / LOCK_FILE
    if not path.exists():
        raise HeadwaterError(f"{partition} is not a partition: it has no lock")
    with _opened(path) as fd:
        if _becomes_free(fd, _PATIENCE):
            raise HeadwaterError(f"no process holds the lock of {partition}: there is nothing to unlock")
        holder = find_holder(path, fd)
        _check_serves_nobody(partition, holder)
        json_wanted = wants_json(as_json)
        if not json_wanted:
            _tell(partition, holder, kill)
        if kill:
            _confirm(holder, yes)
            _end(path, fd, holder)
        if json_wanted:
            write_json(_document(partition, holder, kill))
        elif kill:
            console().print(Text(f"✓ process {holder.pid} has been ended and the lock is free", "bold green"))


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _becomes_free(fd: int, seconds: float) -> bool:
    """Return whether the lock was free at some moment of these seconds. Asking keeps no writer waiting."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)
            continue
        fcntl.flock(fd, fcntl.LOCK_UN)
        return True


# The holder.


def find_holder(path: Path, fd: int) -> Holder:
    """Return the holder of the lock, as far as it can be known."""
    note = PartitionLock(path)
    noted, since = note.holder() or (None, None)
    note.close()
    pid = noted
    if Path("/proc/locks").exists():
        holders = _kernel_holders(os.fstat(fd))
        pid = noted if noted in holders else next(iter(holders), None)
        since = since if pid == noted else None
    elif noted is not None and not _exists(noted):
        pid = None
    return Holder(pid, since, _command(pid), _condition(pid))


def _check_serves_nobody(partition: Path, holder: Holder) -> None:
    """Refuse when the holder has all of the store: it keeps its locks because it works, not because it is stuck."""
    store = partition.absolute().parent.parent
    lock = store / STORE_LOCK_FILE
    if lock.exists() and Path("/proc/locks").exists() and holder.pid in _kernel_holders(lock.stat()):
        raise HeadwaterError(
            f"process {holder.pid} has all of {store} to itself, as brokers do, and keeps the locks of its partitions: "
            f"there is nothing to unlock. To stop it: kill {holder.pid}"
        )


def _kernel_holders(file: os.stat_result) -> list[int]:
    """The processes that hold a lock on the file. Those of other containers have no pid here."""
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    holders: dict[bool, list[int]] = {True: [], False: []}
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, _, mode, pid, file_id, *_ = line.replace(" -> ", " ").split()
        where, _, inode = file_id.rpartition(":")
        if (kind, mode, inode) == ("FLOCK", "WRITE", str(file.st_ino)) and int(pid) > 1:
            holders[where == device].append(int(pid))
    return holders[True] or holders[False]  # some file systems have a device of their own there


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _command(pid: int | None) -> str:
    return _of_process(pid, "cmdline", lambda content: printable(content.replace(b"\0", b" ").strip()))


def _condition(pid: int | None) -> str:
    return _of_process(pid, "stat", lambda content: _STATES.get(content.rpartition(b") ")[2][:1].decode(), "sleeping"))


def _of_process(pid: int | None, name: str, read: Callable[[bytes], str]) -> str:
    if pid is None:
        return ""
    try:
        return read(Path(f"/proc/{pid}/{name}").read_bytes())
    except OSError:
        return ""


# Telling and ending.


def _tell(partition: Path, holder: Holder, kill: bool) -> None:
    people = console()
    text = Text.assemble(shown(str(partition), "bold"), " is locked by ")
    text.append(f"process {holder.pid}" if holder.pid else "a process that cannot be seen from here", "bold yellow")
    if holder.seconds is not None and holder.since is not None:
        moment = datetime.fromtimestamp(holder.since, UTC).astimezone()
        text.append(f" for {holder.seconds:.1f} s, since {moment:%Y-%m-%d %H:%M:%S}")
    people.print(text)
    if holder.command:
        people.print(Text.assemble("  ", shown(holder.command, "dim", limit=100)))
    if holder.condition:
        people.print(Text(f"  it is {holder.condition}", "dim"))
    if not kill and holder.pid is not None:
        resume = f"kill -CONT {holder.pid}" if holder.condition == "stopped" else "wait for it"
        command = f"hw unlock --kill {printable(str(partition))}"
        people.print(f"\nLet it go on ({resume}), or end it: {command}", soft_wrap=True)


def _confirm(holder: Holder, yes: bool) -> None:
    if holder.pid is None:
        raise HeadwaterError(
            "the holder cannot be seen from here: end it on the machine or in the container it runs in"
        )
    if holder.pid == os.getpid():
        raise HeadwaterError("this process holds the lock itself")
    if yes:
        return
    if not sys.stdin.isatty():
        raise HeadwaterError("there is no terminal to ask at: give --yes to end the process")
    if not typer.confirm(f"End process {holder.pid}?", err=True):
        raise HeadwaterError("nothing was done")


def _end(path: Path, fd: int, holder: Holder) -> None:
    """Kill the holder, if it still is the holder, and wait until the lock is free."""
    assert holder.pid is not None, "confirmed before"
    process = os.pidfd_open(holder.pid) if hasattr(os, "pidfd_open") else None
    try:
        now = find_holder(path, fd)
        if _becomes_free(fd, 0) or (now.pid, now.since) != (holder.pid, holder.since):
            raise HeadwaterError("another process holds the lock by now: nothing was done")
        if process is not None:
            signal.pidfd_send_signal(process, signal.SIGKILL)  # the process that was looked at, not one of its number
        else:
            os.kill(holder.pid, signal.SIGKILL)
    finally:
        if process is not None:
            os.close(process)
    if not _becomes_free(fd, _DEATH_TIMEOUT):
        raise HeadwaterError(f"process {holder.pid} was killed, and another process that was waiting took the lock")


def _document(partition: Path, holder: Holder, killed: bool) -> dict[str, Any]:
    return {
        "partition": str(partition),
        "pid": holder.pid,
        "since": holder.since,
        "held_seconds": None if holder.seconds is None else round(holder.seconds, 3),
        "command": holder.command,
        "condition": holder.condition,
        "killed": killed,
    }
