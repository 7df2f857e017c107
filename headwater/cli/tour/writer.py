"""A writer of the tour, in a process of its own: it appends, and says on standard output what was acknowledged.

Its arguments are the directory, its number, how many frames to append, in how many seconds at most, and perhaps one of
`halfway` and `unpublished`: then it is rigged to die by SIGKILL at that moment of its last append. A line
`acknowledged FIRST COUNT BASE_OFFSET` is written after an append has returned; a line `recovered REPORT` when this
writer has cleaned up after a dead one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from headwater.core.config import PartitionConfig
from headwater.log import DirectoryPartition, Disk, encode

RECORDS: Final = 50
"""Records per frame."""
RECORD_BYTES: Final = 100
NUMBER_DIGITS: Final = 12
CONFIG: Final = PartitionConfig(segment_bytes=16 * 1024 * 1024)


class DyingDisk(Disk):
    """A disk whose user dies at a chosen moment, once it is armed."""

    moment: str | None = None

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        """Half of the bytes, and then the end."""
        if self.moment == "halfway":
            content = b"".join(buffers)
            os.pwrite(fd, content[: len(content) // 2], position)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pwritev(fd, buffers, position)

    def sync(self, fd: int) -> None:
        """All of the bytes, safe on the device, and the end before anyone is told."""
        super().sync(fd)
        if self.moment == "unpublished":
            os.kill(os.getpid(), signal.SIGKILL)


def key_of(writer: int) -> bytes:
    """The key of all records of a writer."""
    return b"writer-%d" % writer


def value_of(number: int) -> bytes:
    """The value of a writer's record: its number, and filling."""
    return b"%0*d " % (NUMBER_DIGITS, number) + b"." * (RECORD_BYTES - NUMBER_DIGITS - 1)


def main(arguments: Sequence[str]) -> None:
    """Append until the frames are used up, or until the end."""
    directory, writer, frames = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    disk = DyingDisk()
    keys = [key_of(writer)] * RECORDS
    with DirectoryPartition(directory, CONFIG, disk=disk) as partition:
        reported = 0
        deadline = time.monotonic() + float(arguments[3])
        for first in range(0, frames * RECORDS, RECORDS):
            if time.monotonic() > deadline:
                break
            if len(arguments) > 4 and first == (frames - 1) * RECORDS:
                disk.moment = arguments[4]
            appended = partition.append(encode([value_of(first + i) for i in range(RECORDS)], keys=keys))
            _say(f"acknowledged {first} {RECORDS} {appended.base_offset}")
            reports = partition.recovery_reports
            for report in reports[reported:]:
                _say(f"recovered {str(report).partition(': ')[2]}")
            reported = len(reports)


def _say(line: str) -> None:
    os.write(sys.stdout.fileno(), line.encode() + b"\n")
