"""Transactions in a cluster: what becomes of stages, and who may ask what. On the cluster that all tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import grpc
import pytest

import headwater as hw
from headwater import Staged, Store, TopicPartition
from headwater.cluster import internal
from headwater.core.errors import NotLeader, WriteFailed
from headwater.core.options import DAY, HOUR
from headwater.log import encode
from headwater.testing import ManualClock
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub
from tests.support.backends import SharedCluster, clustered
from tests.support.etcd_server import needs_etcd

pytestmark = needs_etcd
PLACE = TopicPartition("orders", 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(shared_cluster: SharedCluster, clock: ManualClock) -> Iterator[Store]:
    with shared_cluster.open(clock) as store:
        store.create_topic("orders", partitions=1)
        yield store
    shared_cluster.clear()


def stage(store: Store, *values: bytes) -> Staged:
    with store.stage() as staging:
        for value in values:
            staging.append(store.describe_topic("orders"), 0, encode([value]))
        return staging.seal()


def values(store: Store) -> list[bytes]:
    return [record.value for record in store.topic("orders").partition(0).records()]


class Leader:
    """The part of the broker that leads the partition which looks after its stages."""

    def __init__(self, cluster: SharedCluster) -> None:
        for broker in cluster.brokers:
            self.transactions, self._loop = clustered(broker).transactions, broker._loop
            try:
                self.transactions._node.leadership.with_stage(PLACE)
            except NotLeader:
                continue
            return
        raise AssertionError("nobody leads it")

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(60)

    def clean(self) -> None:
        self.run(lambda: self.transactions.stages.free(PLACE, self.transactions._undone))

    @property
    def staged(self) -> int:
        """The number of staged records."""
        _, stage = self.transactions._node.leadership.with_stage(PLACE)
        start, end, _ = stage.log.partition.bounds()
        return end - start


def test_what_is_written_or_dropped_goes_and_what_waits_stays(store: Store, shared_cluster: SharedCluster) -> None:
    with store.transaction() as block:
        block.adopt(stage(store, b"a", b"b"))
    store.drop([stage(store, b"c")])
    leader = Leader(shared_cluster)
    assert leader.staged == 3
    leader.clean()
    assert leader.staged == 0
    waiting = stage(store, b"d")
    leader.clean()
    assert leader.staged == 1
    with store.transaction() as block:
        block.adopt(waiting)
    assert values(store) == [b"a", b"b", b"d"]


def test_old_stages_stay_while_one_who_may_have_decided_over_them_is_cut_off(
    store: Store, shared_cluster: SharedCluster, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.transaction(writer="nightly", sequence=1) as block:
        block.adopt(stage(store, b"written"))
    stage(store, b"old")
    clock.advance(2 * HOUR)
    stage(store, b"new")  # in another segment, as time has passed
    clock.advance(DAY + 2 * HOUR)
    leader = Leader(shared_cluster)
    with monkeypatch.context() as cut_off:
        cut_off.setattr(internal, "_CONFIRMING", 0.2)
        for broker in shared_cluster.brokers:
            for log, _ in clustered(broker).transactions._writers._serving.values():
                cut_off.setattr(log._local.replica, "confirmed", lambda mark: False)  # noqa: ARG005
        leader.clean()
        assert leader.staged == 2
    leader.clean()
    assert leader.staged == 1


def test_a_leader_without_room_for_stages_lets_another_one_lead(
    store: Store, shared_cluster: SharedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.transaction() as block:
        block.adopt(stage(store, b"a"))
    leader = Leader(shared_cluster)
    _, staged = leader.transactions._node.leadership.with_stage(PLACE)
    partition = staged.log.partition

    def fail(frames: object) -> None:  # noqa: ARG001 - as it is called
        raise WriteFailed(partition.path, OSError(28, "No space left on device"))

    monkeypatch.setattr(partition, "append", fail)
    with store.transaction() as block:
        block.adopt(stage(store, b"b"))  # nobody hears of it but the broker that has no room
    assert values(store) == [b"a", b"b"]
    assert Leader(shared_cluster).transactions is not leader.transactions


def test_stages_of_yesterday_are_given_up_and_go(
    store: Store, shared_cluster: SharedCluster, clock: ManualClock
) -> None:
    old = stage(store, b"old")
    clock.advance(2 * HOUR)
    new = stage(store, b"new")  # in another segment, as time has passed
    clock.advance(DAY + 2 * HOUR)
    with pytest.raises(hw.TransactionAborted), store.transaction() as block:
        block.adopt(old)
    leader = Leader(shared_cluster)
    leader.clean()
    assert leader.staged == 1
    with pytest.raises(hw.TransactionAborted), store.transaction() as block:
        block.adopt(new)


def test_stages_stay_when_the_clock_is_set(store: Store, shared_cluster: SharedCluster, clock: ManualClock) -> None:
    staged = [stage(store, b"first")]
    clock.advance(2 * HOUR)
    for jump in (365 * DAY, -366 * DAY, DAY):
        staged.append(stage(store, b"next"))  # in another segment, as time has passed
        clock.jump(jump)
        clock.advance(HOUR)
        leader = Leader(shared_cluster)
        leader.clean()
        assert leader.staged == len(staged)
    for token in staged:
        with store.transaction() as block:
            block.adopt(token)
    assert values(store) == [b"first", b"next", b"next", b"next"]


def test_what_is_decided_and_not_written_stays_however_old_it_is(
    store: Store, shared_cluster: SharedCluster, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(store, b"decided")
    leader = Leader(shared_cluster)

    async def refuse(*_: object) -> list[int | None]:
        raise NotLeader(*PLACE, None)

    with monkeypatch.context() as patch:
        patch.setattr(leader.transactions.stages, "apply", refuse)
        quick = hw.ClientConfig(timeout=6.0, attempt_timeout=6.0)
        with (
            hw.open(str(store), client=quick) as other,
            pytest.raises(hw.BrokerUnavailable),
            other.transaction(writer="job", sequence=0) as block,
        ):
            block.adopt(staged)
        clock.advance(2 * HOUR)
        stage(store, b"later")
        clock.advance(2 * DAY)
        leader.clean()
        assert leader.staged == 2
    with store.transaction(writer="job", sequence=0) as again:
        again.producer("orders").send(b"again")
    assert again.state == "repeated"
    assert values(store) == [b"decided"]


def test_only_brokers_hold_write_and_list_stages(store: Store, shared_cluster: SharedCluster) -> None:
    stage(store, b"a")
    partition = pb.TopicPartition(topic="orders", partition=0, topic_uuid=store.describe_topic("orders").uuid)
    portion = pb.StagedPortion(number=1, ranges=[pb.StageRange(epoch=1, start=0, end=1)])
    stages = pb.StagesRequest(partition=partition, writer=bytes(16), portions=[portion])
    for broker in shared_cluster.brokers:
        with grpc.insecure_channel(str(broker.address)) as channel:
            stub = Stub(channel)
            for call, request in (
                (stub.HoldStages, stages),
                (stub.ApplyStages, stages),
                (stub.ListUndone, pb.ListUndoneRequest(partition=partition)),
            ):
                with pytest.raises(grpc.RpcError) as refused:
                    call(request)
                assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert values(store) == []


def test_a_topic_without_transactions_has_no_stage_log(store: Store, shared_cluster: SharedCluster) -> None:
    with store.producer("orders") as out:
        out.send(b"plain")
    for broker in shared_cluster.brokers:
        assert PLACE not in clustered(broker).node.leadership.staged()
    stage(store, b"a")
    assert Leader(shared_cluster).staged == 1
