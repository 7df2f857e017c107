"""Transactions at a broker: all or nothing, once, whoever asks again, and nobody names files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.core.errors import StaleMember, StoreError, TransactionAborted, UntrustedFrame, WriterTaken
from headwater.core.options import DAY, HOUR
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Identity
from headwater.testing import ManualClock
from headwater.v1 import broker_pb2 as pb
from tests.support.broker import Served, frame_of, refusal, served


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as broker:
        yield broker


def stage(broker: Served, *values: bytes, topic: str = "t", partition: int = 0) -> pb.Staged:
    requests = [pb.StageRequest(topic=topic, partition=partition, frames=[frame_of(value)]) for value in values]
    staged: pb.Staged = broker.stub.Stage(iter(requests))
    return staged


def commit(broker: Served, *staged: pb.Staged, **fields: Any) -> pb.CommitTransactionResponse:
    request = pb.CommitTransactionRequest(staged=staged, **fields)
    answer: pb.CommitTransactionResponse = broker.stub.CommitTransaction(request)
    return answer


def files(broker: Served) -> list[str]:
    return [path.name for path in Path(str(broker.store)).glob("__transactions/*.*")]


def test_what_is_staged_is_seen_once_it_is_committed(broker: Served) -> None:
    broker.create("t", 2)
    staged = [stage(broker, b"a", b"b"), stage(broker, b"c", partition=1)]
    assert [stage.records for stage in staged] == [2, 1]
    assert broker.values("t", 0) == broker.values("t", 1) == []
    answer = commit(broker, *staged)
    assert {(write.partition, write.base_offset) for write in answer.applied} == {(0, 0), (1, 0)}
    assert broker.values("t", 0) == [b"a", b"b"]
    assert broker.values("t", 1) == [b"c"]


def test_what_is_dropped_never_comes(broker: Served) -> None:
    broker.create("t")
    staged = stage(broker, b"a")
    broker.stub.DropStages(pb.DropStagesRequest(staged=[staged]))
    assert not files(broker)
    error = refusal(broker.stub.CommitTransaction, pb.CommitTransactionRequest(staged=[staged]))[1]
    assert isinstance(error, TransactionAborted)
    assert broker.values("t") == []


def test_a_stage_that_is_broken_off_leaves_nothing(broker: Served) -> None:
    broker.create("t")

    def broken() -> Iterator[pb.StageRequest]:
        yield pb.StageRequest(topic="t", frames=[frame_of(b"a")])
        yield pb.StageRequest(topic="t", frames=[b"not a frame"])

    assert isinstance(refusal(broker.stub.Stage, broken())[1], UntrustedFrame)
    assert not files(broker)


def test_staged_frames_have_no_producer(broker: Served) -> None:
    broker.create("t")
    producer_id = broker.stub.OpenProducer(pb.OpenProducerRequest()).producer_id
    frame = frame_of(b"a", identity=Identity(producer_id, 0, 0))
    error = refusal(broker.stub.Stage, iter([pb.StageRequest(topic="t", frames=[frame])]))[1]
    assert isinstance(error, UntrustedFrame)


def test_a_token_cannot_be_made_or_changed(broker: Served) -> None:
    broker.create("t")
    staged = stage(broker, b"a")
    outputs, records = json.loads(staged.token[16:])
    outputs[0][3][0][0] = "../t/0/00000000000000000000.log"
    forged = staged.token[:16] + json.dumps([outputs, records], separators=(",", ":")).encode()
    for token in (forged, b"", b"x", staged.token[:-1], bytes(16) + staged.token[16:]):
        for call, request in (
            (broker.stub.CommitTransaction, pb.CommitTransactionRequest(staged=[pb.Staged(token=token)])),
            (broker.stub.DropStages, pb.DropStagesRequest(staged=[pb.Staged(token=token)])),
        ):
            assert isinstance(refusal(call, request)[1], StoreError)
    commit(broker, staged)
    assert broker.values("t") == [b"a"]


def test_a_request_that_is_repeated_is_done_once(tmp_path: Path) -> None:
    request_id = os.urandom(16)
    with served(tmp_path) as broker:
        broker.create("t")
        staged = stage(broker, b"a")
        first = commit(broker, staged, request_id=request_id)
        assert commit(broker, staged, request_id=request_id) == first
    with served(tmp_path) as broker:
        again = commit(broker, staged, request_id=request_id)
        assert [write.topic for write in again.applied] == ["t"]
        assert not again.applied[0].HasField("base_offset"), "which is known only to the broker that is gone"
        assert broker.values("t") == [b"a"]


def test_a_request_that_failed_is_not_taken_for_done(tmp_path: Path) -> None:
    request_id = os.urandom(16)
    with served(tmp_path) as broker:
        broker.create("t")
        staged = stage(broker, b"a")
        inputs = [pb.Advance(topic="t", offset=0)]
        failing = pb.CommitTransactionRequest(
            staged=[staged], group="g", member_id="nobody", inputs=inputs, request_id=request_id
        )
        assert isinstance(refusal(broker.stub.CommitTransaction, failing)[1], StaleMember)
    with served(tmp_path) as broker:
        assert refusal(broker.stub.CommitTransaction, failing)[1] is not None
        assert broker.values("t") == []


def test_answers_are_forgotten_after_a_day(tmp_path: Path) -> None:
    clock = ManualClock(time.time_ns())  # files carry the real time
    with served(tmp_path, store=DirectoryStore(tmp_path, clock=clock, exclusive=True)) as broker:
        broker.create("t")
        commit(broker, stage(broker, b"a"), request_id=os.urandom(16))
        [answered] = (tmp_path / "__transactions" / "answered").iterdir()
        clock.advance(DAY - HOUR)
        broker.stub.RunSteward(pb.RunStewardRequest())
        assert answered.exists()
        clock.advance(2 * HOUR)
        broker.stub.RunSteward(pb.RunStewardRequest())
        assert not answered.exists()


def test_a_named_writer_repeats_its_numbers_without_effect(broker: Served) -> None:
    broker.create("t")
    assert not commit(broker, stage(broker, b"a"), writer="w", sequence=0).repeated
    assert commit(broker, stage(broker, b"b"), writer="w", sequence=0).repeated
    assert not commit(broker, stage(broker, b"c"), writer="w", sequence=1).repeated
    assert broker.values("t") == [b"a", b"c"]
    assert not files(broker)


def test_a_writer_belongs_to_its_owner(broker: Served) -> None:
    broker.create("t")
    commit(broker, stage(broker, b"a"), writer="w", sequence=5, owner="one")
    other = pb.CommitTransactionRequest(staged=[stage(broker, b"b")], writer="w", sequence=0, owner="two")
    assert isinstance(refusal(broker.stub.CommitTransaction, other)[1], WriterTaken)
    commit(broker, stage(broker, b"c"), writer="w", sequence=0, owner="two", takeover=True)
    assert broker.values("t") == [b"a", b"c"]


def test_positions_are_set_together_with_the_records(broker: Served) -> None:
    broker.create("t")
    broker.create("out")
    broker.send("t", b"1", b"2")
    member_id = broker.stub.JoinGroup(pb.JoinGroupRequest(group="g", topics=["t"])).member_id
    generation = broker.stub.SettleGroup(pb.SettleGroupRequest(group="g", member_id=member_id)).generation
    inputs = [pb.Advance(topic="t", offset=2)]
    staged = stage(broker, b"3", topic="out")
    answer = commit(broker, staged, group="g", member_id=member_id, inputs=inputs)
    assert answer.generation == generation
    assert broker.values("out") == [b"3"]
    positions = broker.stub.DescribeGroup(pb.DescribeGroupRequest(group="g")).positions
    assert [position.offset for position in positions] == [2]


def test_who_has_lost_its_partitions_commits_nothing(broker: Served) -> None:
    broker.create("t")
    member_id = broker.stub.JoinGroup(pb.JoinGroupRequest(group="g", topics=["t"])).member_id
    broker.stub.SettleGroup(pb.SettleGroupRequest(group="g", member_id=member_id))
    broker.stub.LeaveGroup(pb.LeaveGroupRequest(group="g", member_id=member_id))
    inputs = [pb.Advance(topic="t", offset=0)]
    request = pb.CommitTransactionRequest(staged=[stage(broker, b"a")], group="g", member_id=member_id, inputs=inputs)
    assert isinstance(refusal(broker.stub.CommitTransaction, request)[1], StaleMember)
    assert broker.values("t") == []
    assert not files(broker), "what it had staged has gone"


def test_a_waiting_reader_is_woken_by_a_transaction(broker: Served) -> None:
    broker.create("t")
    where = pb.FetchPosition(partition=pb.TopicPartition(topic="t"), offset=0)
    waiting = broker.stub.Fetch.future(pb.FetchRequest(positions=[where], max_wait_ms=60_000, as_records=True))
    commit(broker, stage(broker, b"a"))
    assert [record.value for record in waiting.result(timeout=300).partitions[0].records] == [b"a"]


def test_nothing_is_left_to_roll_forward(broker: Served) -> None:
    broker.create("t")
    commit(broker, stage(broker, b"a"))
    assert broker.stub.RollForward(pb.RollForwardRequest()).transactions == 0
