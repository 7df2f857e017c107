"""The coordinator of groups, where everything goes wrong: no position moves back, no partition has two owners.

Each seed is one history. Each rule is taken away once, and something shows it.
"""

from __future__ import annotations

import pytest

from headwater.broker.clustered.coordinator import Coordinator
from tests.cluster.group_model import GroupBroker, GroupCluster
from tests.cluster.model import Violation
from tests.cluster.stage import Rules, Stage

HISTORIES = 90
ENOUGH = 400
"""In so many histories a missing rule has shown."""


@pytest.mark.parametrize("first", range(0, HISTORIES, 30))
def test_what_a_group_has_been_told_stays_true(first: int) -> None:
    commits = 0
    for seed in range(first, first + 30):
        cluster = GroupCluster(seed)
        cluster.run()
        commits += len(cluster.truth.acknowledged)
    assert commits > 100


class TellsBeforeItIsAcknowledged(Coordinator):
    def may_tell(self, noted: int) -> bool:  # noqa: ARG002
        return True


class ServesBeforeItHasReplayed(Coordinator):
    def serves(self) -> bool:
        return True


class ServesAtOnce(GroupBroker):
    coordinator_kind = ServesBeforeItHasReplayed


class TellsAtOnce(GroupBroker):
    coordinator_kind = TellsBeforeItIsAcknowledged


class ReplaysWhatItKnowsToBeAcknowledged(GroupBroker):
    """Its predecessor has told of more than it has heard of."""

    def replay_end(self) -> int:
        assert self.replica is not None
        return self.replica.high_watermark


class WritesInAnotherEpoch(GroupBroker):
    def may_append(self, epoch: int) -> bool:  # noqa: ARG002
        return True


@pytest.mark.parametrize(
    ("broken", "seed"),
    [
        (ServesAtOnce, 0),
        (TellsAtOnce, 0),
        (ReplaysWhatItKnowsToBeAcknowledged, 3),
        (WritesInAnotherEpoch, 1735),
    ],
    ids=lambda kind: getattr(kind, "__name__", str(kind)),
)
def test_without_a_rule_something_moves_back(broken: type[GroupBroker], seed: int) -> None:
    """The first history to be tried is one that is known to show it; others do where that has become another one."""

    def fails(seed: int) -> bool:
        try:
            GroupCluster(seed, broken).run()
        except Violation:
            return True
        return False

    assert any(fails(number) for number in range(seed, seed + ENOUGH))


# Being sure, by a script: it takes a sleeper to whom nobody talks, and no die shows that soon.


def test_a_leader_is_sure_when_all_in_sync_have_asked_again_after_an_answer() -> None:
    stage = Stage(Rules())
    leader = stage.replicas[0]
    before = {follower: stage.ask(follower) for follower in (1, 2)}
    mark = leader.mark()
    assert not leader.confirmed(mark)
    for follower, request in before.items():
        leader.heard(request)  # sent before the mark
        stage.answer(follower, stage.serve(0, request))
        assert not leader.confirmed(mark)
    leader.heard(stage.ask(1))
    assert not leader.confirmed(mark)
    leader.heard(stage.ask(2))
    assert leader.confirmed(mark)
    assert not leader.confirmed(leader.mark())


def test_a_leader_that_slept_while_another_one_was_elected_is_not_sure() -> None:
    stage = Stage(Rules())
    sleeper = stage.replicas[0]
    # A stream has broken, or a follower is registered anew: so there is more than one question on its way.
    in_flight = [stage.ask(follower) for follower in (1, 2) for _ in range(3)]
    del stage.alive[0]
    assert stage.elect() != 0
    assert sleeper.leads  # as far as it knows
    mark = sleeper.mark()
    for request in in_flight:
        sleeper.heard(request)
        stage.answer(request.replica, stage.serve(0, request))
    follower = next(broker for broker in (1, 2) if not stage.replicas[broker].leads)
    for _ in range(3):
        sleeper.heard(stage.ask(follower))
    assert not sleeper.confirmed(mark)


def test_a_leader_is_not_sure_without_one_that_may_be_in_sync_by_now() -> None:
    stage = Stage(Rules())
    stage.die(2)
    stage.fetch(1, 0)
    assert stage.take(stage.propose(0))
    stage.tell(0, 1)
    stage.start(2)
    stage.tell(2)
    stage.fetch(2, 0)
    assert stage.take(stage.propose(0))  # and the leader does not hear of it
    leader = stage.replicas[0]
    mark = leader.mark()
    stage.fetch(1, 0)
    leader.heard(stage.ask(1))
    assert not leader.confirmed(mark)  # broker 2 may lead by now
    stage.fetch(2, 0)
    leader.heard(stage.ask(2))
    assert leader.confirmed(mark)
