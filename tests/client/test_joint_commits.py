"""Commits of one process that go together: those that come while one is on its way share the next call."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from headwater.client.joint_commits import JointCommits, commit
from headwater.core.errors import CommitRefused, NotLeader
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import pack_error
from tests.support.patience import wait_until

PATIENCE = 300.0


class Failure(grpc.RpcError):
    """A call that has failed."""


class Broker:
    """In place of a channel and its stub: calls wait at a gate, and are answered by the names of groups."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gates: dict[str, threading.Event] = {}
        """Calls with these groups wait until they are let through."""
        self.failing = False
        self.moved_to: list[NotLeader] = []
        self.config = SimpleNamespace(attempt_timeout=PATIENCE)
        self.metadata = ()
        self.commits = JointCommits(self)

    def Commit(self, request: pb.CommitRequest, **_: Any) -> pb.CommitResponse:  # noqa: N802 - as gRPC calls it
        self._pass([request])
        return _answer(request)

    def CommitAll(self, request: pb.CommitAllRequest, **_: Any) -> pb.CommitAllResponse:  # noqa: N802
        self._pass(request.commits)
        if self.failing:
            raise Failure
        return pb.CommitAllResponse(outcomes=map(_outcome, request.commits))

    def _pass(self, requests: Any) -> None:
        names = [request.group for request in requests]
        self.calls.append(names)
        for name in names:
            assert self.gates.get(name, _OPEN).wait(PATIENCE)

    # The interface of a connection.

    def channel(self) -> Broker:
        return self

    def moved(self, error: NotLeader) -> None:
        self.moved_to.append(error)

    def call(self, method: str, request: pb.CommitRequest) -> pb.CommitResponse:
        assert method == "Commit"
        self.calls.append([f"again {request.group}"])
        return _answer(request)


_OPEN = threading.Event()
_OPEN.set()


def _answer(request: pb.CommitRequest) -> pb.CommitResponse:
    return pb.CommitResponse(refused=[pb.TopicPartition(topic=request.group)])


def _outcome(request: pb.CommitRequest) -> pb.CommitOutcome:
    errors = {"refused": CommitRefused("it would move back"), "elsewhere": NotLeader("__groups", 0, "host:1")}
    if request.group in errors:
        return pb.CommitOutcome(error=pack_error(errors[request.group]))
    return pb.CommitOutcome() if request.group == "slow" else pb.CommitOutcome(response=_answer(request))


def told(answer: pb.CommitResponse) -> str:
    return answer.refused[0].topic


class Consumers:
    """Threads that commit; all wait for the gate of the first."""

    def __init__(self, broker: Broker, pool: ThreadPoolExecutor, *names: str) -> None:
        self._broker = broker
        broker.gates["first"] = threading.Event()
        self.first = self._begin(pool, "first")
        wait_until(lambda: broker.calls == [["first"]])
        self.others = {name: self._begin(pool, name) for name in names}

    def _begin(self, pool: ThreadPoolExecutor, name: str) -> Future[pb.CommitResponse]:
        connection: Any = self._broker
        return pool.submit(commit, pb.CommitRequest(group=name), connection)

    def let_go(self) -> None:
        """Let the first call through, when all others wait for it, or went without it."""
        wait_until(
            lambda: len(self._broker.commits._waiting) + sum(map(len, self._broker.calls[1:])) == len(self.others)
        )
        self._broker.gates["first"].set()


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_those_that_come_meanwhile_share_the_next_call(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.client.joint_commits._PATIENCE", PATIENCE)
    names = [f"g{number}" for number in range(7)]
    with ThreadPoolExecutor(8) as pool:
        consumers = Consumers(broker, pool, *names)
        consumers.let_go()
        assert told(consumers.first.result(PATIENCE)) == "first"
        assert {name: told(future.result(PATIENCE)) for name, future in consumers.others.items()} == dict(
            zip(names, names, strict=True)
        )
    assert broker.calls[0] == ["first"]
    assert sorted(broker.calls[1]) == names
    assert len(broker.calls) == 2


def test_nobody_waits_for_long_for_a_call_of_others(broker: Broker) -> None:
    with ThreadPoolExecutor(8) as pool:
        consumers = Consumers(broker, pool, "a", "b", "c")
        for name, future in consumers.others.items():
            assert told(future.result(PATIENCE)) == name
        assert not consumers.first.done()
        broker.gates["first"].set()
        assert told(consumers.first.result(PATIENCE)) == "first"
        assert told(commit(pb.CommitRequest(group="next"), broker)) == "next"  # type: ignore[arg-type]


def test_each_has_an_outcome_of_its_own(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.client.joint_commits._PATIENCE", PATIENCE)
    with ThreadPoolExecutor(8) as pool:
        consumers = Consumers(broker, pool, "good", "refused", "elsewhere", "slow")
        consumers.let_go()
        assert told(consumers.others["good"].result(PATIENCE)) == "good"
        with pytest.raises(CommitRefused):
            consumers.others["refused"].result(PATIENCE)
        assert told(consumers.others["elsewhere"].result(PATIENCE)) == "elsewhere"
        assert told(consumers.others["slow"].result(PATIENCE)) == "slow"
    assert [error.leader for error in broker.moved_to] == ["host:1"]
    assert sorted(broker.calls[2:]) == [["again elsewhere"], ["again slow"]]


def test_those_whose_call_has_failed_are_made_again_one_by_one(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.client.joint_commits._PATIENCE", PATIENCE)
    broker.failing = True
    with ThreadPoolExecutor(8) as pool:
        consumers = Consumers(broker, pool, "a", "b", "c")
        consumers.let_go()
        for name, future in consumers.others.items():
            assert told(future.result(PATIENCE)) == name
    assert sorted(broker.calls[2:]) == [["again a"], ["again b"], ["again c"]]
