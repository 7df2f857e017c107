"""Callers that know nothing of leaders do everything at any broker of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

import headwater as hw
from headwater import Store
from headwater.broker import Broker
from headwater.broker.rpc import carrying
from headwater.broker.security.guard import Guard
from headwater.broker.security.tokens import create_token, tokens_beside
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.link import USER_KEY
from headwater.cluster.node import ClusterNode
from headwater.core.config import BrokerConfig
from headwater.core.errors import BrokerUnavailable, NotLeader
from headwater.embedded.directory_store import DirectoryStore
from headwater.log.clock import REAL_CLOCK
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import error_of, unpack_error
from headwater.wire.service import FOLLOWS_LEADERS, Stub
from tests.support.backends import SharedCluster, clustered
from tests.support.broker import ANY_PORT
from tests.support.callers import Calling, bearer
from tests.support.etcd_server import EtcdServer, needs_etcd
from tests.support.patience import Patience

pytestmark = needs_etcd
PARTITIONS = 6
ANSWERED = 120.0


@pytest.fixture
def store(cluster: SharedCluster) -> Iterator[Store]:
    """A topic whose partitions have different leaders, with one record in each."""
    with cluster.open(REAL_CLOCK) as opened:
        opened.create_topic("orders", partitions=PARTITIONS)
        with opened.producer("orders") as out:
            for number in range(PARTITIONS):
                out.send(b"%d" % number, partition=number)
        yield opened


@pytest.fixture
def stubs(cluster: SharedCluster, store: Store) -> Iterator[list[Any]]:  # noqa: ARG001 - there has to be a topic
    """A caller at each broker, which knows no other one."""
    with ExitStack() as stack:
        yield [Plain(stack.enter_context(grpc.insecure_channel(str(broker.address)))) for broker in cluster.brokers]


class Plain:
    """The methods of one broker; errors are raised as they are told."""

    def __init__(self, channel: grpc.Channel, *metadata: tuple[str, str]) -> None:
        self._stub: Any = Calling(Stub(channel), metadata)

    def __getattr__(self, method: str) -> Any:
        def call(request: Any) -> Any:
            try:
                return getattr(self._stub, method)(request, timeout=ANSWERED)
            except grpc.RpcError as failure:
                raise error_of(failure) or failure from None

        return call


def position(number: int, offset: int = 0) -> pb.FetchPosition:
    return pb.FetchPosition(partition=pb.TopicPartition(topic="orders", partition=number), offset=offset)


def all_positions(offset: int = 0) -> list[pb.FetchPosition]:
    return [position(number, offset) for number in range(PARTITIONS)]


def values(partition: Any) -> list[bytes]:
    return [record.value for record in partition.records]


def leaders(stub: Any) -> set[int]:
    metadata: pb.Metadata = stub.GetMetadata(pb.GetMetadataRequest(topics=["orders"]))
    return {partition.leader for partition in metadata.topics[0].partitions}


def coordinator_of(group: str, brokers: list[Broker]) -> int:
    """The number of the broker that coordinates a group."""
    (number,) = [n for n, broker in enumerate(brokers) if group in clustered(broker).group_home.described()]
    return number


def test_records_are_fetched_at_any_broker(stubs: list[Any]) -> None:
    assert len(leaders(stubs[0])) == 3, "no broker leads all of them"
    for stub in stubs:
        answer = stub.Fetch(pb.FetchRequest(positions=all_positions(), as_records=True, max_wait_ms=60_000))
        assert [values(partition) for partition in answer.partitions] == [[b"%d" % n] for n in range(PARTITIONS)]
        assert {(p.log_start, p.log_end, p.next_offset, p.lag) for p in answer.partitions} == {(0, 1, 1, 0)}
        assert not any(partition.HasField("error") for partition in answer.partitions)
        for number in range(PARTITIONS):
            named = pb.TopicPartition(topic="orders", partition=number)
            consumed = stub.Consume(pb.ConsumeRequest(partition=named))
            assert (values(consumed), consumed.next_offset, consumed.log_end) == ([b"%d" % number], 1, 1)
        nothing = stub.Fetch(pb.FetchRequest(positions=all_positions(1), as_records=True))
        assert [(p.next_offset, p.log_end, len(p.records)) for p in nothing.partitions] == [(1, 1, 0)] * PARTITIONS
        since = [pb.FetchPosition(partition=each.partition, timestamp_ns=1) for each in all_positions()]
        answer = stub.Fetch(pb.FetchRequest(positions=since, as_records=True))
        assert [values(partition) for partition in answer.partitions] == [[b"%d" % n] for n in range(PARTITIONS)]
        some = [pb.FetchPosition(partition=each.partition, where="value in ('0', '2')") for each in all_positions()]
        answer = stub.Fetch(pb.FetchRequest(positions=some, as_records=True))
        assert [values(p) for p in answer.partitions] == [[b"%d" % n] if n in (0, 2) else [] for n in range(PARTITIONS)]
        assert {(p.filtered, p.next_offset) for p in answer.partitions} == {(True, 1)}
        twice = stub.Fetch(pb.FetchRequest(positions=[position(0), position(0, 1)], as_records=True))
        assert [values(partition) for partition in twice.partitions] == [[b"0"], []]


def test_offsets_are_listed_and_records_synced_at_any_broker(stubs: list[Any]) -> None:
    partitions = [each.partition for each in all_positions()]
    for stub in stubs:
        answer = stub.ListOffsets(pb.ListOffsetsRequest(partitions=partitions, timestamp_ns=1))
        assert [(p.partition, p.log_start, p.log_end, p.offset_at) for p in answer.partitions] == [
            (number, 0, 1, 0) for number in range(PARTITIONS)
        ]
        stub.Sync(pb.SyncRequest(partitions=partitions))


def test_a_fetch_that_waits_is_woken_by_any_leader(stubs: list[Any], store: Store) -> None:
    ends = [1] * PARTITIONS
    with store.producer("orders") as out:
        for turn, number in enumerate(range(PARTITIONS)):
            at = [position(each, end) for each, end in enumerate(ends)]
            sent = threading.Timer(0.1, out.send, (b"late",), {"partition": number})
            sent.start()
            request = pb.FetchRequest(positions=at, as_records=True, max_wait_ms=100_000)
            answer = stubs[turn % len(stubs)].Fetch(request)
            sent.join()
            ends[number] += 1
            assert [values(p) for p in answer.partitions] == [
                [b"late"] if n == number else [] for n in range(PARTITIONS)
            ]
            assert [partition.next_offset for partition in answer.partitions] == ends


def test_a_subscription_at_any_broker_goes_on_through_all_leaders(stubs: list[Any], store: Store) -> None:
    for stub in stubs:
        answers = stub.Subscribe(pb.FetchRequest(positions=all_positions(), as_records=True))
        received: list[bytes] = []
        while len(received) < PARTITIONS:
            received += [value for partition in next(answers).partitions for value in values(partition)]
        assert sorted(received) == [b"%d" % number for number in range(PARTITIONS)]
        answers.cancel()
    answers = stubs[0].Subscribe(pb.FetchRequest(positions=all_positions(1), as_records=True))
    with store.producer("orders") as out:
        for number in range(PARTITIONS):
            out.send(b"more", partition=number)
            out.flush()
            assert [values(p) for p in next(answers).partitions if p.records] == [[b"more"]]
    answers.cancel()


def test_a_member_does_everything_at_brokers_that_do_not_coordinate_its_group(stubs: list[Any], store: Store) -> None:
    for number, stub in enumerate(stubs):
        group = f"readers-{number}"
        member = {
            "group": group,
            "member_id": stub.JoinGroup(pb.JoinGroupRequest(group=group, topics=["orders"])).member_id,
        }
        received: dict[int, int] = {}
        patience = Patience(ANSWERED)
        generation = turn = 0
        while len(received) < PARTITIONS:
            turn += 1  # each call at another broker
            polled = stubs[turn % len(stubs)].Poll(pb.PollRequest(**member, max_wait_ms=1000))
            received |= {partition.partition: partition.next_offset for partition in polled.partitions}
            generation = polled.generation
            assert not patience.exhausted()
        assert received == dict.fromkeys(range(PARTITIONS), 1)
        advances = [pb.Advance(topic="orders", partition=each, offset=1) for each in received]
        for turn, advance in enumerate(advances[:-1]):
            assert not stubs[turn % 3].Commit(pb.CommitRequest(**member, positions=[advance])).refused
        together = pb.CommitAllRequest(commits=[pb.CommitRequest(**member, positions=advances)])
        for anywhere in stubs:
            (outcome,) = anywhere.CommitAll(together).outcomes
            assert outcome.HasField("response")
            assert anywhere.Heartbeat(pb.HeartbeatRequest(**member)).generation == generation
            assert anywhere.SettleGroup(pb.SettleGroupRequest(**member)).generation == generation
            described = anywhere.DescribeGroup(pb.DescribeGroupRequest(group=group))
            assert [each.offset for each in described.positions] == [1] * PARTITIONS
            assert [each.id for each in described.members] == [member["member_id"]]
            assert group in anywhere.ListGroups(pb.ListGroupsRequest()).groups
        stubs[number - 1].Unsubscribe(pb.LeaveGroupRequest(**member))
        assert not store.group(group).describe().members
        stubs[number - 1].LeaveGroup(pb.LeaveGroupRequest(**member))  # does nothing
        for anywhere in stubs:
            with pytest.raises(hw.StaleMember):
                anywhere.Poll(pb.PollRequest(**member))
            anywhere.ResetGroup(pb.ResetGroupRequest(group=group, positions=advances))
        stubs[0].ExpireGroup(pb.ExpireGroupRequest(group=group, before_ns=1 << 62))


def test_clients_that_follow_leaders_are_told_who_leads(cluster: SharedCluster, stubs: list[Any]) -> None:
    stubs[0].JoinGroup(pb.JoinGroupRequest(group="g", topics=["orders"]))
    refused = 0
    for broker in cluster.brokers:
        with grpc.insecure_channel(str(broker.address)) as channel:
            follower = Plain(channel, FOLLOWS_LEADERS)
            answer = follower.Fetch(pb.FetchRequest(positions=all_positions(), as_records=True))
            told = [unpack_error(partition.error) for partition in answer.partitions if partition.HasField("error")]
            assert told
            assert all(isinstance(error, NotLeader) and error.leader for error in told)
            answer = follower.ListOffsets(pb.ListOffsetsRequest(partitions=[p.partition for p in all_positions()]))
            assert any(partition.HasField("error") for partition in answer.partitions)
            try:
                follower.Heartbeat(pb.HeartbeatRequest(group="g"))
            except NotLeader:
                refused += 1
            frames = Plain(channel).Fetch(pb.FetchRequest(positions=all_positions()))
            assert any(partition.HasField("error") for partition in frames.partitions), "frames are for their leader"
    assert refused == 2


def test_what_no_broker_has_is_refused_by_all_at_once(stubs: list[Any]) -> None:
    for stub in stubs:
        with pytest.raises(hw.UnknownTopic):
            stub.Consume(pb.ConsumeRequest(partition=pb.TopicPartition(topic="nobody")))
        with pytest.raises(hw.InvalidConfiguration, match="has partitions 0 to 5, not 6"):
            stub.Consume(pb.ConsumeRequest(partition=pb.TopicPartition(topic="orders", partition=6)))
        unknown = [pb.TopicPartition(topic="nobody"), pb.TopicPartition(topic="orders", partition=9)]
        answer = stub.ListOffsets(pb.ListOffsetsRequest(partitions=unknown))
        assert [partition.error.kind for partition in answer.partitions] == ["UnknownTopic", "InvalidConfiguration"]


def test_records_of_an_answer_that_was_lost_between_brokers_come_again(
    cluster: SharedCluster, stubs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = {
        "group": "g",
        "member_id": stubs[0].JoinGroup(pb.JoinGroupRequest(group="g", topics=["orders"])).member_id,
    }
    lost: list[Any] = []
    call_leader = ClusterNode.call_leader

    async def lose_first(node: ClusterNode, partition: Any, method: str, request: Any, *others: Any) -> Any:
        answer = await call_leader(node, partition, method, request, *others)
        if method == "Poll" and answer.partitions and not lost:
            lost.append(answer)
            raise BrokerUnavailable("broker 9", method, 0, "the connection broke", unknown=True)
        return answer

    monkeypatch.setattr(ClusterNode, "call_leader", lose_first)
    received: set[bytes] = set()
    patience = Patience(ANSWERED)
    elsewhere = stubs[coordinator_of("g", cluster.brokers) - 1]
    while len(received) < PARTITIONS:
        answer = elsewhere.Poll(pb.PollRequest(**member, max_wait_ms=1000))
        received |= {value for partition in answer.partitions for value in values(partition)}
        assert not patience.exhausted(), f"only {received} came"
    assert lost


def test_a_member_joins_once_though_the_answer_was_lost(
    cluster: SharedCluster, stubs: list[Any], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubs[0].ResetGroup(pb.ResetGroupRequest(group="g", positions=[pb.Advance(topic="orders", offset=0)]))
    lost: list[str] = []
    call_leader = ClusterNode.call_leader

    async def lose_first(node: ClusterNode, partition: Any, method: str, request: Any, *others: Any) -> Any:
        answer = await call_leader(node, partition, method, request, *others)
        if method == "JoinGroup" and not lost:
            lost.append(answer.member_id)
            raise BrokerUnavailable("broker 9", method, 0, "the connection broke", unknown=True)
        return answer

    monkeypatch.setattr(ClusterNode, "call_leader", lose_first)
    elsewhere = stubs[coordinator_of("g", cluster.brokers) - 1]
    joined = elsewhere.JoinGroup(pb.JoinGroupRequest(group="g", topics=["orders"]))
    assert [joined.member_id] == lost
    assert list(store.group("g").describe().members) == lost


def test_a_call_that_no_broker_can_answer_is_given_up(stubs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stubs[0].JoinGroup(pb.JoinGroupRequest(group="g", topics=["orders"]))

    async def fail(*_: Any) -> Any:
        raise BrokerUnavailable("broker 9", "Heartbeat", 0, "nobody is there", unknown=True)

    monkeypatch.setattr(ClusterNode, "call_leader", fail)
    monkeypatch.setattr(carrying, "_CARRYING", 0.2)
    failures: list[Exception] = []
    for stub in stubs:
        try:
            stub.Heartbeat(pb.HeartbeatRequest(group="g"))
        except BrokerUnavailable as error:
            failures.append(error)
    assert len(failures) == 2


def test_a_call_is_carried_in_the_name_of_its_user(tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    access.write_text(
        "users:\n"
        '  reader: {topics: {"orders": [read, write, admin]}, groups: {"*": [read]}}\n'
        '  Zoë: {topics: {"orders": [read]}, groups: {"*": [read]}}\n'
        '  blind: {topics: {"x*": [read, write, admin], "orders": [write]}, groups: {"*": [read]}}\n'
    )
    tokens = {user: create_token(tokens_beside(access), user) for user in ("reader", "Zoë", "blind")}
    with ExitStack() as stack:
        etcd = EtcdServer(tmp_path / "etcd").start()
        stack.callback(etcd.kill)
        guards = [Guard(access), Guard(access)]
        brokers = []
        for number, guard in enumerate(guards):
            kept = stack.enter_context(DirectoryStore(tmp_path / str(number), exclusive=True))
            config = BrokerConfig(broker_id=number, internal_partitions=1, steward=False)
            broker = Broker(kept, config, guard, listen=ANY_PORT, etcd=lambda: Etcd([etcd.address]))
            brokers.append(stack.enter_context(broker))
        channels = [stack.enter_context(grpc.insecure_channel(str(broker.address))) for broker in brokers]
        callers = {user: [Plain(channel, *bearer(token)) for channel in channels] for user, token in tokens.items()}
        callers["reader"][0].CreateTopic(pb.CreateTopicRequest(name="orders", partitions=2))
        callers["reader"][0].Produce(pb.ProduceRequest(topic="orders", records=[pb.Record(value=b"x")]))
        for user in ("reader", "Zoë"):
            joined = callers[user][0].JoinGroup(pb.JoinGroupRequest(group=user.lower()[:2], topics=["orders"]))
            for caller in callers[user]:
                caller.Poll(pb.PollRequest(group=user.lower()[:2], member_id=joined.member_id))
            other = "Zoë" if user == "reader" else "reader"
            for caller in callers[other]:
                with pytest.raises(hw.StoreError, match="belongs to another caller"):
                    caller.Poll(pb.PollRequest(group=user.lower()[:2], member_id=joined.member_id))
        for caller in callers["blind"]:
            with pytest.raises(hw.PermissionDenied):
                caller.JoinGroup(pb.JoinGroupRequest(group="blind", topics=["orders"]))
            with pytest.raises(hw.PermissionDenied):
                caller.Consume(pb.ConsumeRequest(partition=pb.TopicPartition(topic="orders")))
        # A user cannot say that it is another one.
        for channel in channels:
            pretending: Any = Plain(channel, *bearer(tokens["blind"]), (USER_KEY, b"reader"))  # type: ignore[arg-type]
            with pytest.raises(hw.PermissionDenied):
                pretending.Consume(pb.ConsumeRequest(partition=pb.TopicPartition(topic="orders")))
        # The broker that answers checks rights, too: it is the one that knows which topics are read.
        joined = callers["Zoë"][0].JoinGroup(pb.JoinGroupRequest(group="zo", topics=["orders"]))
        coordinator = coordinator_of("zo", brokers)
        guards[coordinator].share({}, {})
        guards[coordinator]._own = ({}, guards[coordinator].own[1])
        guards[coordinator]._go_by_both()
        with pytest.raises(hw.PermissionDenied):
            callers["Zoë"][1 - coordinator].Poll(pb.PollRequest(group="zo", member_id=joined.member_id))
