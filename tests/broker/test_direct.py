"""Reading the files of a broker on the same machine: the broker tells where frames lie, and does not send them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import pytest

import headwater as hw
from headwater import ClientConfig, FrameDamaged, RecordsDamaged
from headwater.broker import arrivals
from headwater.broker.rpc import reading
from headwater.client import direct, fetched_partition, fetcher, partition
from headwater.client.direct import read_extents
from headwater.client.fetcher import RemoteFetcher
from headwater.core.config import BrokerConfig
from headwater.core.machine import machine
from headwater.core.options import KIB
from headwater.embedded.memory_store import MemoryStore
from headwater.log import Extent, encode
from headwater.log.format.verify import verified
from headwater.v1 import broker_pb2 as pb
from headwater.wire.packing import View
from tests.support.broker import Served, fetch, frame_of, position, served

pytestmark = pytest.mark.skipif(not machine(), reason="the system does not say which machine this is")
LARGE: Final = 3 * 1024 * 1024
"""More than a broker passes on as it was written."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "events") as broker:
        yield broker


def write(broker: Served, *values: bytes) -> None:
    broker.stub.Produce(pb.ProduceRequest(topic="t", partition=0, frames=[frame_of(*values)]))


def told(broker: Served, offset: int = 0, **fields: Any) -> pb.FetchedPartition:
    fetched: pb.FetchedPartition = broker.stub.Fetch(
        fetch("t", 0, offset, **{"machine": machine(), **fields})
    ).partitions[0]
    return fetched


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the reads that clients make from files, in order. A read that fails counts as -1."""
    sizes: list[int] = []

    def counted(extents: Any) -> View | None:
        content = read_extents(extents)
        sizes.append(-1 if content is None else len(content))
        return content

    for module in (fetcher, partition):
        monkeypatch.setattr(module, "read_extents", counted)
    return sizes


# The broker's answers.


def test_it_tells_where_frames_lie_and_the_same_bytes_are_there(broker: Served) -> None:
    broker.create("t")
    for number in range(5):
        write(broker, b"%d" % number)
    sent = broker.stub.Fetch(fetch("t", 0, 2)).partitions[0]
    fetched = told(broker, 2)
    assert not fetched.frames
    assert read_extents(fetched.extents) == sent.frames
    assert (fetched.next_offset, fetched.log_end, fetched.lag) == (5, 5, 0)
    assert os.path.isabs(fetched.extents[0].file)


def test_what_is_told_is_bounded_and_goes_on_where_it_ended(broker: Served) -> None:
    broker.create("t", segment_bytes="4096")
    for _ in range(8):
        write(broker, b"x" * 1500)
    offset, sizes = 0, []
    while offset < 8:
        fetched = told(broker, offset, max_bytes=2000)
        sizes.append(sum(extent.length for extent in fetched.extents))
        assert fetched.next_offset > offset
        offset = fetched.next_offset
    assert len(sizes) == 4
    assert max(sizes) < 4000


def test_places_that_follow_one_another_are_one_which_ends_as_the_last() -> None:
    log, other = b"l" * 16, b"o" * 16
    located = [(log, 80, 100, 1), (log, 180, 50, 2), (log, 240, 8, 3), (other, 248, 8, 4)]
    packed = reading._packed_extents([Extent("/f", *fields) for fields in located])
    assert [(extent.log, extent.position, extent.length, extent.stamp) for extent in packed] == [
        (log, 80, 150, 2),
        (log, 240, 8, 3),
        (other, 248, 8, 4),
    ]


def test_what_is_small_is_sent(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "SMALL", 32 * KIB)
    broker.create("t")
    requests: SimpleQueue[pb.FetchRequest | None] = SimpleQueue()
    requests.put(pb.FetchRequest(positions=[position("t")], max_bytes=LARGE, max_wait_ms=60_000, machine=machine()))
    stream = broker.stub.FetchStream(iter(requests.get, None))
    for value in (b"small", b"large" * 10_000):
        write(broker, value)
        (fetched,) = next(stream).partitions
        for answer in (fetched, told(broker, fetched.next_offset - 1)):
            assert bool(answer.frames) == (value == b"small")
            assert bool(answer.extents) == (value != b"small")
    requests.put(None)
    stream.cancel()


def test_plain_records_and_stores_in_memory_are_sent(broker: Served, tmp_path: Path) -> None:
    broker.create("t")
    write(broker, b"a")
    fetched = told(broker, as_records=True)
    assert not fetched.extents
    assert [record.value for record in fetched.records] == [b"a"]
    with served(tmp_path, store=MemoryStore()) as other:
        other.create("t")
        write(other, b"a")
        assert told(other).frames
        assert not told(other).extents


@pytest.mark.parametrize("name", [b"", b"x" * 16, b"x" * 10_000])
def test_only_who_calls_from_this_machine_is_told(broker: Served, name: bytes) -> None:
    broker.create("t")
    write(broker, b"a")
    assert told(broker).extents
    fetched = told(broker, machine=name)
    assert fetched.frames
    assert not fetched.extents


def test_where_machines_have_no_names_frames_are_sent(
    broker: Served, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (reading, fetcher, partition):
        monkeypatch.setattr(module, "machine", bytes)
    with hw.open(f"hw://{broker.broker.address}") as store:
        store.create_topic("t")
        with store.producer("t") as out:
            out.send(b"a")
        assert store.topic("t").scan().read_all().num_rows == 1
    assert read == []
    monkeypatch.setattr("headwater.core.machine._BOOT_ID", Path("/nowhere"))
    assert machine.__wrapped__() == b""


def test_a_stream_tells_of_what_is_written_meanwhile_and_counts_it(broker: Served) -> None:
    broker.create("t")
    requests: SimpleQueue[pb.FetchRequest | None] = SimpleQueue()
    requests.put(pb.FetchRequest(positions=[position("t")], max_bytes=2 * LARGE, max_wait_ms=60_000, machine=machine()))
    stream = broker.stub.FetchStream(iter(requests.get, None))
    content = b""
    for value in (b"a", b"b" * LARGE, b"c"):
        write(broker, value)
        (fetched,) = next(stream).partitions
        assert not fetched.frames
        content += bytes(read_extents(fetched.extents) or b"")
    assert content == b"".join(memoryview(frame.data) for frame in broker.store.topic("t").partition(0).frames())
    # Nothing was sent, but it counts as sent: half of what was allowed is used up, and then all of it.
    write(broker, b"d" * LARGE)
    assert next(stream).partitions[0].next_offset == 4
    assert broker.broker._core is not None
    assert broker.broker._core.meters.fetched_bytes > 2 * LARGE
    write(broker, b"e")
    later: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=lambda: later.put(next(stream)), daemon=True).start()
    with pytest.raises(Empty):
        later.get(timeout=0.5)
    requests.put(pb.FetchRequest(max_bytes=LARGE))
    assert later.get(timeout=300).partitions[0].next_offset == 5
    requests.put(None)
    stream.cancel()


# The clients' reads.


def test_a_consumer_and_a_scan_read_the_files(broker: Served, read: list[int]) -> None:
    values = [b"%d" % number * 1000 for number in range(500)]
    with hw.open(f"hw://{broker.broker.address}") as store:
        store.create_topic("t", sync=1.0)
        with store.consumer("t", group="g") as inbox, store.producer("t") as out:
            assert inbox.poll() == []
            received: list[bytes] = []
            for value in values:
                out.send(value)
            out.flush()
            while len(received) < len(values):
                received += [record.value for record in inbox.poll(timeout=300)]
        assert received == values
        assert sum(read) > sum(map(len, values))
        read.clear()
        assert store.topic("t").scan().read_all().column("value").to_pylist() == values
        assert sum(read) > sum(map(len, values))


def test_who_does_not_want_that_has_them_sent(broker: Served, read: list[int]) -> None:
    with hw.open(f"hw://{broker.broker.address}", client=ClientConfig(direct=False)) as store:
        store.create_topic("t")
        with store.producer("t") as out:
            out.send(b"a")
        with store.consumer("t", group="g", start="earliest") as inbox:
            assert [record.value for record in inbox.poll(timeout=300)] == [b"a"]
        assert store.topic("t").scan().read_all().num_rows == 1
    assert read == []


def test_files_that_cannot_be_read_are_sent(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> memoryview:
        raise PermissionError(13, "as if it were another user's")

    monkeypatch.setattr(direct, "_read", refuse)
    with hw.open(f"hw://{broker.broker.address}") as store:
        store.create_topic("t", partitions=2)
        with store.consumer("t", group="g", start="earliest") as inbox, store.producer("t") as out:
            for number in range(20):
                out.send(b"%d" % number, partition=number % 2)
                out.flush()
            received: list[bytes] = []
            while len(received) < 20:
                received += [record.value for record in inbox.poll(timeout=300)]
        assert sorted(map(int, received)) == list(range(20))
        with store.consumer("t", group="h", start="earliest") as inbox:
            assert inbox.poll() != []  # also by who does not wait
        assert store.topic("t").scan().read_all().num_rows == 20


def test_a_segment_that_is_compacted_meanwhile_is_read_all_the_same(
    broker: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file that is told of is another one when it is opened."""
    broker.create("t")
    log = broker.store.topic("t").partition(0)
    for number in range(100):
        log.append(encode([b"%d" % number], keys=[b"k"]))
    log.roll()
    log.append(encode([b"last"], keys=[b"other"]))

    def compact_first(extents: Any) -> View | None:
        log.compact()
        return read_extents(extents)

    for module in (fetcher, partition):
        monkeypatch.setattr(module, "read_extents", compact_first)
    with hw.open(f"hw://{broker.broker.address}") as store:
        with store.consumer("t", group="g", start="earliest") as inbox:
            received: list[bytes] = []
            while b"last" not in received:
                received += [record.value for record in inbox.poll(timeout=300)]
        assert received == [b"99", b"last"]


