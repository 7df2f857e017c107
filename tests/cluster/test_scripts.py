"""Scripts that lose data when one rule is missing, and lose nothing with it: coincidences that a die does not show.

Each script is played twice, with the rule and without.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.cluster.control.metadata import Members, PartitionState
from headwater.cluster.replication.replica import EpochEnd, FollowerProgress, FollowerRequest, FollowerResponse, Replica
from tests.cluster.model import Violation
from tests.cluster.stage import Rules, Stage

Script = Callable[[Stage], None]


def joined_without_being_told(stage: Stage) -> None:
    """Broker 2 is in sync by a proposal whose answer was lost: it must have what is acknowledged from then on."""
    _leave_out(stage, 2)
    stage.append(0, 3)
    stage.fetch(1, 0, times=2)
    stage.fetch(2, 0, times=2)
    proposal = stage.propose(0)
    assert stage.take(proposal)
    stage.lose_answer(0, proposal)
    stage.append(0)
    stage.fetch(1, 0, times=2)
    stage.die(0, 1)
    stage.check(stage.elect())


class PendingProposalsDoNotCount(Replica):
    def _counted(self) -> Members:
        assert self.state is not None
        return self.state.in_sync


def late_request_of_an_earlier_epoch(stage: Stage) -> None:
    """Broker 1 had a record in epoch 1, and has cut it off since; what it said in epoch 1 counts no more in epoch 3."""
    stage.append(0, 5)
    for follower in (1, 2):
        stage.fetch(follower, 0, times=4)
    stage.append(0)
    stage.fetch(1, 0)
    late = stage.ask(1)
    stage.write(PartitionState((0, 1, 2), stage.state.in_sync, 2, stage.alive[2], 2))
    stage.tell(2, 1)  # not broker 0, which is cut off
    stage.append(2)
    stage.fetch(1, 2, times=1)
    assert stage.logs[1].end == 5
    stage.die(2)
    assert stage.elect() == 0
    stage.serve(0, late)
    stage.die(0)
    stage.check(stage.elect())


class FetchesInAnyEpoch(Replica):
    def fetch(self, request: FollowerRequest, now: float) -> FollowerResponse:
        return super().fetch(request._replace(epoch=self.epoch), now)


def late_answer_of_an_earlier_epoch(stage: Stage) -> None:
    """An answer fits by its offset alone, and puts a record of epoch 1 behind those of epoch 2."""
    stage.append(0, 3)
    for follower in (1, 2):
        stage.fetch(follower, 0, times=3)
    stage.append(0, 2)
    stage.fetch(1, 0)
    stage.append(0)
    late = stage.serve(0, stage.ask(1))
    stage.die(0)
    stage.write(PartitionState((0, 1, 2), {1: stage.alive[1], 2: stage.alive[2]}, 2, stage.alive[2], 2))
    stage.tell(1, 2)
    stage.append(2, 2)
    stage.fetch(1, 2, times=3)
    assert stage.logs[1].end == 5
    stage.answer(1, late)
    stage.append(2)
    stage.fetch(1, 2)
    stage.die(2)
    stage.check(stage.elect())


class AnswersOfAnyEpochAreTaken(Replica):
    def _fits(self, response: FollowerResponse) -> bool:
        return response.end == self.log.end


def cut_at_the_high_watermark(stage: Stage) -> None:
    """Broker 1 has more that is acknowledged than it knows of, and cuts off one record that is not."""
    stage.append(0, 4)
    for follower in (1, 2):
        stage.fetch(follower, 0)
        stage.serve(0, stage.ask(follower))  # its answer, which tells that all is acknowledged, is lost
    stage.append(0)
    stage.answer(1, stage.serve(0, stage.ask(1))._replace(high_watermark=0))  # type: ignore[union-attr]
    stage.die(0)
    stage.write(PartitionState((0, 1, 2), {1: stage.alive[1], 2: stage.alive[2]}, 2, stage.alive[2], 2))
    stage.tell(1, 2)
    stage.append(2)
    stage.fetch(1, 2)
    stage.die(2)
    stage.check(stage.elect())


class TruncatesToTheHighWatermark(Replica):
    def _truncate(self, theirs: EpochEnd) -> None:  # noqa: ARG002
        self.log.truncate(min(self.high_watermark, self.log.end))


def joined_behind_the_epochs_start(stage: Stage) -> None:
    """A new leader does not know yet how much is acknowledged: who joins must have all that it began with."""
    _leave_out(stage, 1)
    stage.append(0, 4)
    stage.fetch(2, 0)
    stage.serve(0, stage.ask(2))  # acknowledged, and broker 2 has not heard of it
    stage.die(0)
    assert stage.elect() == 2
    stage.serve(2, stage.ask(1))
    proposal = stage.replicas[2].propose(stage.alive, stage.now)
    if proposal is not None:
        assert stage.take(proposal)
    stage.die(2)
    if 1 in stage.state.in_sync:
        stage.check(stage.elect())


class JoinsBeforeTheEpochsStart(Replica):
    def _caught_up(self, progress: FollowerProgress) -> bool:
        return progress.durable_end >= self.high_watermark


def joined_after_its_disk_was_lost(stage: Stage) -> None:
    """A proposal for one incarnation is not true of the next one, which has an empty disk."""
    _leave_out(stage, 1)
    stage.append(0, 4)
    for follower in (2, 1):
        stage.fetch(follower, 0, times=2)
    proposal = stage.propose(0)
    stage.die(1)
    stage.shorten(1, 0)
    stage.start(1)
    stage.take(proposal)
    stage.die(0)
    assert stage.elect() == 2
    stage.die(2)
    if 1 in stage.state.in_sync:
        stage.check(stage.elect())


def restarted_with_less(stage: Stage) -> None:
    """A disk has forgotten what it had synced: the replica leaves before it is taken for one that has everything."""
    stage.append(0, 4)
    for follower in (1, 2, 1):
        stage.fetch(follower, 0, times=2)
    stage.die(1)
    stage.shorten(1, 2)
    stage.start(1)
    stage.die(0)
    assert stage.elect() == 2
    stage.die(2)
    if 1 in stage.state.in_sync:
        stage.check(stage.elect())


def repaired_and_taken_in_again(stage: Stage) -> None:
    """A replica that repairs itself has less than it has told: its leader must not go by that."""
    stage.append(0, 4)
    for follower in (1, 2):
        stage.fetch(follower, 0, times=2)
    stage.repair(1, damaged=1)
    stage.serve(0, stage.ask(1))  # whose answer is lost
    proposal = stage.replicas[0].propose(stage.alive, stage.now)
    if proposal is not None:
        assert stage.take(proposal)
    stage.die(0, 2)
    if 1 in stage.state.in_sync:
        stage.check(stage.elect())


def counted_for_its_successor(stage: Stage) -> None:
    """Two processes go by one name: an old one on the disk that was replaced, and the new one, which is in sync."""
    stage.append(0, 2)
    for follower in (1, 2):
        stage.fetch(follower, 0, times=2)
    old, log = stage.replicas[1], stage.logs[1]
    stage.write(stage.state.without(1))
    stage.logs[1] = type(log)()
    stage.checkpoints[1] = 0
    stage.start(1)
    stage.tell(0, 1, 2)
    stage.fetch(1, 0, times=2)
    assert stage.take(stage.propose(0))
    stage.write(PartitionState((0, 1, 2), stage.state.in_sync, 0, stage.alive[0], 2))
    stage.tell(0, 1, 2)
    old.observe(stage.state, stage.partition_revision, stage.now)
    stage.append(0)
    stage.fetch(2, 0, times=2)
    for _ in range(2):
        request = old.request()
        assert request is not None
        response = stage.serve(0, request)
        assert response is not None
        old.take(response)
        log.sync()
    stage.die(0, 2)
    stage.check(stage.elect())


class AnyIncarnationCounts(Replica):
    def _counted(self) -> Members:
        return dict.fromkeys(super()._counted(), 0)


def counted_by_an_earlier_epoch(stage: Stage) -> None:
    """Broker 1 was ahead in epoch 1 and cut that off in epoch 2; broker 0, which leads again, knew it as it was."""
    stage.append(0, 3)
    for follower in (1, 2):
        stage.fetch(follower, 0, times=3)
    stage.append(0)
    stage.fetch(1, 0, times=2)
    stage.write(PartitionState((0, 1, 2), stage.state.in_sync, 2, stage.alive[2], 2))
    stage.tell(1, 2)
    stage.append(2)
    stage.fetch(1, 2)
    stage.die(2)
    assert stage.elect() == 0
    stage.die(0)
    stage.check(stage.elect())


class ProgressOutlivesItsEpoch(Replica):
    def observe(self, state: PartitionState, revision: int, now: float) -> None:
        known = self._progress
        super().observe(state, revision, now)
        if self.leads:
            self._progress = known
            self._advance()


def told_of_the_past(stage: Stage) -> None:
    """News that come late do not undo what is known: broker 2 has joined since, and counts."""
    before, revision = stage.state.without(2), stage.partition_revision
    stage.append(0)
    stage.fetch(1, 0, times=2)
    stage.replicas[0].observe(before, revision - 1, stage.now)
    stage.append(0)
    stage.fetch(1, 0, times=2)
    stage.die(0, 1)
    stage.check(stage.elect())


class TheLastWordCounts(Replica):
    def observe(self, state: PartitionState, revision: int, now: float) -> None:
        self.revision = min(self.revision, revision - 1)
        super().observe(state, revision, now)


def _leave_out(stage: Stage, broker: int) -> None:
    """Make the partition one whose in-sync set lacks a broker."""
    stage.write(stage.state.without(broker))
    stage.tell(0, 1, 2)


@pytest.mark.parametrize(
    ("script", "broken"),
    [
        (joined_without_being_told, Rules(replica=PendingProposalsDoNotCount)),
        (joined_without_being_told, Rules(lost_answers_are_unknown=False)),
        (late_request_of_an_earlier_epoch, Rules(replica=FetchesInAnyEpoch)),
        (late_answer_of_an_earlier_epoch, Rules(replica=AnswersOfAnyEpochAreTaken)),
        (cut_at_the_high_watermark, Rules(replica=TruncatesToTheHighWatermark)),
        (joined_behind_the_epochs_start, Rules(replica=JoinsBeforeTheEpochsStart)),
        (joined_after_its_disk_was_lost, Rules(proposals_name_the_living=False)),
        (restarted_with_less, Rules(short_logs_leave=False)),
        (repaired_and_taken_in_again, Rules(repairs_register_anew=False)),
        (counted_for_its_successor, Rules(replica=AnyIncarnationCounts)),
        (counted_by_an_earlier_epoch, Rules(replica=ProgressOutlivesItsEpoch)),
        (told_of_the_past, Rules(replica=TheLastWordCounts)),
    ],
    ids=lambda parameter: parameter.__name__ if callable(parameter) else parameter.missing,
)
def test_a_script_does_harm_without_its_rule_only(script: Script, broken: Rules) -> None:
    script(Stage(Rules()))
    with pytest.raises(Violation):
        script(Stage(broken))
