"""Opening a partition after a fault: did it keep its promises, and is it fit to go on?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from headwater.core.errors import HeadwaterError
from headwater.log import DirectoryPartition, Disk
from headwater.testing import ManualClock
from tests.faults.expected import Batch, Expected, Log
from tests.faults.violation import Kind, Violation
from tests.faults.workload import Action, Sent, config
from tests.faults.workload import Kind as Do

SURELY_REMEMBERED = 5
"""So many of a producer's last appends are known as duplicates when they are sent again."""


class UnsyncedDisk(Disk):
    """For files on whose syncs nothing hangs, as no power is lost: they would cost most of the time."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


@dataclass(slots=True)
class Verification:
    """Reads everything back, sends again what may be sent again, goes on, and reads everything back once more."""

    directory: Path
    expected: Expected
    random: Random
    power_loss: bool = False
    """True if what was published and not durable may be gone, from some append on."""
    disk: Disk = field(default_factory=UnsyncedDisk)
    clock: ManualClock = field(default_factory=ManualClock)

    def run(self) -> Iterator[Violation]:
        """Everything that is wrong."""
        yield from self.expected.violations
        with self._open() as partition:
            for report in partition.recovery_reports:
                for damage in report.damage:
                    yield Violation(Kind.LOST_WRITE, f"recovery reports damage: {damage}")
            log = self._which(partition)
            yield from self._read(partition, log)
            for batch, there in self._batches(log):
                yield from self._retry(partition, log, batch, there)
            yield from self._go_on(partition, log)
        with self._open() as partition:
            yield from self._read(partition, log)

    def _open(self) -> DirectoryPartition:
        return DirectoryPartition(self.directory, config(), disk=self.disk, clock=self.clock)

    def _which(self, partition: DirectoryPartition) -> Log:
        """The log that is there, or the one that is nearest to it."""
        bounds = partition.bounds()
        read = list(partition.records()) if bounds.start <= bounds.end else []
        possible = self.expected.possible(self.power_loss)
        log = min(possible, key=lambda log: len(list(log.compare(bounds, read)))).copy()
        if bounds.start in log.starts:
            log.starts = range(bounds.start, bounds.start + 1)
        return log

    def _read(self, partition: DirectoryPartition, log: Log) -> Iterator[Violation]:
        read = list(partition.records())
        yield from log.compare(partition.bounds(), read)
        for record in self.random.sample(read, min(len(read), 3)):
            found = next(partition.records(record.offset), None)
            if found != record:
                yield Violation(Kind.LOST_WRITE, f"reading from {record.offset} begins with {found!r:.60}")

    def _batches(self, log: Log) -> list[tuple[Batch, bool]]:
        """Appends to send again, and whether they are there: the last ones of each producer, and those that were lost.

        Truncated appends are not lost. Their producers would have to start anew.
        """
        last: Counter[bytes] = Counter()
        there: list[tuple[Batch, bool]] = []
        for batch in reversed(log.batches):
            assert batch.action.identity is not None
            last[batch.action.identity.producer_id] += 1
            if batch.action.identity.forever or last[batch.action.identity.producer_id] <= SURELY_REMEMBERED:
                there.insert(0, (batch, True))
        under_way = self.expected.under_way
        if len(self.expected.logs) > 1 or (under_way is not None and under_way.action.kind is Do.TRUNCATE):
            return there
        known = [batch.action for batch in log.batches]
        sent = [batch.action for batch in self.expected.logs[0].batches]
        if under_way is not None and under_way.action.identity is not None:
            sent.append(under_way.action)
        return there + [(Batch(action, -1, -1), False) for action in sent if action not in known]

    def _retry(self, partition: DirectoryPartition, log: Log, batch: Batch, there: bool) -> Iterator[Violation]:
        """Append a batch again: it must be recognised if it is there, and appended if it was lost."""
        identity = batch.action.identity
        assert identity is not None
        appended = partition.append(batch.action.encoded(self.clock.now_ns()))
        if there != appended.duplicate:
            kind = Kind.DUPLICATE if there else Kind.FALSE_SUCCESS
            yield Violation(
                kind, f"{identity}, {f'at {batch.base}' if there else 'not there'}: sent again, it is {appended}"
            )
        elif there and not identity.forever and appended[:2] != (batch.base, batch.end):
            yield Violation(Kind.FALSE_SUCCESS, f"{identity}, at {batch.base}, is said to be at {appended}")
        if not appended.duplicate:
            log.place(batch.action)

    def _go_on(self, partition: DirectoryPartition, log: Log) -> Iterator[Violation]:
        for number in range(3):
            action = Action(Do.APPEND, ((Sent(b"afterwards %d" % number, None),),) * (number + 1))
            try:
                appended = partition.append(action.encoded(self.clock.now_ns()))
            except HeadwaterError as error:
                yield Violation(Kind.BLOCKED, f"an append after the fault is refused: {error}")
                return
            if appended.base_offset != log.end:
                yield Violation(Kind.REORDERED, f"an append after the fault is at {appended}, not at {log.end}")
            log.place(action)
        yield from self._read(partition, log)
