"""Each rule of a replica on its own: who is in sync, what is acknowledged, what readers see, what a follower takes."""

from __future__ import annotations

from headwater.cluster.control.metadata import Members, PartitionState
from headwater.cluster.replication.replica import EpochEnd, FollowerRequest, FollowerResponse, Replica
from tests.cluster.log import Entry, SimulatedLog

ALIVE = {1: 10, 2: 20, 3: 30}


def log_with(records: int, epoch: int = 1) -> SimulatedLog:
    log = SimulatedLog()
    append(log, records, epoch)
    return log


def append(log: SimulatedLog, records: int, epoch: int = 1) -> None:
    log.add([Entry(epoch, 0, log.end + number) for number in range(records)])
    log.sync()


def leader_with(records: int, in_sync: Members = ALIVE) -> Replica:
    """The leader in epoch 1, with that many records."""
    replica = Replica(1, 10, log_with(records), min_insync=2, patience=3.0, high_watermark=0)
    replica.observe(PartitionState((1, 2, 3), in_sync, 1, 10, 1), 1, 0.0)
    return replica


def follower_with(records: int, leader_epoch: int = 2) -> Replica:
    """A follower of broker 1 in an epoch, with that many records of epoch 1."""
    replica = Replica(2, 20, log_with(records), min_insync=2, patience=3.0, high_watermark=0)
    replica.observe(PartitionState((1, 2, 3), ALIVE, 1, 10, leader_epoch), 1, 0.0)
    return replica


def ask(leader: Replica, follower: int, end: int, now: float, *, damaged: bool = False) -> None:
    leader.fetch(FollowerRequest(follower, ALIVE[follower], 1, end, end, 1 if end else 0, damaged=damaged), now)


def test_a_follower_that_asks_and_gets_no_further_is_left_behind() -> None:
    leader = leader_with(10)
    for now in range(10):
        ask(leader, 2, 10, float(now))
        ask(leader, 3, 4, float(now))  # its disk is full
    assert leader.high_watermark == 4
    proposal = leader.propose(ALIVE, 9.0)
    assert proposal is not None
    assert dict(proposal.state.in_sync) == {1: 10, 2: 20}


def test_a_follower_that_is_slow_but_gets_on_is_waited_for_and_so_is_one_that_has_everything() -> None:
    leader = leader_with(10)
    for now in range(10):
        ask(leader, 2, 10, float(now))
        ask(leader, 3, now, float(now))
    assert leader.propose(ALIVE, 9.0) is None


def test_a_damaged_follower_is_not_in_sync_until_it_is_repaired() -> None:
    leader = leader_with(10)
    ask(leader, 2, 10, 0.0)
    ask(leader, 3, 10, 0.0, damaged=True)
    proposal = leader.propose(ALIVE, 0.0)
    assert proposal is not None
    assert dict(proposal.state.in_sync) == {1: 10, 2: 20}
    leader.observe(proposal.state, 2, 0.0)
    ask(leader, 3, 10, 0.1, damaged=True)
    assert leader.propose(ALIVE, 0.1) is None  # it has everything, and something of it is damaged
    ask(leader, 2, 10, 0.1, damaged=True)
    assert leader.propose(ALIVE, 0.1) is None  # nor is there anyone else to be in sync
    assert not leader.is_alone(0.1)
    ask(leader, 3, 10, 0.2)
    proposal = leader.propose(ALIVE, 0.2)
    assert proposal is not None
    assert dict(proposal.state.in_sync) == ALIVE


def test_a_follower_counts_with_what_is_durable_there() -> None:
    leader = leader_with(10, in_sync={1: 10, 2: 20})
    leader.fetch(FollowerRequest(2, 20, 1, 10, 6, 1), 0.0)
    assert leader.high_watermark == 6


def test_a_leader_counts_itself_with_what_is_durable() -> None:
    leader = leader_with(10, in_sync={1: 10, 2: 20})
    leader.log.add([Entry(1, 0, 10)])  # and no sync
    ask(leader, 2, 11, 0.0)
    assert leader.high_watermark == 10


