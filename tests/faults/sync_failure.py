"""Row 9: the device fails a sync. Nobody is told that it worked, and nothing goes on as if it had.

After a failed sync a kernel calls the pages clean: a second sync would succeed and mean nothing. So what was
acknowledged is checked not in the kernel's memory but in images of the device, where those pages may be missing.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from headwater.core.errors import HeadwaterError, PartitionPoisoned
from headwater.log import DirectoryPartition, Disk, encode
from headwater.testing import Device, FailingDisk, Failpoint, RecordingDisk, write_image
from headwater.testing.failpoints import Operation
from tests.faults.checker import check
from tests.faults.expected import Expected
from tests.faults.power_loss import events
from tests.faults.proof import Run, proof
from tests.faults.verification import UnsyncedDisk, Verification
from tests.faults.violation import Kind, Violation
from tests.faults.workload import Workload, config

SENDERS = 4
APPENDS = 60
IMAGES = 4
ACTIONS = 30


class SlowDisk(FailingDisk):
    """Takes its time to sync, so that senders gather behind the one that does, and to say that it failed."""

    def sync(self, fd: int) -> None:
        try:
            super().sync(fd)
            time.sleep(0.0005)
        except OSError:
            time.sleep(0.01)
            raise


class Sender(threading.Thread):
    """Appends until it is refused, and then once more. Where appends are not durable by themselves, it syncs each."""

    def __init__(self, partition: DirectoryPartition, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.sent: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.refusals: list[Exception] = []
        self._partition = partition

    def run(self) -> None:
        for number in range(APPENDS):
            self.send(self._partition, b"%s %d" % (self.name.encode(), number))
            if len(self.refusals) == 2:
                return

    def send(self, partition: DirectoryPartition, value: bytes) -> None:
        """Append one record and remember what came of it."""
        self.sent.append(value)
        try:
            partition.append(encode([value + b" " * 2000]))
            if partition.config.sync == "never":
                partition.sync()
            self.acknowledged.append(value)
        except Exception as error:  # noqa: BLE001 - which errors are right is for the proof to say
            self.refusals.append(error)


@proof(
    row=9, title="EIO on the Nth sync: fail-stop, every waiting sender told, never a false success", runs=50, quick=12
)
def sync_failure(run: Run) -> Iterator[Violation]:
    """Once under several senders, where the growing segment's sync fails; once under everything, where any may."""
    yield from _while_sending(run)
    yield from _while_working(run)


def _while_sending(run: Run) -> Iterator[Violation]:
    root = run.directory / "sending"
    root.mkdir()
    recording = RecordingDisk(root)
    failing = Failpoint(operation="sync", path=lambda path: path.suffix == ".log", skip=run.number, error=errno.EIO)
    settings = config("always" if run.number % 2 == 0 else "never")
    partition = DirectoryPartition(root / "partition", settings, disk=SlowDisk(recording, failing))
    other = DirectoryPartition(root / "partition", settings, disk=recording)
    senders = [Sender(partition, f"sender {number}") for number in range(SENDERS)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    if failing.times:
        yield Violation(Kind.CRASH, f"there were fewer than {run.number + 1} syncs: nothing was proved")
    for sender in senders:
        yield from _told(sender)
    yield from _refuses(partition, "the handle whose sync failed")
    yield from _refuses(other, "another handle")
    yield from _checked_on_images(run, recording, senders, "failed")

    late = Sender(partition, "late")
    with DirectoryPartition(root / "partition", config(), disk=recording) as reopened:
        yield from _refuses(partition, "the handle whose sync failed, after another was opened,")
        for number in range(5):
            late.send(reopened, b"late %d" % number)
    for refusal in late.refusals:
        yield Violation(Kind.BLOCKED, f"an append after reopening is refused: {refusal!r}")
    for handle in (partition, other):
        handle.close()
    yield from _checked_on_images(run, recording, [*senders, late], "reopened")
    yield from _checked(root / "partition", [*senders, late])


def _told(sender: Sender) -> Iterator[Violation]:
    if len(sender.refusals) != 2 or len(sender.sent) != len(sender.acknowledged) + 2:
        yield Violation(Kind.FALSE_SUCCESS, f"{sender.name} was refused {len(sender.refusals)} times after the failure")
    for refusal in sender.refusals:
        if not isinstance(refusal, PartitionPoisoned):
            yield Violation(Kind.CRASH, f"{sender.name} was told {refusal!r}, not that the partition is poisoned")


def _refuses(partition: DirectoryPartition, who: str) -> Iterator[Violation]:
    try:
        partition.append(encode([b"too late"]))
        yield Violation(Kind.FALSE_SUCCESS, f"{who} goes on appending")
    except PartitionPoisoned:
        pass


def _checked_on_images(run: Run, disk: RecordingDisk, senders: list[Sender], name: str) -> Iterator[Violation]:
    device = Device().follow(disk.trace)
    for number in range(IMAGES):
        image = run.directory / f"{name} {number}"
        write_image(device.image(run.random, data="oldest" if number == 0 else None), image)
        yield from _checked(image / "partition", senders)


def _checked(directory: Path, senders: list[Sender]) -> Iterator[Violation]:
    with DirectoryPartition(directory, config(), disk=UnsyncedDisk()) as partition:
        read = [record.value.rstrip() for record in partition.records()]
    acknowledged = {sender.name: sender.acknowledged for sender in senders}
    yield from check(acknowledged, read, {sender.name: sender.sent for sender in senders})


def _while_working(run: Run) -> Iterator[Violation]:
    """A workload that closes and reopens whenever it is told of poison, then an image of the device at its end."""
    root = run.directory / "working"
    root.mkdir()
    recording = RecordingDisk(root)
    operation: Operation = run.random.choice(("sync", "sync", "sync_directory"))
    disk: Disk = FailingDisk(recording, Failpoint(operation=operation, skip=run.number, error=errno.EIO))
    workload = Workload(root / "partition", disk, run.random, recording.mark, raised=(HeadwaterError,))
    workload.run(ACTIONS)
    expected = Expected.after(events(recording.trace))
    write_image(Device().follow(recording.trace).image(run.random), run.directory / "worked")
    yield from Verification(run.directory / "worked" / "partition", expected, run.random, power_loss=True).run()
