"""A cluster of real processes, whose brokers are killed: nothing that was acknowledged is lost, doubled or moved."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.v1 import broker_pb2 as pb
from tests.broker import fetch, frame_of
from tests.cluster.cluster import PATIENCE, ClusterProcesses
from tests.etcd_server import needs_etcd

pytestmark = needs_etcd


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path) as processes:
        yield processes


class Writer(threading.Thread):
    """Sends numbers, one after the other, and notes where each was acknowledged."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._topic = topic
        self._ended = threading.Event()
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with hw.open(self._address) as store, store.producer(self._topic) as out:
                number = 0
                while not self._ended.is_set():
                    sent = {}
                    for _ in range(5):
                        value = b"%d" % number
                        sent[value] = out.send(value, key=value)
                        number += 1
                    out.flush()
                    self.acknowledged |= {value: (one.partition, one.offset) for value, one in sent.items()}
        except BaseException as error:
            self.error = error
            raise

    def wait(self, more: int) -> None:
        """Wait until so many more are acknowledged."""
        wanted, deadline = len(self.acknowledged) + more, time.monotonic() + PATIENCE
        while len(self.acknowledged) < wanted:
            assert self.error is None
            assert time.monotonic() < deadline, "nothing is acknowledged any more"
            time.sleep(0.01)

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE)
        assert not self.is_alive()
        assert self.error is None


def _send(store: hw.Store, value: bytes) -> None:
    with store.producer("numbers") as out:
        out.send(value)


def check(cluster: ClusterProcesses, writer: Writer, topic: str = "numbers") -> None:
    """Readers see what was acknowledged, each once and at its place; in the end all replicas have the same."""
    with hw.open(cluster.address) as store:
        info = store.describe_topic(topic)
        found: dict[bytes, tuple[int, int]] = {}
        for number in range(info.partitions):
            for record in store.partition(info, number).records():
                assert record.value is not None
                assert record.value not in found, f"{record.value!r} is there twice"
                found[record.value] = (number, record.offset)
    lost = {value: place for value, place in writer.acknowledged.items() if found.get(value) != place}
    assert not lost
    brokers = list(cluster.brokers)
    for number in range(info.partitions):
        cluster.wait(topic, number, in_sync=set(brokers))
    time.sleep(1.5)  # until followers have heard of the end of what is acknowledged
    cluster.stop()
    for number in range(info.partitions):
        copies = [cluster.records(broker, topic, number) for broker in brokers]
        assert all(copy == copies[0] for copy in copies)


def test_a_killed_leader_takes_nothing_with_it(cluster: ClusterProcesses) -> None:
    with hw.open(cluster.address) as store:
        store.create_topic("numbers", partitions=3)
    writer = Writer(cluster.address, "numbers")
    writer.start()
    for _ in range(3):
        writer.wait(100)
        leader = cluster.partition("numbers").leader
        cluster.kill(leader)
        writer.wait(100)
        cluster.begin(leader)
        cluster.wait("numbers", in_sync={0, 1, 2})
    writer.end()
    check(cluster, writer)


def test_all_brokers_killed_at_once_lose_nothing(cluster: ClusterProcesses) -> None:
    with hw.open(cluster.address) as store:
        store.create_topic("numbers", partitions=2)
    writer = Writer(cluster.address, "numbers")
    writer.start()
    for _ in range(2):
        writer.wait(100)
        cluster.kill(0, 1, 2)
        cluster.begin(*random.sample(range(3), 3))
        writer.wait(100)
    writer.end()
    check(cluster, writer)


