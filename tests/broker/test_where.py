"""Filters at a broker: only what matches is sent, and an older broker or client changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headwater import ConsumedRecord, Consumer, InvalidFilter, Store
from headwater.broker import waiting_reader
from headwater.broker.rpc import reading
from headwater.client.fetcher import RemoteFetcher
from headwater.core.filter import Filter
from headwater.core.schema import RAW
from headwater.log.clock import REAL_CLOCK
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import error_of, unpack_error
from tests.support.backends import BrokerStore
from tests.support.broker import frame_of, served
from tests.support.patience import wait_until


@pytest.fixture(params=[False, True], ids=["far", "nearby"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with BrokerStore(tmp_path / "store", REAL_CLOCK, direct=request.param) as opened:
        opened.create_topic("t")
        yield opened


def fill(store: Store, frames: int, *records: tuple[bytes, bytes]) -> None:
    """Append so many frames of these keys and values."""
    with store.producer("t") as out:
        for _ in range(frames):
            for key, value in records:
                out.send(value, key=key)
            out.flush()


def polled(inbox: Consumer) -> list[ConsumedRecord]:
    """Everything that matches and is there, acknowledged."""
    records: list[ConsumedRecord] = []
    while more := inbox.poll():
        records += more
        for record in more:
            inbox.ack(record)
    return records


def position(store: Store) -> int:
    return store.group("g").committed()[store.describe_topic("t").uuid, 0].offset


def test_only_what_matches_is_sent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 5, *[(b"no", bytes(1000))] * 100, (b"yes", b"this"))
    sizes: list[int] = []
    answer = waiting_reader.answer_of

    def counting(*arguments: Any, **options: Any) -> Any:
        result: waiting_reader.ReadAnswer[bytes] = answer(*arguments, **options)
        sizes.append(result.size)
        return result

    monkeypatch.setattr(waiting_reader, "answer_of", counting)
    with store.consumer("t", where="key = 'yes'") as inbox:
        assert [record.value for record in polled(inbox)] == [b"this"] * 5
    assert store.topic("t").scan(where="key = 'yes'").read_all().num_rows == 5
    assert [record.value for record in store.topic("t").recent(2, where="key = 'yes'")] == [b"this"] * 2
    assert 0 < sum(sizes) < 20_000, "of half a megabyte"


def test_a_broker_answers_after_a_bounded_look(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_reader, "_LOOK_BYTES", 1)
    fill(store, 10, *[(b"k", b"v")] * 10)
    with store.consumer("t", group="g", where="offset = 95", fetch_bytes=1) as inbox:
        assert [record.offset for record in polled(inbox)] == [95]
    assert position(store) == 100


def test_records_that_do_not_match_wake_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_reader, "_PASSING_OVER", 3600)
    heard: list[object] = []
    hear = RemoteFetcher.hear

    def counting(fetcher: RemoteFetcher, stream: Any, response: Any) -> None:
        heard.append(response)
        hear(fetcher, stream, response)

    monkeypatch.setattr(RemoteFetcher, "hear", counting)
    with store.consumer("t", group="g", where="key = 'yes'") as inbox:
        inbox.poll()

        def send() -> None:
            fill(store, 30, (b"no", b"v"))
            fill(store, 1, (b"yes", b"this"))

        sending = threading.Thread(target=send)
        sending.start()
        wait_until(lambda: [record.offset for record in inbox.poll(timeout=10)] == [30])
        sending.join()
    assert len(heard) < 10, "of thirty writes"


def test_a_waiting_reader_is_told_how_far_it_is(store: Store) -> None:
    with store.consumer("t", group="g", where="key = 'yes'") as inbox:
        inbox.poll()
        fill(store, 3, (b"no", b"v"))

        def moved() -> bool:
            return inbox.poll(timeout=0.3) == [] and position(store) == 3

        wait_until(moved)


def test_what_an_older_broker_sends_is_filtered_by_its_client(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    position_of = reading._position

    def without_filter(message: pb.FetchPosition) -> waiting_reader.ReadPosition:
        return position_of(pb.FetchPosition(partition=message.partition, offset=message.offset))

    monkeypatch.setattr(reading, "_position", without_filter)
    fill(store, 2, *[(b"k", b"v")] * 50)
    with store.consumer("t", group="g", where="offset in (3, 60)") as inbox:
        assert [record.offset for record in polled(inbox)] == [3, 60]
    assert position(store) == 100
    assert store.topic("t").scan(end=20, where="offset = 7").read_all()["offset"].to_pylist() == [7]


def test_plain_clients_filter_too(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        broker.create("t")
        broker.stub.Produce(pb.ProduceRequest(topic="t", partition=0, frames=[frame_of(b"a", b"b", b"ab", b"c")]))
        named = pb.TopicPartition(topic="t")
        request = pb.FetchRequest(positions=[pb.FetchPosition(partition=named, where="value contains 'b'")])
        request.as_records = True
        (fetched,) = broker.stub.Fetch(request).partitions
        assert [(record.offset, record.value) for record in fetched.records] == [(1, b"b"), (2, b"ab")]
        assert fetched.filtered
        assert (fetched.next_offset, fetched.lag) == (4, 0)


@pytest.mark.parametrize("where", ["value >", "x" * 100_000])
def test_a_filter_that_cannot_be_read_is_refused(tmp_path: Path, where: str) -> None:
    with served(tmp_path) as broker:
        broker.create("t")
        position = pb.FetchPosition(partition=pb.TopicPartition(topic="t"), where=where)
        with pytest.raises(grpc.RpcError) as caught:
            broker.stub.Fetch(pb.FetchRequest(positions=[position]))
        assert isinstance(error_of(caught.value), InvalidFilter)


def test_a_filter_that_does_not_fit_fails_its_partition_alone(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        broker.create("t")
        broker.create("u")
        broker.stub.Produce(pb.ProduceRequest(topic="u", partition=0, frames=[frame_of(b"a")]))
        positions = [
            pb.FetchPosition(partition=pb.TopicPartition(topic="t"), where="price > 1"),
            pb.FetchPosition(partition=pb.TopicPartition(topic="u"), where="value = 'a'"),
        ]
        refused, read = broker.stub.Fetch(pb.FetchRequest(positions=positions)).partitions
        assert isinstance(unpack_error(refused.error), InvalidFilter)
        assert read.next_offset == 1


def test_times_mean_the_same_to_a_broker_elsewhere() -> None:
    bound = Filter.parse("timestamp >= '-1h' and key = '-1h' or timestamp in ('2026-01-31T12:00', 5)").bind(RAW)
    sent = bound.portable_text
    assert "'2026" not in sent
    assert "key = '-1h'" in sent
    again = Filter.parse(sent).bind(RAW)
    assert again.portable_text == sent, "nothing in it depends on a clock or a zone"
