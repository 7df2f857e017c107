"""The protocol of the cluster, in a world where everything goes wrong: no rule may be missing, and none is idle.

Each seed is one history. A seed that ever showed a fault stays here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from headwater.cluster.control.election import Election, LogEnd
from headwater.cluster.control.metadata import Members, PartitionState, Proposal
from headwater.cluster.replication.replica import EpochEnd, FollowerRequest, Replica
from tests.cluster.log import Entry, LogStart, SimulatedLog
from tests.cluster.model import PARTITION, Broker, Cluster, Violation

HISTORIES = 150
ENOUGH = 400
"""In so many histories a missing rule has shown."""


@pytest.mark.parametrize("first", range(0, HISTORIES, 50))
def test_nothing_is_lost_doubled_or_told_differently(first: int) -> None:
    for seed in range(first, first + 50):
        Cluster(seed).run()


def test_a_history_repeats() -> None:
    first, second = Cluster(7), Cluster(7)
    first.run()
    second.run()
    assert first.world.history == second.world.history
    assert first.truth.acknowledged


# Each rule is taken away once.


class FollowersReportWhatIsNotDurable(Replica):
    def _counted_end(self, request: FollowerRequest) -> int:
        return request.end


class LeaderCountsWhatIsNotDurable(Replica):
    def _own_end(self) -> int:
        return self.log.end


class NewIncarnationInherits(Replica):
    @property
    def leads(self) -> bool:
        return self.state is not None and self.state.leader == self.broker


class JoinsBeforeItHasCaughtUp(Replica):
    def _caught_up(self, progress: object) -> bool:  # noqa: ARG002
        return True


class DivergenceIsNotNoticed(Replica):
    def _diverges(self, request: FollowerRequest) -> bool:
        return request.end > self.log.end


class TruncatesEverything(Replica):
    def _truncate(self, theirs: EpochEnd) -> None:  # noqa: ARG002
        self.log.truncate(0)


class InheritingElection(Election):
    def is_led(self, state: PartitionState, alive: Members) -> bool:
        return state.leader in alive


class UncleanElection(Election):
    def elect(self, state: PartitionState, alive: Members, ends: Mapping[int, LogEnd]) -> PartitionState | None:  # noqa: ARG002
        living = [broker for broker in state.replicas if broker in alive]
        if not living:
            return None
        members = {**self._kept(state, alive), living[0]: alive[living[0]]}
        return PartitionState(state.replicas, members, living[0], alive[living[0]], state.epoch + 1)


class LostDiskStaysInSync(Broker):
    def must_leave(self, *, damaged: bool) -> bool:
        self.lost = False
        return damaged


class WritesWhateverHasChanged(Broker):
    def write_proposal(self, proposal: Proposal) -> int:
        return self.etcd.write([], {PARTITION: proposal.state})


class AnswersRepeatsAtOnce(Broker):
    def produce(self, producer: int, sequence: int, answer: Callable[[int], None]) -> None:
        offset = self.log.find(producer, sequence)
        if self.replica is not None and self.replica.leads and offset is not None:
            self.truth.tell(offset, (producer, sequence), self.name, acknowledged=True)
            answer(offset)
        else:
            super().produce(producer, sequence, answer)


class ShowsWhatIsNotAcknowledged(Broker):
    def readable(self) -> int:
        return self.log.end


class AnswersReadersAtOnce(Replica):
    @property
    def readable(self) -> int:
        return self.high_watermark


class ShowsAllThatItInherits(Replica):
    @property
    def readable(self) -> int:
        return max(self.high_watermark, self._epoch_start)


class ServesReadersWithoutALease(Broker):
    def may_lead(self) -> bool:
        return True


class DeletesWhatIsNotAcknowledged(Broker):
    def deletable(self) -> int:
        return self.log.end


class RestartsWithoutProducers(Broker):
    def restart(self, begins: LogStart) -> None:
        super().restart(begins._replace(producers=()))


class RestartsWithoutEpochs(Broker):
    def restart(self, begins: LogStart) -> None:
        super().restart(begins._replace(epochs=()))


class ShowsDamage(SimulatedLog):
    def verified(self, offset: int) -> Entry:
        entry = self.at(offset)
        return entry._replace(producer=-1) if offset in self.damaged else entry


class ServesDamage(Broker):
    log_kind = ShowsDamage


class RepairsWithoutLeaving(Broker):
    def must_leave(self, *, damaged: bool) -> bool:
        self._unworthy = damaged
        return self.lost


class RepairsAsTheSameOne(Broker):
    def repair(self) -> None:
        assert self.replica is not None
        self._unworthy = True
        self._mend()


def with_replica(kind: type[Replica], election: type[Election] = Election) -> type[Broker]:
    return type(kind.__name__, (Broker,), {"replica_kind": kind, "election_kind": election})


@pytest.mark.parametrize(
    ("broken", "seed"),
    [
        (with_replica(FollowersReportWhatIsNotDurable), 0),
        (with_replica(LeaderCountsWhatIsNotDurable), 1),
        (with_replica(NewIncarnationInherits, InheritingElection), 6),
        (with_replica(JoinsBeforeItHasCaughtUp), 218),
        (with_replica(DivergenceIsNotNoticed), 61),
        (with_replica(TruncatesEverything), 17),
        (with_replica(Replica, UncleanElection), 12),
        (LostDiskStaysInSync, 210),
        (WritesWhateverHasChanged, 329),
        (AnswersRepeatsAtOnce, 0),
        (ShowsWhatIsNotAcknowledged, 8),
        (with_replica(AnswersReadersAtOnce), 2),
        (with_replica(ShowsAllThatItInherits), 71),
        (ServesReadersWithoutALease, 265),
        (DeletesWhatIsNotAcknowledged, 160),
        (RestartsWithoutProducers, 133),
        (RestartsWithoutEpochs, 25),
        (ServesDamage, 1),
        (RepairsWithoutLeaving, 531),
        (RepairsAsTheSameOne, 306),
    ],
    ids=lambda kind: getattr(kind, "__name__", str(kind)),
)
def test_without_a_rule_something_is_lost(broken: type[Broker], seed: int) -> None:
    """The first history to be tried is one that is known to show it; others do where that has become another one."""

    def fails(seed: int) -> bool:
        try:
            Cluster(seed, broken).run()
        except Violation:
            return True
        return False

    assert any(fails(number) for number in range(seed, seed + ENOUGH))
