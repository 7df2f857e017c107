"""Replicas move from broker to broker in a world where everything goes wrong: no rule of moving may be missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headwater.cluster.control.metadata import Members, Move, PartitionState
from headwater.cluster.control.moving import Moving
from headwater.cluster.replication.replica import Replica
from tests.cluster.etcd import Guard, Item
from tests.cluster.model import MIN_INSYNC, PARTITION, PATIENCE, Broker, Cluster, Violation

HISTORIES = 100
ENOUGH = 400


class MovingBroker(Broker):
    """A broker that deletes what it holds once it is no replica any more, sooner or later."""

    def _observe(self, item: Item) -> None:
        super()._observe(item)
        if not self._wanted() and self.log.end:
            self.after(self.world.delay(0.1), self._delete)

    def _wanted(self) -> bool:
        assert self.replica is not None
        return self.replica.state is None or self.number in self.replica.state.replicas

    def _delete(self) -> None:
        """Delete the replica. The broker still knows the partition's state; a later replica begins with nothing."""
        before = self.replica
        if before is None or before.state is None or self._wanted() or not self.log.end:
            return
        self.world.note(f"{self.name} deletes what it has")
        self.log.lose_disk()
        self.checkpoint = 0
        self.replica = self.replica_kind(
            self.number, self.incarnation, self.log, min_insync=MIN_INSYNC, patience=PATIENCE, high_watermark=0
        )
        self.replica.observe(before.state, before.revision, self.world.now)


class MovingCluster(Cluster):
    """Five brokers, of which three hold the partition, and an operator who never stops to change that."""

    def __init__(self, seed: int, broker_kind: type[Broker] = MovingBroker) -> None:
        super().__init__(seed, broker_kind, count=5)
        temper = self.world.random
        self._faults |= {self._wish: 0.5 + temper.random(), self._take_back: temper.random() / 3}
        self.moved = 0
        tell = self.etcd.write

        def write(guards: list[Guard], values: dict[str, Any], lease: float | None = None) -> int:
            before = self._state()
            revision = tell(guards, values, lease)
            if revision and PARTITION in values:
                self._check_step(before, self._state())
            return revision

        self.etcd.write = write  # type: ignore[method-assign]

    def _state(self) -> PartitionState:
        state: PartitionState = self.etcd.items[PARTITION].value
        return state

    def _check_step(self, before: PartitionState, after: PartitionState) -> None:
        """Check that a replica leaves only if as many others are in sync, and that a new leader was in sync."""
        if len(after.replicas) < len(before.replicas):
            self.moved += after.move is None and set(after.replicas) != set(before.move.back if before.move else ())
            if len(after.in_sync) < min(len(before.in_sync), 3):
                raise Violation(f"fewer: {before} became {after}")
        if after.leader != before.leader and after.leader not in before.in_sync:
            raise Violation(f"lossy: {before} became {after}")

    def _write_wish(self, wish: PartitionState) -> None:
        self.etcd.write([Guard(PARTITION, changed=self.etcd.items[PARTITION].changed)], {PARTITION: wish})

    def _wish(self) -> None:
        to = tuple(self.world.random.sample(range(5), 3))
        self.world.note(f"an operator wants {to}")
        self._write_wish(Moving().begin(self._state(), to))

    def _take_back(self) -> None:
        self.world.note("an operator takes it back")
        self._write_wish(Moving().cancel(self._state()))

    def _whole(self) -> bool:
        last = self._lost
        return super()._whole() or (
            last is not None and last.up and not last.lost and last.number not in self._state().replicas
        )

    def _holders(self) -> list[Broker]:
        return [self.brokers[number] for number in self._state().replicas]

    def _settled(self) -> bool:
        holders = self._holders()
        logs = {(broker.log.start, tuple(broker.log.entries)) for broker in holders}
        leads = [broker.replica for broker in holders if broker.replica is not None and broker.replica.leads]
        others = [broker for broker in self.brokers.values() if broker not in holders]
        return (
            self._state().move is None
            and len(logs) == 1
            and len(leads) == 1
            and leads[0].high_watermark == leads[0].log.end
            and not any(broker.log.end for broker in others)
        )

    def _check(self) -> None:
        if not self._settled():
            raise Violation(f"stuck: {self._state()}, {[broker.log.end for broker in self.brokers.values()]}")
        for broker in self._holders():
            self.truth.check(broker.log, broker.name)
            broker.do(broker.read)


@pytest.mark.parametrize("first", range(0, HISTORIES, 50))
def test_nothing_is_lost_while_replicas_move(first: int) -> None:
    moved = 0
    for seed in range(first, first + 50):
        cluster = MovingCluster(seed)
        cluster.run()
        moved += cluster.moved
    assert moved > 25


