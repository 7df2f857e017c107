"""A replica of a partition: follows a leader, or is the one that others follow.

Each rule answers a schedule that loses data without it; each is a method of its own, so that the simulation can take it
away and show that schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headwater.cluster.control.election import LogEnd
from headwater.cluster.control.metadata import Members, PartitionState, Proposal
from headwater.log.write.role import NotLeading as NotLeading


class EpochEnd(NamedTuple):
    """An epoch, and the offset after its last record in a log."""

    epoch: int
    end: int


class ReplicaLog(Protocol):
    """The methods that a replica needs of its log."""

    @property
    def end(self) -> int:
        """The offset after the last record."""

    @property
    def durable_end(self) -> int:
        """The offset before which a power loss takes nothing."""

    def epoch_before(self, offset: int) -> int:
        """The epoch of the record before `offset`; 0 when there is none."""

    def end_of(self, epoch: int) -> EpochEnd:
        """The greatest epoch in the log that is not above `epoch`, and where it ends; (0, 0) when there is none."""

    def read(self, start: int) -> Sequence[Any]:
        """Batches from `start` on."""

    def add(self, batches: Sequence[Any]) -> None:
        """Add batches of the leader as they are, behind the end."""

    def truncate(self, offset: int) -> None:
        """Remove every record from `offset` on."""


class FollowerRequest(NamedTuple):
    """A follower asks for what is behind its end, and tells what it has."""

    replica: int
    incarnation: int
    epoch: int
    end: int
    durable_end: int
    last_epoch: int
    mark: int = 0
    """The last of the leader's marks that has reached it, in this epoch."""
    damaged: bool = False
    """True if it is damaged, and being repaired."""


class FollowerResponse(NamedTuple):
    """Batches; or, when the logs differ, where the follower's last epoch ends at the leader."""

    epoch: int
    end: int
    """The end of the follower's log when it asked."""
    last_epoch: int
    """In which epoch its last record was appended."""
    batches: Sequence[Any]
    high_watermark: int
    diverging: EpochEnd | None = None
    mark: int = 0
    """The last that the leader has made, in this epoch."""


@dataclass(slots=True)
class FollowerProgress:
    """The progress of a follower, in one epoch of its leader and one incarnation of its own."""

    incarnation: int
    durable_end: int
    seen: float
    """When it last had all there was, or more than before."""
    damaged: bool = False
    """True if it is being repaired: as long as others are in sync, it is not to be elected."""


