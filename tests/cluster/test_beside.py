"""Two logs that are kept together: a partition's and its stage log. In sync is who has both."""

from __future__ import annotations

import pytest

from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.replication.replica import FollowerRequest, Replica
from tests.cluster.log import Entry, SimulatedLog

LEADER, SECOND, THIRD = 0, 1, 2
INCARNATIONS = {LEADER: 10, SECOND: 20, THIRD: 30}
PATIENCE = 3.0


class Pair:
    """The leader's two replicas, and followers that have as much as the test says."""

    def __init__(self, in_sync: set[int]) -> None:
        self.logs = SimulatedLog(), SimulatedLog()
        self.main, self.beside = (
            Replica(LEADER, INCARNATIONS[LEADER], log, min_insync=2, patience=PATIENCE, high_watermark=0)
            for log in self.logs
        )
        self.main.keep_beside(self.beside)
        self.observe(in_sync)

    def observe(self, in_sync: set[int]) -> None:
        revision = self.main.revision + 1
        members = {broker: INCARNATIONS[broker] for broker in in_sync}
        state = PartitionState((LEADER, SECOND, THIRD), members, LEADER, INCARNATIONS[LEADER], 1)
        for replica in (self.main, self.beside):
            replica.observe(state, revision, 0.0)

    def append(self, replica: Replica, count: int = 1) -> None:
        log = replica.log
        assert isinstance(log, SimulatedLog)
        for _ in range(count):
            log.add([Entry(1, 0, log.end)])
        log.sync()
        replica.synced()

    def has(self, follower: int, replica: Replica, end: int, now: float = 0.0) -> None:
        """A follower asks, and has so much."""
        last = replica.log.epoch_before(end)
        replica.fetch(FollowerRequest(follower, INCARNATIONS[follower], 1, end, end, last), now)


def test_who_lacks_what_is_staged_is_not_taken_into_the_in_sync_set() -> None:
    pair = Pair({LEADER, SECOND})
    pair.append(pair.main)
    pair.append(pair.beside)
    for replica in (pair.main, pair.beside):
        pair.has(SECOND, replica, 1)
    pair.has(THIRD, pair.main, 1)
    assert pair.main.propose(INCARNATIONS, 0.0) is None, "it has not asked for the stages yet"
    pair.has(THIRD, pair.beside, 0)
    assert pair.main.propose(INCARNATIONS, 0.0) is None, "it lacks one of them"
    pair.has(THIRD, pair.beside, 1)
    proposal = pair.main.propose(INCARNATIONS, 0.0)
    assert proposal is not None
    assert set(proposal.state.in_sync) == {LEADER, SECOND, THIRD}


def test_a_proposal_without_an_answer_counts_in_both_logs() -> None:
    pair = Pair({LEADER, SECOND})
    for follower in (SECOND, THIRD):
        for replica in (pair.main, pair.beside):
            pair.has(follower, replica, 0)
    proposal = pair.main.propose(INCARNATIONS, 0.0)
    assert proposal is not None
    pair.append(pair.beside)
    pair.has(SECOND, pair.beside, 1)
    assert pair.beside.high_watermark == 0, "the third one may be in sync by now, and be elected"
    pair.main.refused(proposal)
    pair.has(SECOND, pair.beside, 1)
    assert pair.beside.high_watermark == 1


def test_a_proposal_that_is_on_its_way_counts_in_a_log_that_comes_later() -> None:
    pair = Pair({LEADER, SECOND})
    pair.main.beside = None
    for follower in (SECOND, THIRD):
        pair.has(follower, pair.main, 0)
    assert pair.main.propose(INCARNATIONS, 0.0) is not None
    pair.main.keep_beside(pair.beside)
    pair.append(pair.beside)
    pair.has(SECOND, pair.beside, 1)
    assert pair.beside.high_watermark == 0


@pytest.mark.parametrize("silent", ["main", "beside"])
def test_who_follows_only_one_of_the_two_is_taken_out(silent: str) -> None:
    pair = Pair({LEADER, SECOND, THIRD})
    later = PATIENCE + 1
    for replica in (pair.main, pair.beside):
        pair.has(SECOND, replica, 0, later)
    pair.has(THIRD, pair.beside if silent == "main" else pair.main, 0, later)
    proposal = pair.main.propose(INCARNATIONS, later)
    assert proposal is not None
    assert set(proposal.state.in_sync) == {LEADER, SECOND}
