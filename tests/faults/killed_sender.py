"""A process that sends through a producer is killed mid-append: the store's other producers and consumers go on."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Disk
from tests.faults import Kind, Run, Violation, proof
from tests.faults.children import TimedDisk, failures
from tests.faults.killed_holder import outlive
from tests.faults.streams import STORE, TOPIC, WAYS, Reader, Sender, verify

PARTITIONS = 2


@proof(row=13, title="a producer that holds the lock is killed: the others go on in < 1 s", runs=1000, quick=15)
def killed_sender(run: Run) -> Iterator[Violation]:
    """Send and consume at the moment of the death, and go on with what the dead one had yet to send."""

    def hold(disk: Disk, random: Random) -> None:
        sender = Sender(DirectoryStore(path, disk=disk).producer(TOPIC), "holder", run.directory, random, 0, WAYS)
        while True:
            sender.step()

    def step() -> None:
        sender.step()
        reader.poll()

    path = run.directory / STORE
    timed = TimedDisk()
    with DirectoryStore(path, disk=timed) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, segment_bytes=8 * 1024, index_interval=1024)
        sender = Sender(store.producer(TOPIC), "other", run.directory, run.random, 0, WAYS)
        reader = Reader(store, "reader", run.directory, run.random)
        step()
        yield from outlive(run, hold, step, timed)
        Sender(store.producer(TOPIC), "holder", run.directory, run.random).step()
        while reader.poll():
            pass
        if any(reader.lag().values()):
            yield Violation(Kind.SKIPPED_BY_POLL, f"nothing more to read, and the lag is {reader.lag()}")
    yield from failures(run.directory)
    yield from verify(run.directory)
