"""Ctrl-C in the middle of an append: it has happened or it has not, and the partition goes on."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headwater import PartitionError
from headwater.core.config import PartitionConfig
from headwater.log import DirectoryPartition, encode
from tests.faults.verification import UnsyncedDisk

CONFIG = PartitionConfig(segment_bytes=4096)
VALUE = b"v" * 1500


class RaisingDisk(UnsyncedDisk):
    """Raises after an operation: it was done, and whoever asked for it does not know."""

    def __init__(self, error: BaseException | None = None, number: int = 0) -> None:
        self.error = error
        self.left = number
        """After how many operations it raises; 0 is the next write of the state."""

    def _done(self) -> None:
        self.left -= 1
        if self.left == 0 and self.error is not None:
            raise self.error

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._done()
        return fd

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        written = super().pwritev(fd, buffers, position)
        if self.left <= 0 and self.error is not None and os.readlink(f"/proc/self/fd/{fd}").endswith("/state"):
            error, self.error = self.error, None
            raise error
        self._done()
        return written

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._done()

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._done()

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._done()

    def close(self, fd: int) -> None:
        super().close(fd)
        self._done()


def values(partition: DirectoryPartition) -> list[bytes]:
    return [record.value for record in partition.records()]


def test_an_interruption_right_after_the_publication_takes_nothing_back(tmp_path: Path) -> None:
    disk = RaisingDisk()
    with DirectoryPartition(tmp_path, disk=disk) as partition:
        partition.append(encode([b"one"]))
        disk.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            partition.append(encode([b"two"]))
        assert values(partition) == [b"one", b"two"]
        assert partition.append(encode([b"three"])).base_offset == 2
    with DirectoryPartition(tmp_path) as partition:
        assert values(partition) == [b"one", b"two", b"three"]
        assert partition.recovery_reports == []


def test_a_write_that_fails_when_all_of_it_was_done_has_succeeded(tmp_path: Path) -> None:
    disk = RaisingDisk()
    with DirectoryPartition(tmp_path, disk=disk) as partition:
        disk.error = OSError(errno.ENOSPC, "full in the last byte, which was the same before")
        assert partition.append(encode([b"one"])).base_offset == 0
        assert values(partition) == [b"one"]
    with DirectoryPartition(tmp_path) as partition:
        assert values(partition) == [b"one"]
        assert partition.recovery_reports == []


def test_those_whose_append_was_written_by_the_interrupted_thread_are_told_the_truth(tmp_path: Path) -> None:
    """Threads that retry what they are told has failed: nothing is there twice."""
    disk = RaisingDisk()
    with DirectoryPartition(tmp_path, disk=disk) as partition:

        def append(name: int) -> None:
            for number in range(50):
                while True:
                    try:
                        partition.append(encode([b"%d:%d" % (name, number)]))
                        break
                    except KeyboardInterrupt:
                        break  # whose append has happened: the interruption comes after the publication
                    except PartitionError:
                        continue
                if number % 5 == 0:
                    disk.error = KeyboardInterrupt()

        threads = [threading.Thread(target=append, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stored = values(partition)
    assert sorted(stored) == sorted(b"%d:%d" % (name, number) for name in range(4) for number in range(50))


def test_an_append_interrupted_after_any_operation_leaves_a_partition_that_goes_on(tmp_path: Path) -> None:
    """The append rolls the segment, too."""
    for number in count(1):
        path = tmp_path / str(number)
        disk = RaisingDisk()
        partition = DirectoryPartition(path, CONFIG, disk=disk)
        for _ in range(2):
            partition.append(encode([b"before" + VALUE]))
        disk.error, disk.left = KeyboardInterrupt(), number
        try:
            partition.append(encode([b"interrupted" + VALUE]))
        except KeyboardInterrupt:
            pass
        else:
            assert number > 10, "an append that rolls has more operations than that"
            break
        disk.error = None
        stored = values(partition)
        assert stored[:2] == [b"before" + VALUE] * 2, number
        assert stored[2:] in ([], [b"interrupted" + VALUE]), number
        assert partition.append(encode([b"after"])).base_offset == len(stored), number
        partition.close()
        with DirectoryPartition(path, CONFIG) as again:
            assert values(again) == [*stored, b"after"], number
            assert not any(report.damage for report in again.recovery_reports), number
