"""Row 11: writes that do less than they were asked to, and writes that are interrupted."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from random import Random

from headwater.core.errors import HeadwaterError
from headwater.testing import FailingDisk, Failpoint
from tests.faults.expected import Expected
from tests.faults.proof import Run, proof
from tests.faults.verification import UnsyncedDisk, Verification
from tests.faults.violation import Violation
from tests.faults.workload import Event, Workload

ACTIONS = 40
OPERATIONS = 600
"""About as many as a workload needs."""


@proof(row=11, title="short writes, EINTR", runs=500, quick=40)
def short_writes(run: Run) -> Iterator[Violation]:
    """A short write is gone on with; an interrupted one, which Python itself retries, fails and leaves nothing."""
    disk = FailingDisk(UnsyncedDisk(), *(_failpoint(run.random) for _ in range(150)))
    events: list[Event] = []
    workload = Workload(run.directory / "partition", disk, run.random, events.append, raised=(HeadwaterError,))
    workload.run(ACTIONS)
    yield from Verification(run.directory / "partition", Expected.after(events), run.random).run()


def _failpoint(random: Random) -> Failpoint:
    """One write, by its number, or several in a row."""
    first = random.randint(1, OPERATIONS)
    if random.random() < 0.2:
        return Failpoint(operation="pwritev", number=first, error=errno.EINTR)
    return Failpoint(operation="pwritev", number=first, part=random.choice((1, 7, 111, 112, 113, 512, 4095)))