class Replica:
    """One replica in one incarnation of its broker."""

    def __init__(
        self, broker: int, incarnation: int, log: ReplicaLog, *, min_insync: int, patience: float, high_watermark: int
    ) -> None:
        self.broker = broker
        self.incarnation = incarnation
        self.log = log
        self.high_watermark = high_watermark
        """Records before it are acknowledged, and readable; here a lower bound of the leader's."""
        self._min_insync = min_insync
        self._patience = patience
        self.state: PartitionState | None = None
        self.revision = 0
        self._progress: dict[int, FollowerProgress] = {}
        self._pending: Proposal | None = None
        self._led_since = 0.0
        self._epoch_start = 0
        """The end of the log when this epoch began: whatever earlier leaders acknowledged or showed is before it."""
        self._settled = False
        """True if everybody who counts has had everything before that, in this epoch."""
        self.beside: Replica | None = None
        """The replica of another log that is kept with this one: in sync is who keeps up with both."""
        self._mark = 0
        """The last mark, in this epoch: of those that it makes as the leader, or has been told as a follower."""
        self._reached: dict[int, int] = {}
        """The last mark that each follower has told it knows of, in this epoch."""

    # The state of the cluster.

    def observe(self, state: PartitionState, revision: int, now: float) -> None:
        """Take note of the partition's state; what is older than what is known counts no more."""
        if revision <= self.revision:
            return
        before = self.state
        self.state, self.revision = state, revision
        if self._pending is not None and self._pending.revision < revision:
            self._pending = None  # it was taken, or something else was: either way this is how it came out
        if before is None or state.epoch != before.epoch:
            self._progress = {}
            self._mark = 0
            self._reached = {}
            self._pending = None
            self._led_since = now
            self._epoch_start = self.log.end
            self._settled = False
        if self.leads:
            self._advance()

    @property
    def epoch(self) -> int:
        """The epoch of the state that this replica knows."""
        return self.state.epoch if self.state is not None else 0

    @property
    def leads(self) -> bool:
        """True if it leads, as far as it knows. A leader of an earlier epoch can think so; it cannot acknowledge."""
        state = self.state
        return state is not None and state.leader == self.broker and state.leader_incarnation == self.incarnation

    @property
    def in_sync(self) -> bool:
        """True if acknowledgements wait for it, as far as it knows: in whichever incarnation it came to be in sync."""
        return self.state is not None and self.broker in self.state.in_sync

    @property
    def all_in_sync(self) -> bool:
        """True if every replica is in sync, as far as this one knows."""
        return self.state is not None and all(broker in self.state.in_sync for broker in self.state.replicas)

    @property
    def log_end(self) -> LogEnd:
        """The end of the log, which an election compares."""
        return LogEnd(self.log.epoch_before(self.log.end), self.log.durable_end)

    # Leading.

    def fetch(self, request: FollowerRequest, now: float) -> FollowerResponse:
        """Answer a follower; raises NotLeading when either of the two is in another epoch, or it holds no replica."""
        if not self.leads or request.epoch != self.epoch or not self._is_replica(request.replica):
            raise NotLeading
        if self._diverges(request):
            epoch_end = self.log.end_of(request.last_epoch)
            return FollowerResponse(
                self.epoch, request.end, request.last_epoch, (), self.high_watermark, epoch_end, mark=self._mark
            )
        self._note(request, now)
        self._advance()
        batches = self.log.read(request.end)
        return FollowerResponse(
            self.epoch, request.end, request.last_epoch, batches, self.high_watermark, mark=self._mark
        )

    def _is_replica(self, broker: int) -> bool:
        return self.state is not None and broker in self.state.replicas

    def _diverges(self, request: FollowerRequest) -> bool:
        """Return whether the follower has something that this log has not."""
        return request.end > self.log.end or self.log.epoch_before(request.end) != request.last_epoch

    def _note(self, request: FollowerRequest, now: float) -> None:
        known = self._progress.get(request.replica)
        if known is not None and self._is_old(request, known):
            return
        seen = now if known is None or self._gets_on(request, known) else known.seen
        end = self._counted_end(request)
        self._progress[request.replica] = FollowerProgress(request.incarnation, end, seen, request.damaged)

    def _gets_on(self, request: FollowerRequest, known: FollowerProgress) -> bool:
        """Return whether a follower has everything, or more than before. One with a full disk asks again and again."""
        before = (known.incarnation, known.durable_end)
        return request.durable_end >= self._own_end() or (request.incarnation, request.durable_end) > before

    def _is_old(self, request: FollowerRequest, known: FollowerProgress) -> bool:
        """Return whether the request was made before one that has come already."""
        return (request.incarnation, request.durable_end) < (known.incarnation, known.durable_end)

    def _counted_end(self, request: FollowerRequest) -> int:
        """Return the offset up to which a follower has the log for sure: a power loss takes the rest."""
        return request.durable_end

    def _own_end(self) -> int:
        return self.log.durable_end

    def _counted(self) -> Members:
        """Return the replicas that must have a record before it is acknowledged: the ISR, and who may be in it by now.

        A proposal that etcd has not answered may have been taken, and the next leader be chosen by it.
        """
        assert self.state is not None
        counted = dict(self.state.in_sync)
        if self._pending is not None:
            for broker, incarnation in self._pending.state.in_sync.items():
                counted[broker] = max(incarnation, counted.get(broker, 0))
        return counted

    def _advance(self) -> None:
        """Raise the high watermark as far as everybody who counts has come."""
        assert self.state is not None
        end = self._common_end()
        if end is None:
            return
        self._settled = self._settled or end >= self._epoch_start
        if len(self.state.in_sync) >= self._min_insync:
            self.high_watermark = max(self.high_watermark, end)

    def _common_end(self) -> int | None:
        """Return the offset that all counted replicas have reached in this epoch; None while one has not told."""
        ends = [self._own_end()]
        for broker, incarnation in self._counted().items():
            if broker == self.broker:
                continue
            progress = self._progress.get(broker)
            if progress is None or progress.incarnation < incarnation:
                return None
            ends.append(progress.durable_end)
        return min(ends)

    @property
    def readable(self) -> int | None:
        """Before which offset a leader shows records; None while it may not answer readers.

        A new leader knows a lower bound of what was acknowledged, and readers have seen more than that. All of it is in
        its log, and nobody takes it back once everybody who counts has the log up to where it ended at the election.
        Until then there is no answer that is neither too little nor too much.
        """
        if self._settled:
            return max(self.high_watermark, self._epoch_start)
        return self.high_watermark if self.high_watermark >= self._epoch_start else None

    def require(self, min_insync: int) -> None:
        """So many have to be in sync from now on before anything is acknowledged."""
        self._min_insync = min_insync

    def synced(self) -> None:
        """The log has become durable up to another offset."""
        if self.leads:
            self._advance()

    # Being sure that nobody else leads.

    def mark(self) -> int:
        """Make a mark, for `confirmed`: every answer from now on carries it, and every question asked after one."""
        self._mark += 1
        return self._mark

    def heard(self, request: FollowerRequest) -> None:
        """A follower has asked, however long its answer takes."""
        if self.leads and request.epoch == self.epoch:
            self._reached[request.replica] = max(request.mark, self._reached.get(request.replica, 0))

    def reach(self, epoch: int, mark: int) -> None:
        """An answer of the leader of an epoch has come, with its last mark."""
        if not self.leads and epoch == self.epoch:
            self._mark = max(self._mark, mark)

    def confirmed(self, mark: int) -> bool:
        """Return whether nobody led in a later epoch at the time of the mark.

        A later leader needs all who are in sync, or may be by now. A question that carries the mark was asked after an
        answer that was given after it: so at that time the follower followed this leader, and no other. How often one
        has asked shows nothing: a stream that broke, or a new incarnation, leaves more than one question on its way.
        """
        if not self.leads:
            return False
        return all(self._reached.get(broker, 0) >= mark for broker in self._counted() if broker != self.broker)

    # The in-sync set.

    def keep_beside(self, other: Replica) -> None:
        """Have another log kept with this one, by the same brokers in the same epochs: this one speaks for both."""
        self.beside = other
        other._pending = self._pending

    def propose(self, alive: Members, now: float) -> Proposal | None:
        """The change to ask of etcd, one at a time: take in a replica that caught up, take out one away or damaged."""
        if not self.leads or self._pending is not None:
            return None
        assert self.state is not None
        before = dict(self.state.in_sync)
        joined = before | self._caught_up_members(alive)
        members = joined if joined != before else self._without_absent(before, alive, now)
        if members == before:
            return None
        guarded = {broker: since for broker, since in members.items() if before.get(broker) != since}
        self._pending = Proposal(self.state.with_in_sync(members), self.revision, guarded)
        if self.beside is not None:
            self.beside._pending = self._pending
        return self._pending

    def _caught_up_members(self, alive: Members) -> dict[int, int]:
        """Return the followers that keep up, each with the incarnation in which it does and is alive."""
        assert self.state is not None
        return {
            broker: progress.incarnation
            for broker, progress in self._progress.items()
            if broker in self.state.replicas
            and self._keeps_up(broker, progress.incarnation)
            and alive.get(broker) == progress.incarnation
        }

    def _without_absent(self, members: dict[int, int], alive: Members, now: float) -> dict[int, int]:
        """Return the members without those that are away, get nothing done or are damaged, but enough of them."""
        left = dict(members)
        for broker in members:
            absent = broker not in alive or self._stays_away(broker, now) or self._is_damaged(broker)
            if broker != self.broker and absent and self._may_shrink(left):
                del left[broker]
        return left

    def _keeps_up(self, broker: int, incarnation: int) -> bool:
        """Return whether a follower has caught up, in every log that is kept here."""
        progress = self._progress.get(broker)
        if progress is None or progress.incarnation != incarnation or not self._caught_up(progress):
            return False
        return self.beside is None or self.beside._keeps_up(broker, incarnation)

    def _caught_up(self, progress: FollowerProgress) -> bool:
        """Return whether a follower has everything that was acknowledged, in this epoch too, without damage."""
        if progress.damaged:
            return False
        return progress.durable_end >= max(self.high_watermark, self._epoch_start)

    def _is_damaged(self, broker: int) -> bool:
        """Return whether a follower is being repaired, in any log that is kept here."""
        progress = self._progress.get(broker)
        if progress is not None and progress.damaged:
            return True
        return self.beside is not None and self.beside._is_damaged(broker)

    def _stays_away(self, broker: int, now: float) -> bool:
        """Return whether a follower has got nothing done for long."""
        progress = self._progress.get(broker)
        if now - (self._led_since if progress is None else progress.seen) > self._patience:
            return True
        return self.beside is not None and self.beside._stays_away(broker, now)

    def is_alone(self, now: float) -> bool:
        """Return whether none of those who follow in sync has asked for long: they may follow another one by now."""
        others = [] if self.state is None else [broker for broker in self.state.in_sync if broker != self.broker]
        return bool(others) and all(self._stays_away(broker, now) for broker in others)

    def _may_shrink(self, members: Members) -> bool:
        """Not below the minimum: then writes wait instead."""
        return len(members) > self._min_insync

    def refused(self, proposal: Proposal) -> None:
        """etcd did not take it, for sure. Not to be called when the answer was lost: then it may have."""
        if self._pending == proposal:
            self._pending = None
        if self.beside is not None:
            self.beside.refused(proposal)

    # Following.

    def request(self) -> FollowerRequest | None:
        """Return the next request to the leader; None if there is none, if it is this one, or if this is no replica.

        A broker that holds no replica deletes its log. Its earlier requests must not count if it holds one again in the
        same epoch.
        """
        if self.state is None or self.leads or self.state.leader < 0 or not self._is_replica(self.broker):
            return None
        end = self.log.end
        return FollowerRequest(
            self.broker, self.incarnation, self.epoch, end, self.log.durable_end, self.log.epoch_before(end), self._mark
        )

    def take(self, response: FollowerResponse) -> None:
        """Take in what the leader has answered. Answers of another epoch, or to another question, count no more."""
        self.reach(response.epoch, response.mark)
        if self.leads or not self._fits(response):
            return
        if response.diverging is not None:
            self._truncate(response.diverging)
            return
        self.log.add(response.batches)
        self.high_watermark = max(self.high_watermark, min(response.high_watermark, self.log.end))

    def _fits(self, response: FollowerResponse) -> bool:
        """Return whether it answers what would be asked now. A log that was cut may be as long again, and differ."""
        end = self.log.end
        return response[:3] == (self.epoch, end, self.log.epoch_before(end))

    def _truncate(self, theirs: EpochEnd) -> None:
        """Cut off what the leader does not have: where the epoch that both know ends. Asked again until they agree."""
        ours = self.log.end_of(theirs.epoch)
        self.log.truncate(min(theirs.end, ours.end) if ours.epoch == theirs.epoch else ours.end)