# Each rule is taken away once.


class LeavesBeforeOthersAreInSync(Moving):
    def _are_in_sync(self, brokers: tuple[int, ...], state: PartitionState, alive: Members) -> bool:  # noqa: ARG002
        return state.leader in brokers or any(broker in state.in_sync for broker in brokers)


class LetsOneLeadThatIsNotInSync(Moving):
    def _are_in_sync(self, brokers: tuple[int, ...], state: PartitionState, alive: Members) -> bool:
        return state.leader not in brokers or super()._are_in_sync(brokers, state, alive)

    def _next_leader(self, state: PartitionState, move: Move, steady: Members) -> int | None:  # noqa: ARG002
        return next((broker for broker in move.to if broker in steady), None)


class EpochStays(Moving):
    def _later(self, state: PartitionState) -> int:
        return state.epoch


class FollowsThoughItIsNoReplica(Replica):
    def _is_replica(self, broker: int) -> bool:  # noqa: ARG002
        return True


def with_rules(moving: type[Moving], replica: type[Replica] = Replica) -> type[Broker]:
    return type(moving.__name__, (MovingBroker,), {"moving_kind": moving, "replica_kind": replica})


def breaks(seed: int, broken: type[Broker]) -> str:
    try:
        MovingCluster(seed, broken).run()
    except Violation as violation:
        return str(violation)
    return ""


@pytest.mark.parametrize(
    ("broken", "seed"),
    [
        (with_rules(LeavesBeforeOthersAreInSync), 0),
        (with_rules(LetsOneLeadThatIsNotInSync), 0),
        (with_rules(EpochStays), 230),
        (with_rules(Moving, FollowsThoughItIsNoReplica), 26),
    ],
    ids=lambda kind: getattr(kind, "__name__", str(kind)),
)
def test_without_a_rule_something_is_lost(broken: type[Broker], seed: int) -> None:
    assert any(breaks(number, broken) for number in range(seed, seed + ENOUGH))


# One step at a time.


def test_a_move_step_by_step() -> None:
    rules = Moving()
    alive = {1: 10, 2: 20, 3: 30, 4: 40}
    state = rules.begin(PartitionState((1, 2, 3), {1: 10, 2: 20, 3: 30}, 1, 10, 5), (4, 2, 3))
    seen = []
    while (after := rules.step(state, alive, alive)) is not None or 4 not in state.in_sync:
        if after is None:  # it waits for the one that catches up
            after = replace(state, in_sync={**state.in_sync, 4: 40})
        state = after
        seen.append((state.replicas, sorted(state.in_sync), state.leader, state.epoch))
    assert seen == [
        ((4, 2, 3, 1), [1, 2, 3], 1, 5),
        ((4, 2, 3, 1), [1, 2, 3, 4], 1, 5),
        ((4, 2, 3, 1), [1, 2, 3, 4], 4, 6),
        ((4, 2, 3), [2, 3, 4], 4, 7),
    ]
    assert state.move is None


def test_who_is_wanted_and_away_is_waited_for_in_whichever_incarnation() -> None:
    rules = Moving()
    state = PartitionState((4, 2, 3, 1), {1: 10, 2: 20, 3: 30, 4: 40}, 1, 10, 5, move=Move((4, 2, 3), (1, 2, 3)))
    assert rules.step(state, {1: 10, 2: 20, 3: 30}, {1: 10}) is None
    assert rules.step(state, {1: 10, 2: 20, 3: 30, 4: 41}, {1: 10}) is None
    assert rules.step(state, {1: 10, 2: 20, 3: 30, 4: 40}, {1: 10}) is None, "all who could lead are about to stop"


def test_what_is_taken_back_before_it_has_begun_changes_nothing() -> None:
    rules = Moving()
    before = PartitionState((1, 2, 3), {1: 10, 2: 20}, 1, 10, 5)
    state = rules.cancel(rules.begin(before, (4, 5, 6)))
    assert rules.step(state, {1: 10, 2: 20}, {1: 10}) == before


def test_who_came_in_vain_goes_before_all_others_are_back() -> None:
    rules = Moving()
    state = PartitionState((4, 2, 3, 1), {1: 10, 2: 20}, 1, 10, 5, move=Move((4, 2, 3), (1, 2, 3)))
    alive = {1: 10, 2: 20, 4: 40}
    state = rules.cancel(state)
    while (after := rules.step(state, alive, alive)) is not None:
        state = after
    assert (state.replicas, state.epoch, state.move) == ((1, 2, 3), 6, None)
