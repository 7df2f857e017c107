"""The backends: every test of a partition's behaviour runs on each of them.

A new backend is one more entry in `BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol

from headwater import PartitionConfig
from headwater.log import Clock, DirectoryPartition, Disk, MemoryPartition, Partition
from headwater.log.clock import REAL_CLOCK
from headwater.log.disk import REAL_DISK


def _memory(_: Path, config: PartitionConfig | None, clock: Clock) -> Partition:
    return MemoryPartition(config, clock=clock)


def _directory(path: Path, config: PartitionConfig | None, clock: Clock) -> Partition:
    return DirectoryPartition(path, config, clock=clock)


BACKENDS: Final[dict[str, Callable[[Path, PartitionConfig | None, Clock], Partition]]] = {
    "memory": _memory,
    "directory": _directory,
}


class OpenPartition(Protocol):
    """What the fixture `open_partition` gives: each call opens a new, empty partition."""

    def __call__(self, config: PartitionConfig | None = None, *, clock: Clock = REAL_CLOCK) -> Partition: ...


class OpenDirectory(Protocol):
    """What the fixture `open_directory` gives: each call opens the partition with this name, once more."""

    def __call__(
        self,
        config: PartitionConfig | None = None,
        *,
        name: str = "log",
        disk: Disk = REAL_DISK,
        clock: Clock = REAL_CLOCK,
    ) -> DirectoryPartition: ...


@contextmanager
def temporary(backend: str, config: PartitionConfig | None = None, *, clock: Clock = REAL_CLOCK) -> Iterator[Partition]:
    """A new partition that is gone after the block: for tests in which Hypothesis needs many."""
    with TemporaryDirectory() as directory, BACKENDS[backend](Path(directory) / "log", config, clock) as partition:
        yield partition
