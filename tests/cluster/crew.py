"""Those who use a cluster while its brokers fail: writers and readers that are told of nothing, and what they find."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Final

import headwater as hw
from headwater.streams.catalog import TopicInfo
from tests.cluster.cluster import PATIENCE, ClusterProcesses
from tests.faults.violation import Kind, Violation
from tests.support.patience import Patience, has_finished

TOPIC: Final = "numbers"
IMPATIENT: Final = hw.ClientConfig(attempt_timeout=3.0)
"""Clients that soon take a broker for dead that says nothing: then tests need not wait until they do."""

Position = tuple[int, int]
"""A partition and an offset."""


class Writer(threading.Thread):
    """Sends numbers, one after the other, and notes where each was acknowledged."""

    def __init__(self, name: str, address: str, seed: int, client: hw.ClientConfig, pace: float = 0.0) -> None:
        """It rests so many seconds between batches."""
        super().__init__(name=name, daemon=True)
        self._address = address
        self._client = client
        self._pace = pace
        self._random = random.Random(seed)
        self.ended = threading.Event()
        self.sent = 0
        self.acknowledged: dict[bytes, Position] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with hw.open(self._address, client=self._client) as store, store.producer(TOPIC) as out:
                while not self.ended.is_set():
                    receipts = {}
                    for _ in range(self._random.randint(1, 20)):
                        value = b"%s %d" % (self.name.encode(), self.sent)
                        self.sent += 1
                        receipts[value] = out.send(value, key=b"%d" % self._random.randrange(100))
                    out.flush()
                    self.acknowledged |= {
                        value: (receipt.partition, receipt.offset) for value, receipt in receipts.items()
                    }
                    time.sleep(self._pace)
        except BaseException as error:  # noqa: BLE001 - it is told by the check
            self.error = error


class Reader(threading.Thread):
    """Reads everything, from the beginning on, and notes what it saw, in the order in which it did."""

    def __init__(self, name: str, address: str, client: hw.ClientConfig) -> None:
        super().__init__(name=name, daemon=True)
        self._address = address
        self._client = client
        self.ended = threading.Event()
        self.seen: list[tuple[Position, bytes]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with hw.open(self._address, client=self._client) as store, store.consumer(TOPIC) as inbox:
                while not self.ended.is_set():
                    for record in inbox.poll(timeout=0.1):
                        self.seen.append(((record.partition, record.offset), record.value or b""))
        except BaseException as error:  # noqa: BLE001
            self.error = error


class Crew:
    """Writers and a reader of one topic."""

    def __init__(
        self,
        cluster: ClusterProcesses,
        *,
        partitions: int = 3,
        writers: int = 2,
        seed: int = 0,
        client: hw.ClientConfig = IMPATIENT,
        pace: float = 0.0,
        sync: str | float = "always",
    ) -> None:
        self._cluster = cluster
        with hw.open(cluster.address) as store:
            store.create_topic(TOPIC, partitions=partitions, segment_bytes=64 * 1024, sync=sync)
        self.writers = [
            Writer(f"writer{number}", cluster.address, seed + number, client, pace) for number in range(writers)
        ]
        self.reader = Reader("reader", cluster.address, client)
        for thread in (*self.writers, self.reader):
            thread.start()

    def go_on(self, more: int = 50) -> Iterator[Violation]:
        """Wait until everyone has got so much more done, whatever has happened."""
        before = self._done()
        patience = Patience(PATIENCE)
        while not patience.exhausted():
            if self.reader.error is not None or any(writer.error is not None for writer in self.writers):
                return  # the end tells
            if all(now >= was + more for now, was in zip(self._done(), before, strict=True)):
                return
            time.sleep(0.01)
        yield Violation(Kind.BLOCKED, f"done before: {before}, and {PATIENCE:g} s later: {self._done()}")

    def _done(self) -> list[int]:
        return [*(len(writer.acknowledged) for writer in self.writers), len(self.reader.seen)]

    def stop(self) -> Iterator[Violation]:
        """Let everyone end."""
        for writer in self.writers:
            writer.ended.set()
            has_finished(writer, PATIENCE + 60)
        patience = Patience(PATIENCE)
        wanted = {value for writer in self.writers for value in writer.acknowledged}
        while not patience.exhausted() and self.reader.error is None:
            if wanted <= {value for _, value in self.reader.seen}:
                break
            time.sleep(0.1)
        self.reader.ended.set()
        has_finished(self.reader, PATIENCE)
        crew: list[Writer | Reader] = [*self.writers, self.reader]
        for member in crew:
            if member.is_alive():
                yield Violation(Kind.BLOCKED, f"{member.name} does not end")
            if member.error is not None:
                yield Violation(Kind.CRASH, f"{member.name}: {type(member.error).__name__}: {member.error}")

    def check(self) -> Iterator[Violation]:
        """Stop everyone; then look at everything."""
        yield from self.stop()
        with hw.open(self._cluster.address) as store:
            info = store.describe_topic(TOPIC)
            records = [
                ((number, record.offset), record.value or b"")
                for number in range(info.partitions)
                for record in store.partition(info, number).records()
            ]
        yield from self._check_log(dict(records))
        yield from self._check_reader(records)
        yield from self._check_copies(info)

    def _check_log(self, records: dict[Position, bytes]) -> Iterator[Violation]:
        positions: dict[bytes, Position] = {}
        last: dict[tuple[int, bytes], int] = {}
        sent = {writer.name.encode(): writer.sent for writer in self.writers}
        for position, value in records.items():
            name, number = value.split()
            if name not in sent or int(number) >= sent[name]:
                yield Violation(Kind.UNSEEN, f"{value!r} at {position} was never sent")
            if value in positions:
                yield Violation(Kind.DUPLICATE, f"{value!r} is at {positions[value]} and at {position}")
            positions[value] = position
            if int(number) < last.get((position[0], name), -1):
                yield Violation(Kind.REORDERED, f"{value!r} at {position} comes behind a later one")
            last[position[0], name] = int(number)
        for writer in self.writers:
            for value, position in writer.acknowledged.items():
                if positions.get(value) != position:
                    yield Violation(
                        Kind.LOST_WRITE, f"{value!r} was acknowledged at {position}: {positions.get(value)}"
                    )

    def _check_reader(self, records: list[tuple[Position, bytes]]) -> Iterator[Violation]:
        log = dict(records)
        after: dict[int, int] = {}
        for (partition, offset), value in self.reader.seen:
            if log.get((partition, offset)) != value:
                yield Violation(Kind.DIVERGED, f"a reader saw {value!r} at {partition}/{offset}, which is not there")
            if offset != after.get(partition, 0):
                yield Violation(Kind.SKIPPED_BY_POLL, f"{partition}/{offset} came after {after.get(partition, 0)}")
            after[partition] = offset + 1

    def _check_copies(self, info: TopicInfo) -> Iterator[Violation]:
        """In the end all replicas are in sync, and have the same records at the same offsets."""
        cluster = self._cluster
        holders = {number: set(cluster.partition(TOPIC, number).replicas) for number in range(info.partitions)}
        for number, brokers in holders.items():
            cluster.wait(TOPIC, number, in_sync=brokers)
            copies = cluster.wait_for_copies(TOPIC, number)
            first, expected = next(iter(copies.items()))
            for broker, copy in copies.items():
                if copy != expected:
                    differing = sorted(set(copy) ^ set(expected))[:3]
                    yield Violation(Kind.DIVERGED, f"brokers {first} and {broker} differ in {number}: {differing}")
