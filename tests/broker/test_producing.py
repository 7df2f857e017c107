"""Producing at a broker: what is accepted, what is refused, and what order is kept."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from headwater.broker import Broker
from headwater.broker.security.guard import Guard
from headwater.broker.security.tokens import create_token, tokens_beside
from headwater.core.config import BrokerConfig
from headwater.core.errors import (
    InvalidRecord,
    PartitionDeleted,
    PermissionDenied,
    StoreError,
    UnknownTopic,
    UntrustedFrame,
)
from headwater.core.schema import Schema
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Frame, Identity, encode, encode_batch
from headwater.streams.routing import partition_of
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub
from tests.support.broker import ANY_PORT, Served, data_of, fetch, frame_of, refusal, served
from tests.support.callers import Caller
from tests.support.patience import wait_until

NOT_SANE = {
    "nothing": (b"", "cannot be a frame|cut short"),
    "zeros": (b"HWF1" + bytes(200), "schema"),
    "cut": (frame_of(b"a")[:-8], "bytes"),
    "changed": (frame_of(b"a")[:-1] + b"!", "checksum"),
    "another's": (frame_of(b"a", identity=Identity(b"someone else's!!", 0, 0)), "has not given to its sender"),
    "a writer's": (frame_of(b"a", identity=Identity(b"someone else's!!", 0, 0, forever=True)), "only transactions"),
    "from the future": (data_of(encode([b"a"], timestamps=1 << 62)), "future"),
    "of another schema": (
        data_of(encode_batch(pa.record_batch([[1]], ["n"]), Schema(pa.schema([("n", pa.int64())])))),
        "schema",
    ),
}
COLUMNS = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string()), ("b", pa.binary())])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as broker:
        yield broker


def producer(broker: Served) -> bytes:
    producer_id: bytes = broker.stub.OpenProducer(pb.OpenProducerRequest()).producer_id
    return producer_id


def produce(topic: str, *frames: bytes, partition: int = 0, **fields: Any) -> pb.ProduceRequest:
    return pb.ProduceRequest(topic=topic, partition=partition, frames=frames, **fields)


def test_frames_are_stored_as_they_are(broker: Served) -> None:
    broker.create("t")
    frame = frame_of(b"a", b"b")
    answer = broker.stub.Produce(produce("t", frame, id=7))
    assert (answer.id, answer.base_offset, answer.end_offset, answer.duplicate) == (7, 0, 2, False)
    stored = broker.stub.Fetch(fetch("t")).partitions[0].frames
    assert stored[48:] == frame[48:], "all but the stamp is the producer's"


def test_several_frames_become_visible_together(broker: Served) -> None:
    broker.create("t")
    answer = broker.stub.Produce(produce("t", frame_of(b"a"), frame_of(b"b", b"c")))
    assert (answer.base_offset, answer.end_offset) == (0, 3)
    assert broker.values("t") == [b"a", b"b", b"c"]


def test_records_go_where_their_keys_say(broker: Served) -> None:
    broker.create("t", 3)
    keys = [f"key {number}".encode() for number in range(20)]
    answer = broker.stub.Produce(pb.ProduceRequest(topic="t", records=[pb.Record(key=key, value=key) for key in keys]))
    assert [place.partition for place in answer.places] == [partition_of(key, 3) for key in keys]
    for key, place in zip(keys, answer.places, strict=True):
        assert broker.values("t", place.partition, place.offset)[0] == key


def test_records_without_keys_take_turns(broker: Served) -> None:
    broker.create("t", 3)
    assert {broker.send("t", b"x").places[0].partition for _ in range(3)} == {0, 1, 2}


def test_headers_and_times_are_kept(broker: Served) -> None:
    broker.create("t")
    record = pb.Record(key=b"k", value=b"v", headers={"h": b"1"}, timestamp_ns=123)
    broker.stub.Produce(pb.ProduceRequest(topic="t", records=[record]))
    assert list(broker.stub.Fetch(fetch("t", as_records=True)).partitions[0].records) == [record]


def test_a_retry_is_stored_once(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        broker.create("t")
        producer_id = producer(broker)
        frame = frame_of(b"a", b"b", identity=Identity(producer_id, 0, 0))
        first = broker.stub.Produce(produce("t", frame))
        again = broker.stub.Produce(produce("t", frame))
    with served(tmp_path) as broker:
        restarted = broker.stub.Produce(produce("t", frame))
        assert (first.duplicate, again.duplicate, restarted.duplicate) == (False, True, True)
        assert {answer.base_offset for answer in (first, again, restarted)} == {0}
        assert broker.values("t") == [b"a", b"b"]


def test_a_producer_goes_on_by_its_secret(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        opened = broker.stub.OpenProducer(pb.OpenProducerRequest())
    with served(tmp_path) as broker:
        again = pb.OpenProducerRequest(producer_id=opened.producer_id, secret=opened.secret)
        assert broker.stub.OpenProducer(again).producer_id == opened.producer_id
        wrong = pb.OpenProducerRequest(producer_id=opened.producer_id, secret=b"guessed")
        assert isinstance(refusal(broker.stub.OpenProducer, wrong)[1], StoreError)


def test_the_key_of_a_broker_is_its_owners(tmp_path: Path) -> None:
    with served(tmp_path):
        assert (tmp_path / "broker.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("frame", "why"), NOT_SANE.values(), ids=NOT_SANE)
def test_frames_that_are_not_sane_are_refused(broker: Served, frame: bytes, why: str) -> None:
    broker.create("t")
    code, error = refusal(broker.stub.Produce, produce("t", frame))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(UntrustedFrame, match=why):
        raise error or AssertionError
    assert broker.values("t") == []


@pytest.mark.parametrize(
    ("limit", "frame", "why"),
    [
        ("max_value_bytes", encode([b"x" * 21]), "a value of 21 bytes is over the limit of 20"),
        ("max_key_bytes", encode([b""], keys=[b"x" * 21]), "a key of 21 bytes is over the limit of 20"),
        (
            "max_headers_bytes",
            encode([b""], headers=[{"a": b"x" * 20}]),
            "headers of 21 bytes are over the limit of 20",
        ),
        ("max_key_bytes", encode([None]), "a delete marker .* needs a key"),
        ("max_key_bytes", encode([None, b"", None], keys=[b"k", None, None]), "a delete marker .* needs a key"),
    ],
)
def test_frames_are_held_to_the_limits_of_their_topic(broker: Served, limit: str, frame: Frame, why: str) -> None:
    broker.create("t", 1, **{limit: "20"})
    code, error = refusal(broker.stub.Produce, produce("t", data_of(frame)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(InvalidRecord, match=why):
        raise error or AssertionError
    assert broker.values("t") == []


def test_a_small_frame_that_would_be_large_is_refused(tmp_path: Path) -> None:
    with served(tmp_path, BrokerConfig(max_decoded_bytes=1 << 20)) as broker:
        broker.create("t")
        frame = data_of(encode([bytes(1 << 21)], compression="zstd"))
        assert len(frame) < 10_000
        code, error = refusal(broker.stub.Produce, produce("t", frame))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "limit" in str(error)


def test_a_compacted_topic_wants_keys(broker: Served) -> None:
    broker.create("t", compact="true")
    assert isinstance(refusal(broker.stub.Produce, produce("t", frame_of(b"a")))[1], UntrustedFrame)
    plain = pb.ProduceRequest(topic="t", records=[pb.Record(value=b"a")])
    assert isinstance(refusal(broker.stub.Produce, plain)[1], InvalidRecord)


@pytest.mark.parametrize(
    "record",
    [
        pb.Record(),
        pb.Record(key=bytes(2000), value=b"x"),
        pb.Record(value=bytes(2000)),
        pb.Record(value=b"", headers={"h": bytes(70_000)}),
    ],
    ids=["a marker without a key", "key", "value", "headers"],
)
def test_records_over_a_limit_are_refused(broker: Served, record: pb.Record) -> None:
    broker.create("t", max_value_bytes="1000")
    code, error = refusal(broker.stub.Produce, pb.ProduceRequest(topic="t", records=[pb.Record(value=b"good"), record]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, InvalidRecord)
    assert broker.values("t") == []


def test_another_topic_of_the_same_name_is_not_written_to(broker: Served) -> None:
    uuid = broker.create("t").uuid
    broker.stub.DeleteTopic(pb.DeleteTopicRequest(name="t"))
    broker.create("t")
    for request in (
        produce("t", frame_of(b"a"), topic_uuid=uuid),
        pb.ProduceRequest(topic="t", topic_uuid=uuid, records=[pb.Record(value=b"a")]),
    ):
        assert isinstance(refusal(broker.stub.Produce, request)[1], PartitionDeleted)


def test_what_is_not_there_is_said(broker: Served) -> None:
    code, error = refusal(broker.stub.Produce, produce("t", frame_of(b"a")))
    assert code is grpc.StatusCode.NOT_FOUND
    assert isinstance(error, UnknownTopic)
    broker.create("t")
    assert refusal(broker.stub.Produce, produce("t", frame_of(b"a"), partition=5))[1] is not None
    assert refusal(broker.stub.Produce, pb.ProduceRequest(topic="t"))[1] is not None
    both = produce("t", frame_of(b"a"), records=[pb.Record(value=b"a")])
    assert isinstance(refusal(broker.stub.Produce, both)[1], InvalidRecord)


def test_a_typed_topic_takes_rows_as_json(broker: Served) -> None:
    schema = Schema(COLUMNS).serialize()
    broker.stub.CreateTopic(pb.CreateTopicRequest(name="t", schema=schema))
    rows = [b'{"n": 1, "s": "x", "b": "AAE="}', b'{"n": 2}']
    broker.stub.Produce(pb.ProduceRequest(topic="t", records=[pb.Record(value=row) for row in rows]))
    assert broker.values("t") == [b'{"n": 1, "s": "x", "b": "AAE="}', b'{"n": 2, "s": null, "b": null}']
    for wrong in (b"[1]", b"{", b'{"n": "x"}', b'{"s": "x"}', b'{"n": 1, "other": 2}', b'{"n": 1, "b": "?"}'):
        request = pb.ProduceRequest(topic="t", records=[pb.Record(value=wrong)])
        assert isinstance(refusal(broker.stub.Produce, request)[1], InvalidRecord), wrong


def test_a_stream_is_answered_in_order_and_goes_on_after_an_error(broker: Served) -> None:
    broker.create("t", 2)
    requests = [
        produce("t" if number != 5 else "nowhere", frame_of(b"%d" % number), partition=number % 2, id=number)
        for number in range(200)
    ]
    answers = list(broker.stub.ProduceStream(iter(requests)))
    assert [answer.id for answer in answers] == list(range(200))
    assert [answer.id for answer in answers if answer.HasField("error")] == [5]
    assert answers[5].error.kind == "UnknownTopic"
    for partition in (0, 1):
        expected = [b"%d" % number for number in range(partition, 200, 2) if number != 5]
        assert broker.values("t", partition) == expected


def test_a_stream_of_records_and_frames_keeps_the_order_of_each_partition(broker: Served) -> None:
    broker.create("t")
    requests = [
        produce("t", frame_of(b"%d" % number))
        if number % 2
        else pb.ProduceRequest(topic="t", records=[pb.Record(value=b"%d" % number)])
        for number in range(60)
    ]
    list(broker.stub.ProduceStream(iter(requests)))
    assert broker.values("t") == [b"%d" % number for number in range(60)]


def test_pipelined_requests_share_a_sync(broker: Served) -> None:
    broker.create("t")
    list(broker.stub.ProduceStream(produce("t", frame_of(b"x")) for _ in range(500)))
    statistics = broker.stub.GetStatistics(pb.GetStatisticsRequest(topics=["t"])).topics[0].partitions[0]
    assert statistics.total_records == statistics.durable_end == 500
    assert statistics.total_syncs < 400


def test_many_producers_at_once_lose_nothing(broker: Served) -> None:
    broker.create("t", 2)

    def write(number: int) -> None:
        channel = grpc.insecure_channel(str(broker.broker.address), options=[("grpc.use_local_subchannel_pool", 1)])
        with channel:
            for count in range(25):
                Stub(channel).Produce(produce("t", frame_of(b"%d-%d" % (number, count)), partition=number % 2))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = broker.values("t", 0) + broker.values("t", 1)
    assert sorted(stored) == sorted(b"%d-%d" % (number, count) for number in range(8) for count in range(25))
    for number in range(8):
        mine = [value for value in stored if value.startswith(b"%d-" % number)]
        assert mine == [b"%d-%d" % (number, count) for count in range(25)]


def test_more_than_may_be_in_flight_waits_and_is_not_refused(tmp_path: Path) -> None:
    config = BrokerConfig(max_in_flight_bytes=1 << 20, max_connection_bytes=1 << 18)
    with served(tmp_path, config) as broker:
        broker.create("t", sync="never")
        frame = frame_of(bytes(100_000))
        answers = list(broker.stub.ProduceStream(produce("t", frame, id=number) for number in range(100)))
        assert [answer.id for answer in answers if not answer.HasField("error")] == list(range(100))


def test_what_waits_for_its_turn_is_limited_too(tmp_path: Path) -> None:
    with served(tmp_path, BrokerConfig(max_in_flight_bytes=1 << 20)) as broker:
        broker.create("t")
        frame = frame_of(bytes(400_000))
        calls = [broker.stub.Produce.future(produce("t", frame)) for _ in range(60)]
        codes = [call.code() for call in calls]
        assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
        statistics = broker.stub.GetStatistics(pb.GetStatisticsRequest(topics=["t"])).topics[0].partitions[0]
        assert statistics.total_records == codes.count(grpc.StatusCode.OK)


def test_a_request_over_the_limit_is_refused_and_the_broker_goes_on(tmp_path: Path) -> None:
    with served(tmp_path, BrokerConfig(max_message_bytes=1 << 20)) as broker:
        broker.create("t")
        code, _ = refusal(broker.stub.Produce, produce("t", frame_of(bytes(2 << 20))))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        broker.send("t", b"still there")


def test_more_connections_than_are_allowed_are_refused(tmp_path: Path) -> None:
    with served(tmp_path, BrokerConfig(max_connections=1)) as broker:
        broker.create("t")
        waiting = broker.stub.Fetch.future(fetch("t", max_wait_ms=600_000))
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(str(broker.broker.address), options=options) as channel:
            request = pb.ListTopicsRequest()
            broker.stub.ListTopics(request)  # behind the fetch on the same connection: that one is there
            assert refusal_or_none(Stub(channel).ListTopics, request) is grpc.StatusCode.UNAVAILABLE
            broker.send("t", b"x")
            waiting.result(timeout=300)
            while refusal_or_none(Stub(channel).ListTopics, request) is not None:
                pass


def test_one_address_does_not_take_all_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.broker.rpc.call._CONNECTIONS_OF_SOURCE", 1)
    with served(tmp_path, BrokerConfig(max_connections=2)) as broker:
        broker.create("t")
        waiting = broker.stub.Fetch.future(fetch("t", max_wait_ms=600_000))
        broker.stub.ListTopics(pb.ListTopicsRequest())
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(str(broker.broker.address), options=options) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                Stub(channel).ListTopics(pb.ListTopicsRequest())
            refused: Any = caught.value
            assert refused.code() is grpc.StatusCode.UNAVAILABLE
            assert "come from this address" in refused.details()
            broker.send("t", b"x")
            waiting.result(timeout=300)
            while refusal_or_none(Stub(channel).ListTopics, pb.ListTopicsRequest()) is not None:
                pass
        core = broker.broker._core
        assert core is not None
        wait_until(lambda: not core.connected)


def test_a_connection_that_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.broker.broker._HANDSHAKE_MS", 300)
    with served(tmp_path) as broker:
        address = broker.broker.address
        with socket.create_connection((address.host, address.port), timeout=300) as silent:
            while silent.recv(4096):  # gRPC says its part first
                pass
        broker.create("t")


def refusal_or_none(call: Any, request: Any) -> grpc.StatusCode | None:
    try:
        call(request)
    except grpc.RpcError as failure:
        code: grpc.StatusCode = failure.code()
        return code
    return None


def test_a_stream_that_is_cancelled_while_a_request_is_accepted_gives_its_bytes_back(tmp_path: Path) -> None:
    with served(tmp_path, BrokerConfig(threads=1)) as broker:
        broker.create("t")
        core = broker.broker._core
        assert core is not None
        held = threading.Event()
        core.runtime.readers.submit(held.wait, 120)  # plain records wait for a thread that looks up their topic
        try:
            records = [pb.Record(value=bytes(1000))]
            call = broker.stub.ProduceStream(iter([pb.ProduceRequest(topic="t", records=records)]))
            wait_until(lambda: core.requests.used > 1000)
            call.cancel()
            wait_until(lambda: not core.connections)
            wait_until(lambda: core.requests.used == 0)
            assert core.waiting_bytes == 0
        finally:
            held.set()
        broker.send("t", b"still there")


def test_sync_makes_durable_what_the_topic_does_not(broker: Served) -> None:
    broker.create("t", sync="never")
    broker.send("t", b"x")
    partition = pb.TopicPartition(topic="t")
    assert broker.stub.ListOffsets(pb.ListOffsetsRequest(partitions=[partition])).partitions[0].durable_end == 0
    broker.stub.Sync(pb.SyncRequest(partitions=[partition]))
    assert broker.stub.ListOffsets(pb.ListOffsetsRequest(partitions=[partition])).partitions[0].durable_end == 1


def test_plain_records_create_their_topic_where_the_broker_is_configured_so(tmp_path: Path) -> None:
    with served(tmp_path / "strict") as strict:
        _, error = refusal(strict.stub.Produce, pb.ProduceRequest(topic="t", records=[pb.Record(value=b"x")]))
        assert isinstance(error, UnknownTopic)
        assert strict.store.topics() == []
    with served(tmp_path / "lenient", BrokerConfig(auto_create_partitions=3)) as lenient:
        places = lenient.stub.Produce(pb.ProduceRequest(topic="t", records=[pb.Record(value=b"x", key=b"k")])).places
        assert (lenient.store.topics(), lenient.store.describe_topic("t").partitions) == (["t"], 3)
        assert [(place.partition, place.offset) for place in places] == [(partition_of(b"k", 3), 0)]
        for request in (
            pb.ProduceRequest(topic="other", records=[pb.Record(value=b"x")], topic_uuid=b"u" * 16),
            produce("other", frame_of(b"a")),
            pb.ProduceRequest(topic="__mine", records=[pb.Record(value=b"x")]),
        ):
            refusal(lenient.stub.Produce, request)
        assert lenient.store.topics() == ["t"], "whoever knows a uuid, or has frames, knows a topic that is gone"


def test_plain_records_create_a_topic_only_for_callers_that_may_create_it(tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    access.write_text("users:\n  writer:\n    topics: {'*': write}\n  maker:\n    topics: {'*': [write, admin]}\n")
    tokens = {name: create_token(tokens_beside(access), name) for name in ("writer", "maker")}
    request = pb.ProduceRequest(topic="t", records=[pb.Record(value=b"x")])
    with (
        DirectoryStore(tmp_path / "store", exclusive=True) as store,
        closing(Guard(access)) as guard,
        Broker(store, BrokerConfig(auto_create_partitions=1), guard, listen=ANY_PORT) as broker,
        grpc.insecure_channel(str(broker.address)) as channel,
    ):
        _, error = refusal(Caller(Stub(channel), tokens["writer"]).Produce, request)
        assert isinstance(error, PermissionDenied)
        assert store.topics() == []
        Caller(Stub(channel), tokens["maker"]).Produce(request)
        assert store.topics() == ["t"]
        Caller(Stub(channel), tokens["writer"]).Produce(request)
