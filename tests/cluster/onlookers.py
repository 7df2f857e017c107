"""Onlookers watch that reads never go back: they ask every broker, and compare each answer with all before it.

A record that was acknowledged, or that anybody has read, is there for every read that begins afterwards, whichever
broker answers the read and in whichever way. A broker may answer that it cannot tell; it may not tell less.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import grpc

import headwater as hw
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error
from headwater.wire.service import Stub
from tests.cluster.cluster import PATIENCE, ClusterProcesses
from tests.faults.violation import Kind, Violation
from tests.support.patience import Patience, has_finished

TOPIC: Final = "letters"
_PATIENT: Final = hw.ClientConfig(attempt_timeout=3.0, timeout=600.0)
_ASKING: Final = 2.0
_REST: Final = 0.01


class Known:
    """The end of the partition, as far as anybody was told of it. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._end = 0
        self.violations: list[Violation] = []

    @property
    def end(self) -> int:
        return self._end

    def told(self, end: int) -> None:
        """Somebody was acknowledged, or has read, everything before this offset."""
        with self._mutex:
            self._end = max(self._end, end)

    def answered(self, before: int, end: int, who: str) -> None:
        """A read that began when `before` was known has shown everything up to `end`."""
        if end < before:
            with self._mutex:
                detail = f"{who} ends at {end}, and before it was asked {before} was known"
                self.violations.append(Violation(Kind.READ_WENT_BACK, detail))
        self.told(end)


class _Task(threading.Thread):
    """Does something again and again until it is ended."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.ended = threading.Event()
        self.done = 0
        """The number of times that the task was answered."""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                self.step()
                self.ended.wait(_REST)
        except BaseException as error:  # noqa: BLE001 - it is told by the check
            self.error = error

    def step(self) -> None:
        """Do it once."""
        raise NotImplementedError


class _Writer(_Task):
    """Sends records through a client that never gives up."""

    def __init__(self, address: str, known: Known) -> None:
        super().__init__("writer")
        self._store = hw.open(address, client=_PATIENT)
        self._out = self._store.producer(TOPIC)
        self._known = known

    def step(self) -> None:
        receipt = self._out.send(b"%d" % self.done)
        self._out.flush()
        self._known.told(receipt.offset + 1)
        self.done += 1


class _Client(_Task):
    """Reads through a client, which finds the leader by itself and asks again by itself."""

    def __init__(self, address: str, known: Known) -> None:
        super().__init__("client")
        self._partition = hw.open(address, client=_PATIENT).topic(TOPIC).partition(0)
        self._known = known

    def step(self) -> None:
        before = self._known.end
        self._known.answered(before, self._partition.bounds().end, "a client's bounds()")
        before = self._known.end
        last = max((record.offset for record in self._partition.records(max(before - 1, 0))), default=-1)
        self._known.answered(before, last + 1, "a client's records()")
        self.done += 1


class _Asker(_Task):
    """Asks one broker, whether it leads or not, in the ways in which a broker can be asked."""

    def __init__(self, broker: int, cluster: ClusterProcesses, known: Known, seed: int) -> None:
        super().__init__(f"broker {broker}")
        self._address = cluster.brokers[broker].address
        self._channel = grpc.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._stub: Any = Stub(self._channel)
        self._known = known
        self._random = random.Random(seed)
        self.asked = 0
        """The number of all answers, also of those that say that the broker cannot tell."""

    def step(self) -> None:
        before = self._known.end
        way = self._random.choice([self._by_offsets, self._by_fetch, self._by_time])
        try:
            end = way(before)
        except grpc.RpcError:
            self.ended.wait(0.1)  # it is dead, or stopped, or cut off
            return
        self.asked += 1
        if end is not None:
            self.done += 1
            self._known.answered(before, end, f"{self.name}, asked {way.__name__.replace('_', ' ').strip()},")

    def _partition(self) -> pb.TopicPartition:
        return pb.TopicPartition(topic=TOPIC, partition=0)

    def _by_offsets(self, _: int) -> int | None:
        answer = self._stub.ListOffsets(pb.ListOffsetsRequest(partitions=[self._partition()]), timeout=_ASKING)
        return self._end(answer.partitions[0])

    def _by_fetch(self, before: int) -> int | None:
        position = pb.FetchPosition(partition=self._partition(), offset=max(before - 1, 0))
        answer = self._stub.Fetch(pb.FetchRequest(positions=[position], as_records=True), timeout=_ASKING)
        partition: pb.FetchedPartition = answer.partitions[0]
        if self._end(partition) is None:
            return None
        return partition.records[-1].offset + 1 if partition.records else min(partition.log_end, max(before - 1, 0))

    def _by_time(self, before: int) -> int | None:
        """The records of all times: the first of them is there, as soon as one is known."""
        request = pb.ListOffsetsRequest(partitions=[self._partition()], timestamp_ns=1)
        partition: pb.PartitionOffsets = self._stub.ListOffsets(request, timeout=_ASKING).partitions[0]
        if self._end(partition) is None:
            return None
        return partition.log_end if partition.HasField("offset_at") or not before else 0

    def _end(self, partition: pb.PartitionOffsets | pb.FetchedPartition) -> int | None:
        """Return the end of the log, or None if the broker says that it cannot tell. Raise any other error."""
        if not partition.HasField("error"):
            return partition.log_end
        error = unpack_error(partition.error)
        if not isinstance(error, hw.NotLeader | hw.UnknownTopic):
            raise error
        return None


class Onlookers:
    """A writer of one partition, and readers of all kinds."""

    def __init__(self, cluster: ClusterProcesses, seed: int = 0) -> None:
        self.known = Known()
        with hw.open(cluster.address) as store:
            store.create_topic(TOPIC)
        cluster.wait(TOPIC, in_sync={0, 1, 2})
        self.writer = _Writer(cluster.address, self.known)
        self.client = _Client(cluster.address, self.known)
        self.askers = {broker: _Asker(broker, cluster, self.known, seed + broker) for broker in cluster.brokers}
        for thread in self._all():
            thread.start()

    def _all(self) -> list[_Task]:
        return [self.writer, self.client, *self.askers.values()]

    def go_on(self, more: int = 20) -> Iterator[Violation]:
        """Wait until so much more was acknowledged, and read through a client."""
        before = self.writer.done, self.client.done
        patience = Patience(PATIENCE)
        while not patience.exhausted():
            if self._failed() or (self.writer.done >= before[0] + more and self.client.done >= before[1] + more):
                return
            time.sleep(0.01)
        now = self.writer.done, self.client.done
        yield Violation(Kind.BLOCKED, f"written and read before: {before}, and {PATIENCE:g} s later: {now}")

    def wait_for_questions(self, broker: int, more: int = 20) -> None:
        """Wait until a broker has answered so many questions more, however it did."""
        asker = self.askers[broker]
        before, patience = asker.asked, Patience(PATIENCE)
        while asker.asked < before + more:
            assert asker.error is None, asker.error
            assert not patience.exhausted(), f"{asker.name} does not answer"
            time.sleep(0.01)

    def _failed(self) -> bool:
        return bool(self.known.violations) or any(thread.error is not None for thread in self._all())

    def check(self) -> Iterator[Violation]:
        """End everyone, and tell what was wrong."""
        for thread in self._all():
            thread.ended.set()
        for thread in self._all():
            has_finished(thread, PATIENCE)
            if thread.is_alive():
                yield Violation(Kind.BLOCKED, f"{thread.name} does not end")
            if thread.error is not None:
                yield Violation(Kind.CRASH, f"{thread.name}: {type(thread.error).__name__}: {thread.error}")
        yield from self.known.violations
