"""Row 10: the disk fills up in the middle of things, and writing goes on when there is room again.

Where a small file system can be mounted, every other run has one, and a file on it takes the room away. In the others
the disk counts bytes, and so fills up in the middle of a write.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.core.errors import HeadwaterError, OpenFailed, WriteFailed
from headwater.log import Disk
from headwater.testing import FailingDisk
from tests.faults.expected import Expected
from tests.faults.proof import Run, proof
from tests.faults.verification import UnsyncedDisk, Verification
from tests.faults.violation import Kind, Violation
from tests.faults.workload import Event, Failed, Workload

ACTIONS = 40
MOUNT_BYTES = 1024 * 1024

GiveRoom = Callable[[int | None], None]
"""Leave room for about so many bytes; for all there is, when it is None."""


@proof(row=10, title="ENOSPC in the middle of a batch, space freed later, writing goes on", runs=200, quick=40)
def disk_full(run: Run) -> Iterator[Violation]:
    """There is a little room, then none, then a little more, as chance has it, and in the end enough."""
    if run.number % 2 == 0 and os.geteuid() == 0:
        with _mounted(run.directory / "small") as root:
            yield from _fill(run, root, UnsyncedDisk(), _ballast(root / "ballast"))
    else:
        disk = FailingDisk(UnsyncedDisk())

        def give(size: int | None) -> None:
            disk.room = size

        yield from _fill(run, run.directory, disk, give)


def _fill(run: Run, root: Path, disk: Disk, give: GiveRoom) -> Iterator[Violation]:
    events: list[Event] = []
    workload = Workload(root / "partition", disk, run.random, events.append, raised=(HeadwaterError,))
    workload.run(5)
    give(run.random.randint(0, 30_000))
    for _ in range(4):
        workload.run(ACTIONS // 4)
        give(run.random.randint(0, 30_000))
    give(None)
    workload.run(3)
    for event in events[-6:]:
        if isinstance(event, Failed):
            yield Violation(Kind.BLOCKED, f"with room again, {event.action.kind.value} is refused: {event.error}")
    for event in events:
        if isinstance(event, Failed) and not _says_full(event.error):
            yield Violation(Kind.CRASH, f"{event.action.kind.value} on a full disk: {event.error!r}")
    yield from Verification(root / "partition", Expected.after(events), run.random).run()


def _says_full(error: Exception) -> bool:
    return isinstance(error, WriteFailed | OpenFailed) and error.errno == errno.ENOSPC


@contextmanager
def _mounted(path: Path) -> Iterator[Path]:
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={MOUNT_BYTES}", "headwater", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)


def _ballast(path: Path) -> GiveRoom:
    def give(size: int | None) -> None:
        path.unlink(missing_ok=True)
        if size is not None:
            space = os.statvfs(path.parent)
            path.write_bytes(bytes(max(space.f_bavail * space.f_frsize - size, 0)))

    return give
