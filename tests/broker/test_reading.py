"""Reading at a broker: budgets, waiting, times, damage, and streams that wait for slow readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from headwater.broker import arrivals
from headwater.broker.waiting_reader import ReadRequest, WaitingReader
from headwater.core.config import BrokerConfig
from headwater.core.errors import InvalidConfiguration, OffsetOutOfRange, StaleMember, UnknownTopic
from headwater.embedded.memory_store import MemoryStore
from headwater.log.files.segment import seed_of
from headwater.log.format.verify import verify_stamp
from headwater.streams.catalog import partition_uuid
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error
from tests.support.broker import Served, fetch, frame_of, position, refusal, served
from tests.support.patience import PACES, wait_until


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, BrokerConfig(max_wait=600)) as broker:
        yield broker


def write(broker: Served, topic: str, *frames: bytes, partition: int = 0) -> None:
    for frame in frames:
        broker.stub.Produce(pb.ProduceRequest(topic=topic, partition=partition, frames=[frame]))


def test_frames_come_as_they_are_stored_and_can_be_verified(broker: Served) -> None:
    topic = broker.create("t")
    write(broker, "t", frame_of(b"a", b"b"), frame_of(b"c"))
    fetched = broker.stub.Fetch(fetch("t")).partitions[0]
    view, seed = memoryview(fetched.frames), seed_of(partition_uuid(topic.uuid, 0))
    first = verify_stamp(view, 0, seed)
    second = verify_stamp(view, first.length, seed)
    assert (first.base_offset, second.base_offset, first.length + second.length) == (0, 2, len(view))
    assert (fetched.log_start, fetched.log_end, fetched.durable_end) == (0, 3, 3)
    assert (fetched.next_offset, fetched.lag) == (3, 0)


def test_a_store_in_memory_is_served_alike(tmp_path: Path) -> None:
    with served(tmp_path, store=MemoryStore()) as broker:
        topic = broker.create("t", 2)
        write(broker, "t", frame_of(b"a"), partition=1)
        view = memoryview(broker.stub.Fetch(fetch("t", 1)).partitions[0].frames)
        assert verify_stamp(view, 0, seed_of(partition_uuid(topic.uuid, 1))).record_count == 1


def test_the_frame_that_holds_the_offset_comes_first(broker: Served) -> None:
    broker.create("t")
    write(broker, "t", frame_of(b"a"), frame_of(b"b", b"c", b"d"), frame_of(b"e"))
    fetched = broker.stub.Fetch(fetch("t", offset=2, max_bytes=1)).partitions[0]
    assert fetched.next_offset == 4
    assert fetched.lag == 1
    assert broker.values("t", offset=2) == [b"c", b"d", b"e"]


def test_a_range_ends_where_it_was_told_to(broker: Served) -> None:
    broker.create("t")
    write(broker, "t", frame_of(b"a"), frame_of(b"b", b"c"))
    where = position("t")
    where.end = 2
    fetched = broker.stub.Fetch(pb.FetchRequest(positions=[where], as_records=True)).partitions[0]
    assert [record.value for record in fetched.records] == [b"a", b"b"]
    assert fetched.next_offset == 2


def test_by_time(broker: Served) -> None:
    broker.create("t")
    for second in range(5):
        record = pb.Record(value=b"%d" % second, timestamp_ns=second * 10**9 + 1)
        broker.stub.Produce(pb.ProduceRequest(topic="t", records=[record]))
    where = pb.FetchPosition(partition=pb.TopicPartition(topic="t"), timestamp_ns=3 * 10**9)
    fetched = broker.stub.Fetch(pb.FetchRequest(positions=[where], as_records=True)).partitions[0]
    assert [record.value for record in fetched.records] == [b"3", b"4"]
    partitions = [pb.TopicPartition(topic="t")]
    asked = broker.stub.ListOffsets(pb.ListOffsetsRequest(partitions=partitions, timestamp_ns=2 * 10**9))
    assert asked.partitions[0].offset_at == 2
    late = broker.stub.ListOffsets(pb.ListOffsetsRequest(partitions=partitions, timestamp_ns=10**12))
    assert not late.partitions[0].HasField("offset_at")


def test_the_records_of_one_partition_are_consumed(broker: Served) -> None:
    broker.create("t")
    for second in range(5):
        record = pb.Record(value=b"%d" % second, timestamp_ns=second * 10**9 + 1)
        broker.stub.Produce(pb.ProduceRequest(topic="t", records=[record]))

    def consume(**fields: Any) -> pb.ConsumeResponse:
        answer: pb.ConsumeResponse = broker.stub.Consume(
            pb.ConsumeRequest(partition=pb.TopicPartition(topic="t"), **fields), timeout=300
        )
        return answer

    first = consume(max_records=2)
    assert [record.value for record in first.records] == [b"0", b"1"]
    assert (first.next_offset, first.log_start, first.log_end, first.lag) == (2, 0, 5, 3)
    rest = consume(offset=first.next_offset)
    assert [(record.offset, record.value) for record in rest.records] == [(2, b"2"), (3, b"3"), (4, b"4")]
    assert (rest.next_offset, rest.lag) == (5, 0)
    assert [record.value for record in consume(timestamp_ns=4 * 10**9).records] == [b"4"]
    assert consume(offset=5).next_offset == 5
    waiting = broker.stub.Consume.future(
        pb.ConsumeRequest(partition=pb.TopicPartition(topic="t"), offset=5, max_wait_ms=600_000)
    )
    broker.send("t", b"late")
    assert [record.value for record in waiting.result(timeout=300).records] == [b"late"]
    broker.stub.WorkOnPartition(
        pb.WorkOnPartitionRequest(
            partition=pb.TopicPartition(topic="t"), work=pb.PARTITION_WORK_DELETE_BEFORE, offset=3
        )
    )
    for request, kind in (
        (pb.ConsumeRequest(partition=pb.TopicPartition(topic="t")), OffsetOutOfRange),
        (pb.ConsumeRequest(partition=pb.TopicPartition(topic="nowhere")), UnknownTopic),
        (pb.ConsumeRequest(partition=pb.TopicPartition(topic="t", partition=7)), InvalidConfiguration),
    ):
        assert isinstance(refusal(broker.stub.Consume, request)[1], kind)


def test_one_budget_serves_all_partitions(broker: Served) -> None:
    broker.create("t", 4)
    frame = frame_of(bytes(50_000))
    for partition in range(4):
        write(broker, "t", *[frame] * 8, partition=partition)
    request = pb.FetchRequest(positions=[position("t", number) for number in range(4)], max_bytes=400_000)
    answer = broker.stub.Fetch(request)
    sizes = [len(partition.frames) for partition in answer.partitions]
    assert 400_000 <= sum(sizes) < 400_000 + 5 * len(frame)
    assert min(sizes) > 0, "everyone has a share"


def test_a_small_budget_leaves_no_partition_behind(broker: Served) -> None:
    broker.create("t", 3)
    frame = frame_of(bytes(1000))
    for partition in range(3):
        broker.stub.Produce(pb.ProduceRequest(topic="t", partition=partition, frames=[frame] * 70))
    offsets = [0, 0, 0]
    for _ in range(60):
        positions = [position("t", number, offset) for number, offset in enumerate(offsets)]
        answer = broker.stub.Fetch(pb.FetchRequest(positions=positions, max_bytes=1))
        assert sum(len(partition.frames) > 0 for partition in answer.partitions) == 1
        offsets = [partition.next_offset for partition in answer.partitions]
    assert min(offsets) > 0


def test_what_is_wrong_with_one_partition_does_not_keep_the_others_from_being_read(broker: Served) -> None:
    broker.create("t", 2)
    write(broker, "t", frame_of(b"gone"), frame_of(b"kept"), partition=0)
    write(broker, "t", frame_of(b"good"), partition=1)
    partition = pb.TopicPartition(topic="t", partition=0)
    work = pb.PARTITION_WORK_DELETE_BEFORE
    broker.stub.WorkOnPartition(pb.WorkOnPartitionRequest(partition=partition, work=work, offset=1))
    positions = [position("t", 0, 0), position("t", 1), position("nowhere"), position("t", 7)]
    answer = broker.stub.Fetch(pb.FetchRequest(positions=positions, as_records=True))
    removed, good, unknown, too_high = answer.partitions
    error = unpack_error(removed.error)
    assert isinstance(error, OffsetOutOfRange)
    assert removed.log_start == 1
    assert [record.value for record in good.records] == [b"good"]
    assert unknown.error.kind == "UnknownTopic"
    assert too_high.error.kind == "InvalidConfiguration"


def test_damage_is_told_where_it_is_and_the_rest_can_be_read(broker: Served) -> None:
    broker.create("t", 2)
    frames = [frame_of(b"frame %d" % number) for number in range(3)]
    for partition in (0, 1):
        write(broker, "t", *frames, partition=partition)
    log = next(Path(str(broker.store)).glob("t/0/*.log"))
    content = bytearray(log.read_bytes())
    at = content.index(b"frame 1")
    content[at] ^= 1
    log.write_bytes(content)
    both = [position("t", 0), position("t", 1)]
    first, other = broker.stub.Fetch(pb.FetchRequest(positions=both, as_records=True)).partitions
    assert [record.value for record in first.records] == [b"frame 0"]
    assert [record.value for record in other.records] == [b"frame 0", b"frame 1", b"frame 2"]
    both = [position("t", 0, first.next_offset), position("t", 1, other.next_offset)]
    damaged, _ = broker.stub.Fetch(pb.FetchRequest(positions=both, as_records=True)).partitions
    error = unpack_error(damaged.error)
    assert (type(error).__name__, vars(error)["offset"], vars(error)["next_offset"]) == ("FrameDamaged", 1, 2)
    assert broker.values("t", offset=2) == [b"frame 2"]


def test_a_fetch_is_told_of_the_first_record(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "INTERVAL", 3600)  # so that nobody looks for what was not told
    time.sleep(1.2)
    broker.create("t", 2)
    request = pb.FetchRequest(positions=[position("t", 0), position("t", 1)], max_wait_ms=600_000, as_records=True)
    waiting = broker.stub.Fetch.future(request)
    time.sleep(0.2)
    assert not waiting.done()
    broker.send("t", b"here", partition=1)
    answer = waiting.result(timeout=300)
    assert [record.value for partition in answer.partitions for record in partition.records] == [b"here"]


def test_a_fetch_waits_no_longer_than_it_was_told_to(broker: Served) -> None:
    broker.create("t")
    started = time.monotonic()
    answer = broker.stub.Fetch(fetch("t", max_wait_ms=300))
    assert time.monotonic() - started >= 0.3
    assert not answer.partitions[0].frames


def test_a_caller_with_less_patience_gets_an_answer_before_it_ends(broker: Served) -> None:
    broker.create("t")

    def answered(seconds: int) -> bool:
        try:
            broker.stub.Fetch(fetch("t", max_wait_ms=600_000), timeout=seconds)
        except grpc.RpcError:
            return False
        return True

    assert any(answered(pace) for pace in PACES)


def test_what_came_into_the_store_another_way_is_found_too(broker: Served) -> None:
    broker.create("t")
    waiting = broker.stub.Fetch.future(fetch("t", max_wait_ms=600_000, as_records=True))
    time.sleep(0.2)
    with broker.store.producer("t") as producer:
        producer.send(b"embedded")
    assert waiting.result(timeout=300).partitions[0].records[0].value == b"embedded"


def test_a_thousand_can_wait_at_once(broker: Served) -> None:
    broker.create("t")
    before = threading.active_count()
    waiting = [broker.stub.Fetch.future(fetch("t", max_wait_ms=600_000, as_records=True)) for _ in range(900)]
    time.sleep(1)
    assert threading.active_count() - before < 60, "nobody waits in a thread of the broker"
    broker.send("t", b"x")
    assert all(call.result(timeout=300).partitions[0].records[0].value == b"x" for call in waiting)


def test_beyond_the_end_there_is_nothing_yet(broker: Served) -> None:
    broker.create("t")
    answer = broker.stub.Fetch(fetch("t", offset=2)).partitions[0]
    assert (answer.HasField("error"), answer.next_offset) == (False, 2)
    waiting = broker.stub.Fetch.future(fetch("t", offset=2, max_wait_ms=600_000, as_records=True))
    broker.send("t", b"0", b"1", b"2")
    assert [record.value for record in waiting.result(timeout=300).partitions[0].records] == [b"2"]


def test_what_compaction_has_removed_is_passed_over(broker: Served) -> None:
    broker.create("t", compact="true")
    for number in range(3):
        record = pb.Record(key=b"k", value=b"%d" % number)
        broker.stub.Produce(pb.ProduceRequest(topic="t", records=[record]))
    partition = pb.TopicPartition(topic="t")
    for work in (pb.PARTITION_WORK_ROLL, pb.PARTITION_WORK_COMPACT):
        broker.stub.WorkOnPartition(pb.WorkOnPartitionRequest(partition=partition, work=work))
    where = position("t")
    where.end = 2
    answer = broker.stub.Fetch(pb.FetchRequest(positions=[where], max_wait_ms=600_000)).partitions[0]
    assert (answer.frames, answer.next_offset) == (b"", 2)
    assert broker.values("t") == [b"2"]


def test_a_deleted_topic_ends_the_wait(broker: Served) -> None:
    broker.create("t")
    waiting = broker.stub.Fetch.future(fetch("t", max_wait_ms=600_000))
    time.sleep(0.2)
    broker.stub.DeleteTopic(pb.DeleteTopicRequest(name="t"))
    assert waiting.result(timeout=300).partitions[0].error.kind == "UnknownTopic"


def test_a_subscription_goes_on_from_where_it_was(broker: Served) -> None:
    broker.create("t")
    broker.send("t", b"0")
    stream = broker.stub.Subscribe(fetch("t", as_records=True))
    received = [next(stream).partitions[0].records[0].value]
    for number in range(1, 20):
        broker.send("t", b"%d" % number)
        received += [record.value for record in next(stream).partitions[0].records]
    stream.cancel()
    assert received == [b"%d" % number for number in range(20)]


def test_a_subscription_goes_on_without_the_partition_that_fails(broker: Served) -> None:
    broker.create("t")
    request = pb.FetchRequest(positions=[position("nowhere"), position("t")], as_records=True)
    stream = broker.stub.Subscribe(request)
    assert [partition.error.kind for partition in next(stream).partitions] == ["UnknownTopic", ""]
    broker.send("t", b"here")
    assert [record.value for partition in next(stream).partitions for record in partition.records] == [b"here"]
    stream.cancel()


def test_a_subscription_tells_of_a_new_generation_once(broker: Served) -> None:
    broker.create("t")
    join = pb.JoinGroupRequest(group="g", topics=["t"])
    generation = broker.stub.JoinGroup(join).generation
    stream = broker.stub.Subscribe(fetch("t", group="g", generation=generation, as_records=True))
    broker.stub.JoinGroup(join)
    assert next(stream).generation > generation
    broker.send("t", b"next")
    assert [record.value for record in next(stream).partitions[0].records] == [b"next"]
    stream.cancel()


def test_a_subscription_to_a_range_ends_with_it(broker: Served) -> None:
    broker.create("t")
    broker.send("t", b"0", b"1", b"2")
    where = position("t")
    where.end = 2
    answers = list(broker.stub.Subscribe(pb.FetchRequest(positions=[where], as_records=True)))
    assert [record.value for answer in answers for record in answer.partitions[0].records] == [b"0", b"1"]


def test_a_stream_of_fetches_sends_no_more_than_it_is_allowed_to(broker: Served) -> None:
    broker.create("t", sync="never")
    write(broker, "t", *[frame_of(bytes([number]) * 100_000) for number in range(20)])
    requests: SimpleQueue[pb.FetchRequest | None] = SimpleQueue()
    requests.put(fetch("t", max_bytes=150_000, max_wait_ms=600_000))
    answers = broker.stub.FetchStream(iter(requests.get, None))
    fetched = [next(answers)]
    time.sleep(0.5)
    assert broker.stub.GetStatus(pb.GetStatusRequest()).fetched_bytes < 250_000, "what was allowed, and not more"
    while fetched[-1].partitions[0].next_offset < 20:
        requests.put(pb.FetchRequest(max_bytes=250_000))
        fetched.append(next(answers))
    assert [answer.partitions[0].next_offset for answer in fetched] == list(range(2, 21, 2))
    answers.cancel()
    requests.put(None)
    alone = list(broker.stub.FetchStream(iter([fetch("t", max_bytes=1)])))
    assert [answer.partitions[0].next_offset for answer in alone] == [1], "it ends when nothing more can be allowed"


def test_a_stream_of_fetches_brings_what_comes_and_signs_of_life(broker: Served) -> None:
    broker.create("t")
    requests: SimpleQueue[pb.FetchRequest | None] = SimpleQueue()
    requests.put(pb.FetchRequest(positions=[position("nowhere"), position("t")], as_records=True, max_wait_ms=50))
    stream = broker.stub.FetchStream(iter(requests.get, None))
    assert [partition.error.kind for partition in next(stream).partitions] == ["UnknownTopic", ""]
    assert [len(partition.records) for partition in next(stream).partitions] == [0]
    received: list[bytes] = []
    for number in range(20):
        broker.send("t", b"%d" % number)
        while len(received) <= number:
            received += [record.value for record in next(stream).partitions[0].records]
    assert received == [b"%d" % number for number in range(20)]
    stream.cancel()
    requests.put(None)


def test_who_waits_gets_what_is_written_without_its_being_read(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    look = WaitingReader._look

    def counted(self: WaitingReader, request: ReadRequest[bytes], *others: Any) -> Any:
        looks.append(request.positions[0].offset)
        return look(self, request, *others)

    monkeypatch.setattr(arrivals, "INTERVAL", 3600)  # so that nobody looks for what was not told
    time.sleep(1.2)
    monkeypatch.setattr(WaitingReader, "_look", counted)
    broker.create("t")
    requests: SimpleQueue[pb.FetchRequest | None] = SimpleQueue()
    requests.put(fetch("t", max_bytes=1 << 20, max_wait_ms=600_000))
    stream = broker.stub.FetchStream(iter(requests.get, None))
    write(broker, "t", frame_of(b"first"))
    fetched = [next(stream).partitions[0]]
    while fetched[-1].next_offset < 1:
        fetched.append(next(stream).partitions[0])
    before = len(looks)
    for number in range(20):
        write(broker, "t", frame_of(b"%d" % number, b"and another"))
        fetched.append(next(stream).partitions[0])
    seen = len(looks)
    assert seen <= before + 1, "nothing was read, but for one look that was due before"
    assert [(partition.log_end, partition.next_offset, partition.lag) for partition in fetched[-20:]] == [
        (n, n, 0) for n in range(3, 42, 2)
    ]
    large = b"l" * (arrivals.PASSED_ON + 1)
    write(broker, "t", frame_of(large))
    fetched.append(next(stream).partitions[0])
    assert len(looks) > seen, "what is large is read in a thread"
    stream.cancel()
    requests.put(None)
    whole = broker.stub.Fetch(fetch("t", max_bytes=1 << 22)).partitions[0]
    assert b"".join(partition.frames for partition in fetched) == whole.frames, "the very bytes that are in the log"


def test_what_was_written_before_a_topic_was_made_anew_is_not_passed_on(broker: Served) -> None:
    uuid = broker.create("t").uuid
    where = position("t")
    where.partition.topic_uuid = uuid
    requests: SimpleQueue[pb.FetchRequest | None] = SimpleQueue()
    requests.put(pb.FetchRequest(positions=[where], max_wait_ms=50))
    stream = broker.stub.FetchStream(iter(requests.get, None))
    next(stream)
    broker.stub.DeleteTopic(pb.DeleteTopicRequest(name="t"))
    broker.create("t")
    write(broker, "t", frame_of(b"of another topic"))
    last = None
    for answer in stream:
        last = answer
    assert last is not None
    assert last.partitions[0].error.kind in ("UnknownTopic", "PartitionDeleted")
    assert not last.partitions[0].frames


def test_a_stream_of_fetches_that_makes_no_sense_is_refused(broker: Served) -> None:
    broker.create("t")
    assert list(broker.stub.FetchStream(iter([]))) == []
    unreadable = broker.channel.stream_stream("/headwater.v1.Broker/FetchStream", bytes, pb.FetchResponse.FromString)
    first = fetch("t", max_bytes=1, max_wait_ms=10).SerializeToString()
    for requests in ([pb.FetchRequest().SerializeToString()], [b"\xff"], [first, b"\xff"]):
        with pytest.raises(grpc.RpcError) as refused:
            list(unreadable(iter(requests)))
        assert isinstance(refused.value, grpc.Call)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_asking_for_a_group_does_not_make_one(broker: Served) -> None:
    broker.create("t")
    broker.stub.Fetch(fetch("t", group="g", member_id="nobody"))
    assert broker.stub.DescribeGroup(pb.DescribeGroupRequest(group="g")).generation == 0
    for call, request in (
        (broker.stub.Heartbeat, pb.HeartbeatRequest(group="g", member_id="nobody")),
        (broker.stub.SettleGroup, pb.SettleGroupRequest(group="g", member_id="nobody")),
        (broker.stub.Poll, pb.PollRequest(group="g", member_id="nobody")),
    ):
        assert isinstance(refusal(call, request)[1], StaleMember)
    broker.stub.LeaveGroup(pb.LeaveGroupRequest(group="g", member_id="nobody"))  # who is no member has left
    assert not broker.stub.ListGroups(pb.ListGroupsRequest()).groups


def test_a_subscription_to_what_is_not_there_ends_with_its_error(broker: Served) -> None:
    answers = list(broker.stub.Subscribe(fetch("nowhere")))
    assert [answer.partitions[0].error.kind for answer in answers] == ["UnknownTopic"]


def test_a_reader_that_does_not_read_is_not_read_ahead_for(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        broker.create("t", sync="never")
        frame = frame_of(bytes(1_000_000))
        write(broker, "t", *[frame] * 60)
        # A client that takes in what it does not read would hide it: gRPC's window grows on a slow machine.
        window = ("grpc.http2.bdp_probe", 0)
        options = [window, ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(str(broker.broker.address), options=options) as channel:
            subscribe = channel.unary_stream(
                "/headwater.v1.Broker/Subscribe", pb.FetchRequest.SerializeToString, pb.FetchResponse.FromString
            )
            streams = [subscribe(fetch("t", max_bytes=1 << 20)) for _ in range(8)]
            time.sleep(3)
            status = broker.stub.GetStatus(pb.GetStatusRequest())
            assert status.fetched_bytes < 8 * 12_000_000, "a few messages each, not 60 MB each"
            assert status.in_flight_bytes <= 64 << 20, "what one connection may have"
            received = 0
            for message in streams[0]:
                received += len(message.partitions[0].frames)
                if received > 59_000_000:
                    break

        def given_back() -> bool:
            status = broker.stub.GetStatus(pb.GetStatusRequest())
            return not status.in_flight_bytes and status.connections <= 1

        wait_until(given_back, "what those held who are gone is not given back")


def test_an_answer_is_no_larger_than_the_broker_allows(tmp_path: Path) -> None:
    with served(tmp_path, BrokerConfig(max_response_bytes=1 << 16)) as broker:
        broker.create("t")
        write(broker, "t", *[frame_of(bytes(30_000))] * 10)
        assert len(broker.stub.Fetch(fetch("t", max_bytes=1 << 30)).partitions[0].frames) < 100_000


def test_a_fetch_of_nothing_is_refused(broker: Served) -> None:
    assert refusal(broker.stub.Fetch, pb.FetchRequest())[0] is grpc.StatusCode.INVALID_ARGUMENT
