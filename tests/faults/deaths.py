"""Deaths: every place at which a program that changes files can die."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from headwater.testing import FailingDisk
from tests.faults.verification import UnsyncedDisk


class Death(NamedTuple):
    """Before which operation of which workload; a write may have been done in part."""

    workload: int
    number: int
    part: int


def every_death(workloads: int, perform: Callable[[int, Path, FailingDisk], None]) -> list[Death]:
    """Every operation of every workload; and every write once more, in the middle of it.

    `perform` does a workload to its end, in a directory, through a disk that counts.
    """
    found: list[Death] = []
    for workload in range(workloads):
        disk = FailingDisk(UnsyncedDisk())
        with tempfile.TemporaryDirectory(prefix="headwater-deaths-") as directory:
            perform(workload, Path(directory), disk)
        for number, done in enumerate(disk.operations, start=1):
            found.append(Death(workload, number, 0))
            if done.size > 1:
                found.append(Death(workload, number, Random(number).randrange(1, done.size)))
    return found