def test_a_paused_leader_is_replaced_and_does_no_harm_when_it_wakes(cluster: ClusterProcesses) -> None:
    with hw.open(cluster.address) as store:
        store.create_topic("numbers")
        _send(store, b"before")
    leader = cluster.partition("numbers").leader
    other = (leader + 1) % 3
    with cluster.brokers[leader].connected() as stub:
        cluster.pause(leader)
        late = stub.Produce.future(
            pb.ProduceRequest(topic="numbers", partition=0, frames=[frame_of(b"late")]), timeout=PATIENCE
        )
        cluster.wait("numbers", in_sync={0, 1, 2} - {leader}, at=other)
        writer = Writer(cluster.address, "numbers")
        writer.start()
        writer.wait(50)
        cluster.go_on(leader)
        assert late.exception(timeout=PATIENCE) is not None, "who was replaced acknowledges nothing"
    cluster.wait("numbers", in_sync={0, 1, 2}, at=other)
    writer.end()
    check(cluster, writer)


def test_readers_see_what_is_acknowledged_and_no_more(cluster: ClusterProcesses) -> None:
    with hw.open(cluster.address) as store:
        store.create_topic("numbers")
        _send(store, b"one")
    found = cluster.partition("numbers")
    others = [broker for broker in range(3) if broker != found.leader]
    with cluster.brokers[found.leader].connected() as stub:
        for broker in others:
            cluster.pause(broker)
        request = pb.ProduceRequest(topic="numbers", partition=0, frames=[frame_of(b"two")], acks=pb.ACKS_LEADER)
        assert stub.Produce(request, timeout=PATIENCE).base_offset == 1
        answer = stub.Fetch(fetch("numbers", as_records=True)).partitions[0]
        assert [record.value for record in answer.records] == [b"one"]
        assert answer.log_end == 1
        for broker in others:
            cluster.go_on(broker)
        answer = stub.Fetch(fetch("numbers", offset=1, as_records=True, max_wait_ms=30_000)).partitions[0]
        assert [record.value for record in answer.records] == [b"two"]


def test_a_topic_made_at_one_broker_is_there_at_all_and_so_is_its_end(cluster: ClusterProcesses) -> None:
    with hw.open(f"hw://{cluster.brokers[0].address}") as store:
        store.create_topic("numbers", partitions=2)
        with pytest.raises(hw.TopicExists):
            store.create_topic("numbers")
    for broker in (1, 2):
        with hw.open(f"hw://{cluster.brokers[broker].address}") as store:
            assert store.describe_topic("numbers").partitions == 2
    with hw.open(f"hw://{cluster.brokers[1].address}") as store:
        store.delete_topic("numbers")
        with pytest.raises(hw.UnknownTopic):
            store.describe_topic("numbers")
    paths = [cluster.directory / f"broker{broker}" / "numbers" for broker in range(3)]
    deadline = time.monotonic() + PATIENCE
    while any(path.exists() for path in paths):
        assert time.monotonic() < deadline, "the records of a deleted topic stay"
        time.sleep(0.05)


def test_a_follower_that_was_away_for_longer_than_records_are_kept_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_STEWARD_INTERVAL", "0.5s")
    with ClusterProcesses(tmp_path) as cluster:
        with hw.open(cluster.address) as store:
            store.create_topic("numbers", segment_bytes=4096, retention_bytes=8192)
            _send(store, b"first")
            away = next(broker for broker in range(3) if broker != cluster.partition("numbers").leader)
            cluster.kill(away)
            with store.producer("numbers") as out:
                for number in range(60):
                    out.send(b"%d" % number * 200)
                    out.flush()
            partition = store.partition(store.describe_topic("numbers"), 0)
            deadline = time.monotonic() + PATIENCE
            while partition.bounds().start == 0:
                assert time.monotonic() < deadline, "nothing is deleted"
                time.sleep(0.05)
            cluster.begin(away)
            cluster.wait("numbers", in_sync={0, 1, 2})
            _send(store, b"last")
            start, end, _ = partition.bounds()
            expected = [(record.offset, record.value) for record in partition.records()]
        assert expected[-1] == (end - 1, b"last")
        time.sleep(2)  # until followers have heard of it
        cluster.stop()
        for broker in range(3):
            assert [one for one in cluster.records(broker, "numbers") if one[0] >= start] == expected