def test_a_follower_that_may_be_in_sync_by_now_is_waited_for() -> None:
    leader = leader_with(10, in_sync={1: 10, 2: 20})
    ask(leader, 2, 10, 0.0)
    ask(leader, 3, 10, 0.0)
    proposal = leader.propose(ALIVE, 0.0)
    assert proposal is not None  # etcd may have taken it, whatever becomes of the answer
    assert isinstance(leader.log, SimulatedLog)
    append(leader.log, 5)
    ask(leader, 2, 15, 0.1)
    assert leader.high_watermark == 10
    leader.refused(proposal)
    ask(leader, 2, 15, 0.2)
    assert leader.high_watermark == 15


def test_nothing_is_acknowledged_with_fewer_in_sync_than_required() -> None:
    leader = leader_with(10, in_sync={1: 10})
    ask(leader, 2, 10, 0.0)
    assert leader.high_watermark == 0
    leader.require(1)
    leader.synced()
    assert leader.high_watermark == 10


def test_the_in_sync_set_does_not_shrink_below_the_minimum() -> None:
    leader = leader_with(10, in_sync={1: 10, 2: 20})
    assert leader.propose({1: 10}, 60.0) is None
    leader.require(1)
    proposal = leader.propose({1: 10}, 60.0)
    assert proposal is not None
    assert dict(proposal.state.in_sync) == {1: 10}


def test_a_new_leader_shows_nothing_until_those_in_sync_have_its_log() -> None:
    leader = leader_with(10)
    assert leader.readable is None
    ask(leader, 2, 10, 0.0)
    ask(leader, 3, 9, 0.0)
    assert leader.readable is None
    ask(leader, 3, 10, 0.1)
    assert leader.readable == 10


def test_a_follower_joins_with_everything_that_is_acknowledged() -> None:
    leader = leader_with(10, in_sync={1: 10, 2: 20})
    assert isinstance(leader.log, SimulatedLog)
    append(leader.log, 5)
    ask(leader, 2, 15, 0.0)
    ask(leader, 3, 10, 0.0)  # all that was there at the election
    assert leader.propose(ALIVE, 0.0) is None
    ask(leader, 3, 15, 0.1)
    assert leader.propose(ALIVE, 0.1) is not None


def test_a_follower_with_records_of_another_epoch_is_told_where_to_cut() -> None:
    leader = leader_with(10)
    assert leader.fetch(FollowerRequest(2, 20, 1, 10, 10, 0), 0.0).diverging == EpochEnd(0, 0)
    assert leader.fetch(FollowerRequest(2, 20, 1, 11, 11, 1), 0.0).diverging == EpochEnd(1, 10)
    assert leader.fetch(FollowerRequest(2, 20, 1, 10, 10, 1), 0.0).diverging is None


def test_a_follower_takes_no_answer_to_another_question() -> None:
    follower = follower_with(3)
    batches = (Entry(1, 0, 3),)
    for epoch, end, last_epoch in ((1, 3, 1), (3, 3, 1), (2, 2, 1), (2, 3, 2)):
        follower.take(FollowerResponse(epoch, end, last_epoch, batches, 0))
        assert follower.log.end == 3
    follower.take(FollowerResponse(2, 3, 1, batches, 0))
    assert follower.log.end == 4


def test_an_old_request_of_a_follower_does_not_count() -> None:
    leader = leader_with(10)
    ask(leader, 3, 8, 0.0)
    ask(leader, 3, 4, 0.1)  # it was held up on its way
    ask(leader, 2, 8, 0.2)
    assert leader.high_watermark == 8


def test_a_leader_is_confirmed_by_all_who_may_elect_another() -> None:
    leader = leader_with(10)
    mark = leader.mark()
    assert not leader.confirmed(mark)
    for follower in (2, 3):
        assert not leader.confirmed(mark)
        leader.heard(FollowerRequest(follower, ALIVE[follower], 1, 10, 10, 1, mark))
    assert leader.confirmed(mark)
    assert not leader.confirmed(leader.mark())
