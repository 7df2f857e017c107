"""The disk: every change that the engine makes to a file system goes through here.

One small surface has two uses. It is where partial writes and platform differences are dealt with, once; and
`headwater.testing` replaces it by disks that record, fail or die at any chosen operation, so that the engine's
promises can be proved against them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headwater.core.errors import UnsupportedFileSystem
from headwater.log.entropy import random_bytes
from headwater.log.files.open_files import open_file

IOV_MAX = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 1024
_AT_ONCE = 256 * 1024
"""Larger writes go in several calls. Linux keeps what one call writes in pieces of memory as large as the call, and may
have to look long for large ones (6.18, ext4, a virtual machine: 200 MB/s in calls of 1 MB, 3,500 MB/s in such ones)."""
TEMPORARY = ".tmp"
"""Files with this suffix are unfinished: whoever finds one under the lock deletes it."""

_SYNC_FILE_RANGE: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _SYNC_FILE_RANGE is not None:
    _SYNC_FILE_RANGE.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_WRITE = 2
"""SYNC_FILE_RANGE_WRITE. Those that wait would take the error of a failed write, which is the next sync's to tell."""

_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "9p", "fuse.sshfs", "lustre"})


class Disk:
    """The real disk. Writes are whole or raise; a sync returns only when the device has the bytes."""

    def open(self, path: Path) -> int:
        """An existing file, for reading and writing."""
        return open_file(path, os.O_RDWR)

    def create(self, path: Path) -> int:
        """A new, empty file; one left behind under the same name is emptied."""
        return open_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open_or_create(self, path: Path) -> int:
        """The file as it is, for reading and writing, or a new, empty one."""
        return open_file(path, os.O_RDWR | os.O_CREAT)

    def close(self, fd: int) -> None:
        """Give the descriptor back."""
        os.close(fd)

    def write(self, fd: int, data: bytes, position: int) -> None:
        """Write all of `data` at `position`."""
        self.writev(fd, [data], position, len(data))

    def writev(self, fd: int, buffers: Sequence[Any], position: int, size: int) -> None:
        """Write all of the buffers, `size` bytes together, one after the other from `position` on."""
        if size <= _AT_ONCE and len(buffers) <= IOV_MAX:
            self._write_all(fd, buffers, position, size)
            return
        for portion, count in _portions(buffers):
            self._write_all(fd, portion, position, count)
            position += count

    def _write_all(self, fd: int, buffers: Sequence[Any], position: int, size: int) -> None:
        written = self.pwritev(fd, buffers, position)
        if written != size:
            self._write_rest(fd, buffers, position, written)

    def _write_rest(self, fd: int, buffers: Sequence[Any], position: int, done: int) -> None:
        """Go on after a short write, byte by byte view, until all is written or the disk says why not."""
        for buffer in buffers:
            view = memoryview(buffer)
            if done >= len(view):
                done -= len(view)
                position += len(view)
                continue
            view, position, done = view[done:], position + done, 0
            while view:
                count = self.pwritev(fd, [view], position)
                view, position = view[count:], position + count

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        """One system call, which may write less than asked."""
        return os.pwritev(fd, buffers, position)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file off at `size`."""
        os.ftruncate(fd, size)

    def start_writing(self, fd: int, position: int, size: int) -> None:
        """Have the device begin with these bytes, and wait for nothing: only a sync says that it has them, or has not.

        Where the system cannot be asked for that, it begins when it likes.
        """
        if _SYNC_FILE_RANGE is not None:
            _SYNC_FILE_RANGE(fd, position, size, _WRITE)

    def sync(self, fd: int) -> None:
        """Return when the file's bytes and length are on the device."""
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync there leaves the bytes in the device's cache
        else:
            os.fdatasync(fd)

    def sync_directory(self, path: Path) -> None:
        """Return when the names in the directory are on the device."""
        fd = open_file(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give the file its name, in one step, replacing what had it."""
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove the name, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def make_directory(self, path: Path) -> None:
        """Create the directory and those above it, each made durable in the one that names it."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        with contextlib.suppress(FileExistsError):
            self.mkdir(path)
        self.sync_directory(path.parent)

    def mkdir(self, path: Path) -> None:
        """Create one directory."""
        os.mkdir(path)

    def replace(self, path: Path, content: bytes, *, sync: bool = True) -> None:
        """Put a whole file in place: after a crash the old one is there or the new one, never a mixture.

        The new name is durable once the directory is synced, which is left to the caller, who often has more to name.
        When it fails, nothing is left of the new one.
        """
        temporary = path.with_name(f"{path.name}.{random_bytes(8).hex()}{TEMPORARY}")
        try:
            fd = self.create(temporary)
            try:
                self.write(fd, content, 0)
                if sync:
                    self.sync(fd)
            finally:
                self.close(fd)
            self.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise


def _portions(buffers: Sequence[Any]) -> Iterator[tuple[list[Any], int]]:
    """The buffers in the portions that calls write, each with its size: cut where one is full."""
    portion: list[Any] = []
    room = _AT_ONCE
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) > room or len(portion) == IOV_MAX:
            if len(portion) < IOV_MAX:
                portion.append(view[:room])
                view, room = view[room:], 0
            yield portion, _AT_ONCE - room
            portion, room = [], _AT_ONCE
        portion.append(view)
        room -= len(view)
    if portion:
        yield portion, _AT_ONCE - room


def open_plain(path: Path) -> int:
    """A plain file, for reading. Anything else of that name (a pipe would block) is an error."""
    fd = open_file(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a plain file", str(path))


def read_plain(path: Path, limit: int = -1) -> bytes:
    """The content of a plain file, or its first `limit` bytes."""
    with open(open_plain(path), "rb") as file:
        return file.read(limit)


def drop_page_cache(fd: int) -> None:
    """Ask the kernel to forget its copy of the file, so that the next read comes from the device."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def refuse_network_file_system(path: Path) -> None:
    """Raise when `path` is on a network file system. Where that cannot be told, nothing is refused."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        kind = rest.split(" ", 1)[0]
        if fields.split(" ")[2] == wanted and kind in _NETWORK_FILE_SYSTEMS:
            raise UnsupportedFileSystem(
                f"{path} is on {kind}, where locks and syncs cannot be relied on: use a local disk, or a broker"
            )


REAL_DISK = Disk()
