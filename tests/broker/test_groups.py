"""Groups at a broker: sessions, assignments, positions, and what outlives a restart."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headwater.broker import arrivals
from headwater.broker.backend import NamedMember, PolledPartition
from headwater.broker.standalone.groups import StoredGroups
from headwater.core.config import BrokerConfig
from headwater.core.errors import CommitRefused, StaleMember
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error
from tests.support.broker import Served, fetch, refusal, served
from tests.support.patience import PACES, wait_until


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as broker:
        yield broker


def join(broker: Served, *topics: str, group: str = "g", timeout_ms: int = 0) -> pb.JoinGroupResponse:
    request = pb.JoinGroupRequest(group=group, topics=topics, session_timeout_ms=timeout_ms)
    answer: pb.JoinGroupResponse = broker.stub.JoinGroup(request)
    return answer


def settle(broker: Served, member_id: str, holding: Iterable[int] = (), **fields: int) -> pb.SettleGroupResponse:
    partitions = [pb.TopicPartition(topic="t", partition=number) for number in holding]
    request = pb.SettleGroupRequest(group="g", member_id=member_id, holding=partitions, **fields)
    answer: pb.SettleGroupResponse = broker.stub.SettleGroup(request)
    return answer


def commit(broker: Served, member_id: str, offset: int, partition: int = 0) -> pb.CommitResponse:
    advance = pb.Advance(topic="t", partition=partition, offset=offset)
    answer: pb.CommitResponse = broker.stub.Commit(
        pb.CommitRequest(group="g", member_id=member_id, positions=[advance])
    )
    return answer


def describe(broker: Served, group: str = "g") -> pb.Group:
    described: pb.Group = broker.stub.DescribeGroup(pb.DescribeGroupRequest(group=group))
    return described


def owned(answer: pb.SettleGroupResponse) -> set[int]:
    return {tp.partition for tp in answer.owned}


def test_members_share_the_partitions(broker: Served) -> None:
    broker.create("t", 4)
    first = join(broker, "t").member_id
    assert owned(settle(broker, first)) == {0, 1, 2, 3}
    second = join(broker, "t").member_id
    assert owned(settle(broker, second)) == set()
    leaving = settle(broker, first, {0, 1, 2, 3}).leaving
    assert len(leaving) == 2
    settle(broker, first, {0, 1, 2, 3} - {tp.partition for tp in leaving})
    assert owned(settle(broker, second)) == {tp.partition for tp in leaving}


def test_a_member_that_leaves_gives_everything_to_the_others(broker: Served) -> None:
    broker.create("t", 2)
    first, second = join(broker, "t").member_id, join(broker, "t").member_id
    broker.stub.LeaveGroup(pb.LeaveGroupRequest(group="g", member_id=first))
    assert owned(settle(broker, second)) == {0, 1}
    assert [member.id for member in describe(broker).members] == [second]


def test_a_silent_member_is_taken_out_and_the_others_are_told(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "INTERVAL", 3600)  # so that nobody looks for what was not told
    time.sleep(1.2)
    broker.create("t", 2)
    silent = join(broker, "t", timeout_ms=300).member_id
    settle(broker, silent)
    living = join(broker, "t").member_id
    generation = settle(broker, living).generation
    # A fetch that waits for records ends when the group changes.
    waiting = broker.stub.Fetch.future(
        fetch("t", max_wait_ms=600_000, group="g", member_id=living, generation=generation)
    )
    assert waiting.result(timeout=300).generation > generation
    assert owned(settle(broker, living)) == {0, 1}
    assert (
        refusal(broker.stub.SettleGroup, pb.SettleGroupRequest(group="g", member_id=silent))[1].__class__ is StaleMember
    )


def stays_by_heartbeats(broker: Served, member_id: str, seconds: float, *, polled: bool = False) -> bool:
    """Return whether a member that sends only heartbeats is still a member after so many seconds."""
    for _ in range(15):
        time.sleep(seconds / 15)
        try:
            broker.stub.Heartbeat(pb.HeartbeatRequest(group="g", member_id=member_id, polled=polled))
        except grpc.RpcError:
            return False
    return member_id in [member.id for member in describe(broker).members]


def test_heartbeats_keep_a_member_whose_handler_is_slow(broker: Served) -> None:
    broker.create("t")

    def stays(pace: int) -> bool:
        member_id = join(broker, "t", timeout_ms=500 * pace).member_id
        settle(broker, member_id)
        return stays_by_heartbeats(broker, member_id, 1.5 * pace)

    assert any(stays(pace) for pace in PACES)


def test_heartbeats_do_not_keep_a_member_whose_handler_hangs(broker: Served) -> None:
    broker.create("t")
    member_id = join(broker, "t").member_id
    settle(broker, member_id, max_poll_interval_ms=300)

    def taken_out() -> bool:
        try:
            broker.stub.Heartbeat(pb.HeartbeatRequest(group="g", member_id=member_id))
        except grpc.RpcError:
            return True
        return False

    wait_until(taken_out)
    assert not describe(broker).members


def test_a_heartbeat_that_says_so_counts_as_a_poll(broker: Served) -> None:
    broker.create("t")

    def stays(pace: int) -> bool:
        member_id = join(broker, "t", timeout_ms=600_000).member_id
        settle(broker, member_id, max_poll_interval_ms=1000 * pace)
        return stays_by_heartbeats(broker, member_id, 1.5 * pace, polled=True)

    assert any(stays(pace) for pace in PACES)


def test_only_the_owner_of_a_partition_sets_its_position(broker: Served) -> None:
    broker.create("t")
    broker.send("t", *[b"x"] * 10)
    owner, other = join(broker, "t").member_id, join(broker, "t").member_id
    if not owned(settle(broker, owner)):
        owner, other = other, owner
        settle(broker, owner)
    assert not commit(broker, owner, 5).refused
    assert commit(broker, other, 7).refused
    assert commit(broker, "", 7).refused
    assert [position.offset for position in describe(broker).positions] == [5]


def test_positions_do_not_move_back_but_by_a_reset(broker: Served) -> None:
    broker.create("t")
    member_id = join(broker, "t").member_id
    settle(broker, member_id)
    commit(broker, member_id, 5)
    back = pb.CommitRequest(group="g", member_id=member_id, positions=[pb.Advance(topic="t", offset=2)])
    code, error = refusal(broker.stub.Commit, back)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert isinstance(error, CommitRefused)
    before = describe(broker).generation
    broker.stub.ResetGroup(pb.ResetGroupRequest(group="g", positions=[pb.Advance(topic="t", offset=2)]))
    assert [position.offset for position in describe(broker).positions] == [2]
    assert describe(broker).generation > before
    # Until the member has noticed, what it did before the reset counts no more.
    assert commit(broker, member_id, 9).refused


def test_who_is_no_member_commits_where_nobody_is(broker: Served) -> None:
    broker.create("t")
    assert not commit(broker, "", 3).refused
    assert [position.offset for position in describe(broker).positions] == [3]
    known = describe(broker).positions[0].generation
    broker.stub.ResetGroup(pb.ResetGroupRequest(group="g", positions=[pb.Advance(topic="t", offset=1)]))
    advance = pb.Advance(topic="t", offset=4, known_generation=known)
    assert broker.stub.Commit(pb.CommitRequest(group="g", positions=[advance])).refused


def test_patterns_find_topics_that_come_later(broker: Served) -> None:
    member_id = join(broker, "t*").member_id
    assert not settle(broker, member_id).owned
    broker.create("t", 3)
    assert owned(settle(broker, member_id)) == {0, 1, 2}


def test_members_and_positions_outlive_the_broker(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        broker.create("t", 2)
        member_id = join(broker, "t", timeout_ms=2000).member_id
        settle(broker, member_id)
        commit(broker, member_id, 4)
    with served(tmp_path, BrokerConfig(session_timeout=60)) as broker:
        assert broker.stub.Heartbeat(pb.HeartbeatRequest(group="g", member_id=member_id)).generation
        assert owned(settle(broker, member_id, {0, 1})) == {0, 1}
        assert not commit(broker, member_id, 6).refused
        assert [position.offset for position in describe(broker).positions] == [6]
        assert list(broker.stub.ListGroups(pb.ListGroupsRequest()).groups) == ["g"]


def test_who_does_not_come_back_after_a_restart_is_taken_out(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        broker.create("t")
        join(broker, "t")
    with served(tmp_path, BrokerConfig(session_timeout=0.5)) as broker:
        wait_until(lambda: not describe(broker).members)


def test_the_steward_leaves_members_alone(broker: Served) -> None:
    broker.create("t")
    member_id = join(broker, "t").member_id
    settle(broker, member_id)
    commit(broker, member_id, 0)
    broker.stub.RunSteward(pb.RunStewardRequest(options={"group_expiry": "0"}))
    assert [member.id for member in describe(broker).members] == [member_id]


def poll(broker: Served, member_id: str, **fields: Any) -> pb.PollResponse:
    answer: pb.PollResponse = broker.stub.Poll(pb.PollRequest(group="g", member_id=member_id, **fields), timeout=300)
    return answer


def test_a_poll_returns_the_next_records(broker: Served) -> None:
    broker.create("t", 2)
    broker.send("t", b"a", b"b", b"c", partition=0)
    broker.send("t", b"d", partition=1)
    member_id = join(broker, "t").member_id
    received: list[bytes] = []
    while len(received) < 4:
        answer = poll(broker, member_id, max_records=2)
        assert answer.partitions
        received += [record.value for polled in answer.partitions for record in polled.records]
    assert sorted(received) == [b"a", b"b", b"c", b"d"]
    assert not poll(broker, member_id).partitions


def test_a_poll_waits_for_records(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[NamedMember] = []
    look = StoredGroups._read_for

    def counted(self: StoredGroups, member: NamedMember, max_records: int) -> list[PolledPartition]:
        looks.append(member)
        return look(self, member, max_records)

    monkeypatch.setattr(StoredGroups, "_read_for", counted)
    broker.create("t")
    member_id = join(broker, "t").member_id
    waiting = broker.stub.Poll.future(pb.PollRequest(group="g", member_id=member_id, max_wait_ms=600_000))
    time.sleep(0.4)
    assert len(looks) < 10, "it looks when it is told to, and each second"
    broker.send("t", b"late")
    assert [record.value for record in waiting.result(timeout=300).partitions[0].records] == [b"late"]


def test_what_was_polled_and_not_committed_comes_again_after_a_restart(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        broker.create("t")
        broker.send("t", b"a", b"b", b"c")
        member_id = join(broker, "t").member_id
        assert poll(broker, member_id, max_records=2).partitions[0].next_offset == 2
        commit(broker, member_id, 1)
    with served(tmp_path) as broker:
        again = poll(broker, member_id).partitions[0].records
        assert [record.value for record in again] == [b"b", b"c"]


def test_a_member_that_lost_an_answer_gets_what_is_not_committed_again(broker: Served) -> None:
    broker.create("t")
    broker.send("t", b"a", b"b", b"c")
    member_id = join(broker, "t").member_id
    assert poll(broker, member_id, max_records=2).partitions[0].next_offset == 2
    again = poll(broker, member_id, again=True).partitions[0].records
    assert [record.value for record in again] == [b"a", b"b", b"c"]
    commit(broker, member_id, 1)
    again = poll(broker, member_id, again=True).partitions[0].records
    assert [record.value for record in again] == [b"b", b"c"]
    assert not poll(broker, member_id).partitions
    _, error = refusal(broker.stub.Poll, pb.PollRequest(group="g", member_id="0" * 32, again=True))
    assert isinstance(error, StaleMember)


def test_a_member_unsubscribes(broker: Served) -> None:
    broker.create("t")
    member_id = join(broker, "t").member_id
    for _ in range(2):
        broker.stub.Unsubscribe(pb.LeaveGroupRequest(group="g", member_id=member_id))
        assert not describe(broker).members
    _, error = refusal(broker.stub.Poll, pb.PollRequest(group="g", member_id=member_id))
    assert isinstance(error, StaleMember)


def test_a_join_that_is_repeated_is_one_member(tmp_path: Path) -> None:
    with served(tmp_path / "store") as broker:
        broker.create("t")
        request = pb.JoinGroupRequest(group="g", topics=["t"], member_id="0123456789abcdef" * 2)
        first = broker.stub.JoinGroup(request)
        assert first.member_id == request.member_id
        assert broker.stub.JoinGroup(request) == first
        assert len(broker.stub.DescribeGroup(pb.DescribeGroupRequest(group="g")).members) == 1


@pytest.mark.parametrize("member_id", ["../../x", "0123456789ABCDEF" * 2, "0" * 31, "0" * 33])
def test_only_a_proper_id_names_a_member(tmp_path: Path, member_id: str) -> None:
    with served(tmp_path / "store") as broker:
        request = pb.JoinGroupRequest(group="g", topics=["t"], member_id=member_id)
        assert refusal(broker.stub.JoinGroup, request)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_a_heartbeat_waits_for_another_generation(tmp_path: Path) -> None:
    with served(tmp_path / "store") as broker:
        broker.create("t")
        member = join(broker, "t")
        waiting = broker.stub.Heartbeat.future(
            pb.HeartbeatRequest(group="g", member_id=member.member_id, generation=member.generation, max_wait_ms=60_000)
        )
        join(broker, "t")
        assert waiting.result(60).generation > member.generation
        known = broker.stub.Heartbeat(pb.HeartbeatRequest(group="g"))  # of who is no member
        assert known.generation == waiting.result().generation
        assert broker.stub.Heartbeat(pb.HeartbeatRequest(group="none")).generation == 0


def test_commits_of_one_call_have_outcomes_of_their_own(broker: Served) -> None:
    broker.create("t")
    broker.send("t", b"a", b"b", b"c")

    def advance(group: str, offset: int, **fields: str) -> pb.CommitRequest:
        position = pb.Advance(topic="t", partition=0, offset=offset)
        return pb.CommitRequest(group=group, positions=[position], **fields)

    broker.stub.Commit(advance("back", 3))
    commits = [advance("one", 1), advance("back", 2), advance("g", 1, member_id="0" * 32), advance("two", 2)]
    outcomes = broker.stub.CommitAll(pb.CommitAllRequest(commits=commits)).outcomes
    assert [outcome.WhichOneof("outcome") for outcome in outcomes] == ["response", "error", "response", "response"]
    assert isinstance(unpack_error(outcomes[1].error), CommitRefused)
    assert [len(outcome.response.refused) for outcome in outcomes] == [0, 0, 1, 0]
    offsets = {
        name: [position.offset for position in describe(broker, name).positions] for name in ("one", "back", "g", "two")
    }
    assert offsets == {"one": [1], "back": [3], "g": [], "two": [2]}
    too_many = pb.CommitAllRequest(commits=[advance("one", 1)] * 1001)
    assert refusal(broker.stub.CommitAll, too_many)[0] is grpc.StatusCode.INVALID_ARGUMENT
