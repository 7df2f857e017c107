"""A disk that fails, writes less than asked, fills up, or dies with its process, at any chosen operation."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headwater.log.files.disk import REAL_DISK, Disk
from headwater.testing.disk import RecordingDisk

Operation = Literal["create", "pwritev", "truncate", "sync", "sync_directory", "rename", "unlink", "mkdir"]


class Done(NamedTuple):
    """One operation that a disk was asked for: on which file, and for a write how many bytes."""

    operation: Operation
    path: Path
    size: int


@dataclass(slots=True, kw_only=True)
class Failpoint:
    """The fault, and its time.

    It is about every operation unless `operation`, `path` or `number` (from 1, counted over all operations) narrow
    it; of those it lets `skip` pass and then strikes `times` times. A write that it strikes is done up to `part`
    bytes. Then there is an error, or death; with neither, the write was merely short.
    """

    operation: Operation | None = None
    path: Callable[[Path], bool] | None = None
    number: int | None = None
    skip: int = 0
    times: int = 1
    part: int = 0
    error: int | None = None
    """An errno: EIO, ENOSPC, EINTR."""
    death: bool = False
    """SIGKILL to the process itself."""

    def strikes(self, number: int, asked: Done) -> bool:
        """Return whether this operation, the `number`-th of all, is the one. Asking counts it."""
        if self.operation not in (None, asked.operation) or self.number not in (None, number):
            return False
        if self.path is not None and not self.path(asked.path):
            return False
        self.skip -= 1
        if self.skip >= 0 or self.times <= 0:
            return False
        self.times -= 1
        return True


class FailingDisk(Disk):
    """Passes everything on to another disk, unless a failpoint strikes.

    `operations` lists all that was asked for, so that a test can run once without failpoints and then once for each
    operation. `room`, if it is given, is how many bytes files may still grow; removing them makes room. Thread-safe.
    """

    def __init__(self, disk: Disk = REAL_DISK, *failpoints: Failpoint, room: int | None = None) -> None:
        self.operations: list[Done] = []
        self.failpoints = list(failpoints)
        self.room = room
        self._disk = disk
        self._paths: dict[int, Path] = {}
        self._mutex = threading.RLock()

    def _ask(self, operation: Operation, path: Path, size: int = 0) -> Failpoint | None:
        """The failpoint that strikes, if one does. An operation without a part to it dies, or fails, here."""
        with self._mutex:
            asked = Done(operation, path, size)
            self.operations.append(asked)
            number = len(self.operations)
            failpoint = next((point for point in self.failpoints if point.strikes(number, asked)), None)
        if failpoint is not None and operation not in ("pwritev", "sync"):
            _strike(failpoint)
        return failpoint

    def _path(self, fd: int) -> Path:
        """The name under which the file was opened, or the one that it was given since; by inode, as a descriptor
        may have been duplicated."""
        return self._paths[os.fstat(fd).st_ino]

    def _free(self, size: int) -> None:
        if self.room is not None:
            self.room += size

    # The operations of a disk.

    def open(self, path: Path) -> int:
        fd = self._disk.open(path)
        self._paths[os.fstat(fd).st_ino] = path
        return fd

    def create(self, path: Path) -> int:
        self._ask("create", path)
        self._free(_size(path))
        fd = self._disk.create(path)
        self._paths[os.fstat(fd).st_ino] = path
        return fd

    def open_or_create(self, path: Path) -> int:
        return self.open(path) if path.exists() else self.create(path)

    def close(self, fd: int) -> None:
        self._disk.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        failpoint = self._ask("pwritev", self._path(fd), size)
        with self._mutex:
            if failpoint is None:
                return self._write(fd, buffers, position, size)
            most = size if failpoint.error is None else size - 1  # a write that was done does not fail
            written = self._write(fd, buffers, position, min(failpoint.part, most))
            _strike(failpoint)
            return written

    def _write(self, fd: int, buffers: Sequence[Any], position: int, size: int) -> int:
        """Write `size` bytes of the buffers, or as much of that as there is room for."""
        if self.room is not None and size:
            growth = max(position + size - os.fstat(fd).st_size, 0)
            size -= max(growth - self.room, 0)
            if size <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= min(growth, self.room)
        if not size:
            return 0
        return self._disk.pwritev(fd, _first(buffers, size), position)

    def truncate(self, fd: int, size: int) -> None:
        self._ask("truncate", self._path(fd))
        self._free(max(os.fstat(fd).st_size - size, 0))
        self._disk.truncate(fd, size)

    def sync(self, fd: int) -> None:
        failpoint = self._ask("sync", self._path(fd))
        if failpoint is not None:
            if failpoint.error is not None and isinstance(self._disk, RecordingDisk):
                self._disk.fail_sync(fd)
            _strike(failpoint)
        self._disk.sync(fd)

    def sync_directory(self, path: Path) -> None:
        self._ask("sync_directory", path)
        self._disk.sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._ask("rename", source)
        self._free(_size(target))
        self._disk.rename(source, target)
        self._paths[os.stat(target).st_ino] = target

    def unlink(self, path: Path) -> None:
        self._ask("unlink", path)
        self._free(_size(path))
        self._disk.unlink(path)

    def mkdir(self, path: Path) -> None:
        self._ask("mkdir", path)
        self._disk.mkdir(path)


def _strike(failpoint: Failpoint) -> None:
    if failpoint.death:
        os.kill(os.getpid(), signal.SIGKILL)
    if failpoint.error is not None:
        raise OSError(failpoint.error, os.strerror(failpoint.error))


def _first(buffers: Sequence[Any], size: int) -> Sequence[Any]:
    """The first `size` bytes of the buffers."""
    if size >= sum(memoryview(buffer).nbytes for buffer in buffers):
        return buffers
    return [b"".join(bytes(memoryview(buffer)) for buffer in buffers)[:size]]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