def test_what_a_stream_brings_behind_damage_does_not_stand_for_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may have mended a file since it was told of: one goes on where the damage was."""
    with served(tmp_path, BrokerConfig(max_response_bytes=65536)) as broker:
        broker.create("t")
        log = broker.store.topic("t").partition(0)
        for number in range(7):
            log.append(encode([b"%d" % number * 15_000]))
        healthy, asked = verified, RemoteFetcher._ask

        def damaged_once(*_: Any) -> Any:
            monkeypatch.setattr(fetched_partition, "verified", healthy)
            time.sleep(0.3)  # the stream brings all there is
            raise FrameDamaged("as if it were")

        def ask_while_more_comes(self: RemoteFetcher, *arguments: Any) -> None:
            asked(self, *arguments)
            log.append(encode([b"more"]))
            broker.broker._core.runtime.arrivals.tell_from_thread([("t", 0)])  # type: ignore[union-attr]
            time.sleep(0.3)

        with (
            hw.open(f"hw://{broker.broker.address}") as store,
            store.consumer("t", group="g", start="earliest") as inbox,
        ):
            monkeypatch.setattr(fetched_partition, "verified", damaged_once)
            monkeypatch.setattr(RemoteFetcher, "_ask", ask_while_more_comes)
            offsets: list[int] = []
            while not offsets or offsets[-1] < 7:
                offsets += [record.offset for record in inbox.poll(timeout=300)]
        assert offsets[:8] == list(range(8))


@pytest.mark.parametrize("patient", [False, True])
def test_damage_is_told_and_noted_by_the_broker(broker: Served, patient: bool) -> None:
    """Frames whose stamps are good are told of unread: who reads them finds out, and the broker says what it is."""
    broker.create("t")
    log = broker.store.topic("t").partition(0)
    for number in range(3):
        log.append(encode([b"<%d>" % number] * 10))
    file = next((broker.store.path / "t" / "0").glob("*.log"))  # type: ignore[attr-defined]
    content = bytearray(file.read_bytes())
    content[content.rindex(b"<1>")] ^= 1
    with file.open("r+b") as opened:
        opened.write(content)
    assert told(broker).extents
    timeout = 300.0 if patient else 0.0
    with hw.open(f"hw://{broker.broker.address}") as store:
        with store.consumer("t", group="g", start="earliest") as inbox:
            records = inbox.poll(timeout=timeout)
            with pytest.raises(RecordsDamaged) as lost:
                inbox.poll(timeout=timeout)
            assert (lost.value.offset, lost.value.next_offset) == (10, 20)
            assert [record.value for record in records] == [b"<0>"] * 10
        losses: list[RecordsDamaged] = []
        with store.consumer("t", group="h", start="earliest", on_damage=losses.append) as inbox:
            records = []
            while len(records) < 20:
                records += inbox.poll(timeout=300)
            assert [record.value for record in records] == [b"<0>"] * 10 + [b"<2>"] * 10
        assert [(loss.offset, loss.next_offset) for loss in losses] == [(10, 20)]
        with pytest.raises(FrameDamaged) as damaged:
            store.topic("t").scan().read_all()
        assert (damaged.value.offset, damaged.value.next_offset) == (10, 20)
    assert log.statistics().damaged == 1
