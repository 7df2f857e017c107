"""A disk that remembers everything that was done to it, and rebuilds what a power loss would have left."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from random import Random
from typing import Any

from headwater.log.files.disk import Disk
from headwater.testing.device import Device, write_image
from headwater.testing.trace import (
    Created,
    DirectoryCreated,
    DirectorySynced,
    Marked,
    Renamed,
    Step,
    Synced,
    SyncFailed,
    Truncated,
    Unlinked,
    Written,
)


class RecordingDisk(Disk):
    """Changes real files below `root` and keeps a trace of it.

    Syncs are noted and not done: what they are worth is decided by the image that is rebuilt, not by the real
    device. Files below `root` at the beginning open the trace, as durable. Thread-safe: steps are in the order in
    which they happened.
    """

    def __init__(self, root: Path) -> None:
        self.trace: list[Step] = []
        self._root = root
        self._mutex = threading.RLock()
        self._serial = itertools.count()
        # The number of each file by its inode. A new name stands for a new file, even if its inode was used before.
        self._files: dict[int, int] = {}
        self._trace_what_is_there(PurePath())

    def _trace_what_is_there(self, directory: PurePath) -> None:
        for path in sorted((self._root / directory).iterdir()):
            relative = directory / path.name
            if path.is_dir():
                self._record(DirectoryCreated, relative)
                self._trace_what_is_there(relative)
            else:
                file = self._number_new(path.stat().st_ino)
                self._record(Created, relative, file)
                self._record(Written, file, 0, path.read_bytes())
                self._record(Synced, file)
        self._record(DirectorySynced, directory)

    def mark(self, note: object) -> None:
        """Note in the trace what the program knows at this point: an acknowledgement, say."""
        self._record(Marked, note)

    def power_loss(
        self, target: Path, random: Random, *, after: int | None = None, torn: bool = False, reordered: bool = False
    ) -> None:
        """Write into `target`, a new directory, what a power loss right after a step may have left.

        The step is the last one unless `after` says its number. See `Device` for `torn` and `reordered`, and for many
        images from one trace.
        """
        steps = self.trace if after is None else self.trace[: after + 1]
        write_image(Device().follow(steps).image(random, torn=torn, reordered=reordered), target)

    def _record(self, kind: Callable[..., Step], *facts: object) -> None:
        with self._mutex:
            self.trace.append(kind(len(self.trace), *facts))

    def _relative(self, path: Path) -> PurePath:
        return path.relative_to(self._root)

    def _number(self, fd: int) -> int:
        return self._files[os.fstat(fd).st_ino]

    def _number_new(self, inode: int) -> int:
        self._files[inode] = next(self._serial)
        return self._files[inode]

    # The operations of a disk.

    def create(self, path: Path) -> int:
        with self._mutex:
            new = not path.exists()
            fd = super().create(path)
            if new:
                self._record(Created, self._relative(path), self._number_new(os.fstat(fd).st_ino))
            else:
                self._record(Truncated, self._number(fd), 0)
            return fd

    def open_or_create(self, path: Path) -> int:
        with self._mutex:
            return self.open(path) if path.exists() else self.create(path)

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        with self._mutex:
            count = super().pwritev(fd, buffers, position)
            content = b"".join(bytes(memoryview(buffer)) for buffer in buffers)
            self._record(Written, self._number(fd), position, content[:count])
            return count

    def truncate(self, fd: int, size: int) -> None:
        with self._mutex:
            super().truncate(fd, size)
            self._record(Truncated, self._number(fd), size)

    def sync(self, fd: int) -> None:
        self._record(Synced, self._number(fd))

    def fail_sync(self, fd: int) -> None:
        """A sync that failed, as a kernel does it: what it was about is marked clean and never written."""
        self._record(SyncFailed, self._number(fd))

    def sync_directory(self, path: Path) -> None:
        if path.is_relative_to(self._root):  # those above it hold nothing of what is traced but its name
            self._record(DirectorySynced, self._relative(path))

    def rename(self, source: Path, target: Path) -> None:
        with self._mutex:
            super().rename(source, target)
            self._record(Renamed, self._relative(source), self._relative(target))

    def unlink(self, path: Path) -> None:
        with self._mutex:
            if path.exists():
                super().unlink(path)
                self._record(Unlinked, self._relative(path))

    def mkdir(self, path: Path) -> None:
        with self._mutex:
            super().mkdir(path)
            self._record(DirectoryCreated, self._relative(path))
