"""Disks for tests."""

from __future__ import annotations

from pathlib import Path

from headwater.log.files.disk import Disk


class HastyDisk(Disk):
    """A disk that syncs nothing, for where nobody loses power."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass
