"""The partition's lock between processes.

The kernel drops a `flock` when its holder dies, so a dead writer blocks nobody. A stopped one cannot be fenced: others
give up at their timeout with an error that names it. The holder notes its pid and the time in the file for them.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from contextlib import suppress
from pathlib import Path

from headwater.core.errors import PartitionBusy, PartitionDeleted
from headwater.log.files.open_files import open_file

_HOLDER = struct.Struct("<qd")
_AT_ONCE = fcntl.LOCK_EX | fcntl.LOCK_NB
_FIRST_PAUSE = 20e-6
_LONGEST_PAUSE = 1e-3


def take_lock(fd: int, timeout: float) -> bool:
    """Lock the open file; False when another one has held it for `timeout` seconds."""
    try:
        fcntl.flock(fd, _AT_ONCE)
        return True
    except BlockingIOError:
        pass
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while True:
        time.sleep(pause)
        try:
            fcntl.flock(fd, _AT_ONCE)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def lock_holder(fd: int) -> int | None:
    """The process that has the open file locked, as far as the kernel tells."""
    status = os.fstat(fd)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and wanted in words:
                return int(words[4]) if int(words[4]) > 0 else None
    return None


class PartitionLock:
    """An exclusive lock on one file. Threads of one process must take turns by themselves (see `PartitionOwner`)."""

    def __init__(self, path: Path, *, kept: bool = False) -> None:
        """One that is `kept` stays locked until it is closed, for who is alone there anyway: it saves four calls."""
        self.path = path
        self._name = str(path)
        self._fd = open_file(path, os.O_RDWR | os.O_CREAT)
        status = os.fstat(self._fd)
        self._identity = (status.st_dev, status.st_ino)
        self._pid = os.getpid()
        self._kept = kept
        self._held = False
        """True while the lock is held and stays held."""

    def acquire(self, timeout: float) -> None:
        """Take the lock, or raise PartitionBusy after `timeout` seconds."""
        if self._held:
            return
        if self._fd < 0:
            self._fd = self._reopen()
        if not take_lock(self._fd, timeout):
            pid, since = self.holder() or (None, None)
            held = max(time.time() - since, 0.0) if since else None
            raise PartitionBusy(self.path.parent, pid, held, timeout)
        try:
            self.check_present()
        except BaseException:
            self.release()
            raise
        with suppress(OSError):  # a courtesy to those who wait, which a full disk may refuse
            os.pwrite(self._fd, _HOLDER.pack(self._pid, time.time()), 0)
        self._held = self._kept

    def _reopen(self) -> int:
        """The file again, after a rest. Whether it is still the same one is checked under the lock."""
        try:
            return open_file(self.path, os.O_RDWR)
        except (FileNotFoundError, NotADirectoryError):
            raise PartitionDeleted(self.path.parent) from None

    def rest(self) -> None:
        """Close the file until the lock is taken again. For one that is kept, that lets others have it."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._held = False

    def check_present(self) -> None:
        """Raise unless the file is still the one on the path: a partition deleted and made again is another one."""
        try:
            status = os.stat(self._name)
        except FileNotFoundError:
            raise PartitionDeleted(self.path.parent) from None
        if (status.st_dev, status.st_ino) != self._identity:
            raise PartitionDeleted(self.path.parent)

    def release(self) -> None:
        """Let the next one in, unless it is kept."""
        if not self._held:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def holder(self) -> tuple[int, float] | None:
        """The pid of the last holder, and since when it had the lock; it may have let go in the meantime."""
        content = os.pread(self._fd, _HOLDER.size, 0)
        return _HOLDER.unpack(content) if len(content) == _HOLDER.size else None

    def close(self) -> None:
        """Give the descriptor back. In a forked child this leaves the parent's lock alone, as unlocking would not."""
        self.rest()
