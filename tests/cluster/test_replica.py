"""Who is in sync: a follower that asks and gets nothing done is left behind, as one that does not ask."""

from __future__ import annotations

from headwater.cluster.metadata import PartitionState
from headwater.cluster.replica import FetchRequest, Replica
from tests.cluster.log import Entry, SimulatedLog

ALIVE = {1: 10, 2: 20, 3: 30}


def leader_with(records: int) -> Replica:
    log = SimulatedLog()
    log.add([Entry(1, 0, number) for number in range(records)])
    log.sync()
    replica = Replica(1, 10, log, min_insync=2, patience=3.0, high_watermark=0)
    replica.observe(PartitionState((1, 2, 3), ALIVE, 1, 10, 1), 1, 0.0)
    return replica


def ask(leader: Replica, follower: int, end: int, now: float, *, damaged: bool = False) -> None:
    leader.fetch(FetchRequest(follower, ALIVE[follower], 1, end, end, 1 if end else 0, damaged=damaged), now)


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
