"""A leader is damaged when only one other is in sync: the third can catch up all the same, and all is repaired."""

from __future__ import annotations

import pytest

from headwater.cluster.control.metadata import PartitionState
from headwater.cluster.replication.repair import should_hand_over
from tests.cluster.model import PARTITION, PATIENCE, Broker, Cluster, Violation


class DamagedLeaders(Cluster):
    """One broker is away, and of what it lacks some is damaged where it would fetch it. Others have it still."""

    in_place = False
    """True if damage is repaired in its place; else a damaged replica is copied anew."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.damaged = 0
        self._faults[self._send_one_away] = 6.0
        for broker in self.brokers.values():
            broker.in_place = self.in_place

    def _send_one_away(self) -> None:
        state: PartitionState = self.etcd.items[PARTITION].value
        away = self._any_broker()
        if self._whole() and len(state.in_sync) == len(self.brokers) and away.number != state.leader and away.up:
            away.fail(power=False)
            self.world.after(3 * PATIENCE, lambda: self._damage_leader(away))

    def _damage_leader(self, away: Broker) -> None:
        state: PartitionState = self.etcd.items[PARTITION].value
        others = [broker.log for broker in self.brokers.values() if broker is not away]
        start, end = max(away.log.end, *(log.start for log in others)), min(log.durable_end for log in others)
        leader = self.brokers.get(state.leader)
        if self._whole() and len(state.in_sync) == 2 and leader is not None and leader is not away and start < end:
            self._lost = leader
            self.damaged += 1
            leader.log.damage(self.world.random.randrange(start, end))
            self.world.note(f"{leader.name}, which leads, is damaged")
        if not away.up:
            away.begin()


class RepairedLeaders(DamagedLeaders):
    """The same, where a damaged leader is repaired in its place."""

    in_place = True


def run_all(kind: type[Broker], histories: type[DamagedLeaders] = DamagedLeaders) -> int:
    """Some histories; how often a leader was damaged."""
    damaged = 0
    for seed in range(60):
        cluster = histories(seed, kind)
        cluster.run()
        damaged += cluster.damaged
    return damaged


class NeverHandsOver(Broker):
    def should_hand_over(self, state: PartitionState) -> bool:  # noqa: ARG002
        return False


def test_a_third_one_catches_up_and_the_leader_is_repaired() -> None:
    assert run_all(Broker) > 20


def test_a_leader_that_is_repaired_in_its_place_need_not_hand_over() -> None:
    assert run_all(NeverHandsOver, RepairedLeaders) > 20


def test_without_handing_over_it_waits_for_ever() -> None:
    with pytest.raises(Violation, match="damaged in the end"):
        run_all(NeverHandsOver)


def test_only_a_leader_hands_over_and_only_for_one_that_is_behind() -> None:
    state = PartitionState((0, 1, 2), {0: 10, 1: 11}, 0, 10, 5)
    alive = {0: 10, 1: 11, 2: 12}
    assert should_hand_over(state, 0, alive)
    assert not should_hand_over(state, 1, alive)  # which does not lead
    assert not should_hand_over(state, 0, {0: 10, 1: 11})  # nobody has to catch up
    assert not should_hand_over(state, 0, {0: 10, 1: 13, 2: 12})  # the other one has been down since


class DifferentDamage(Cluster):
    """Two replicas are damaged at different places while the third has a new disk: each record is intact somewhere."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.damaged = 0
        self._faults[self._damage_two] = 6.0
        for broker in self.brokers.values():
            broker.in_place = self.in_place

    in_place = True

    def _damage_two(self) -> None:
        state: PartitionState = self.etcd.items[PARTITION].value
        empty = self._any_broker()
        others = [broker for broker in self.brokers.values() if broker is not empty]
        start, end = max(broker.log.start for broker in others), min(broker.log.durable_end for broker in others)
        if self._whole() and len(state.in_sync) == len(self.brokers) and end - start > 1 and empty.up:
            self._lost = empty
            self.damaged += 1
            offsets = self.world.random.sample(range(start, end), 2)
            for broker, offset in zip(others, offsets, strict=True):
                broker.log.damage(offset)
                self.world.note(f"{broker.name} is damaged at {offset}")
            empty.lose_disk()
            self.world.after(self.world.delay(1.0), empty.begin)

    def _whole(self) -> bool:
        return super()._whole() and not any(broker.log.damaged for broker in self.brokers.values())


class CopiedAnew(DifferentDamage):
    """The same, where a damaged replica is cut at its damage."""

    in_place = False


def run_different(kind: type[DifferentDamage]) -> int:
    """Some histories; how often two were damaged."""
    damaged = 0
    for seed in range(60):
        cluster = kind(seed)
        cluster.run()
        damaged += cluster.damaged
    return damaged


def test_different_damage_on_two_is_repaired_from_each_other() -> None:
    assert run_different(DifferentDamage) > 20


def test_copied_anew_what_is_intact_somewhere_is_lost_or_never_served() -> None:
    with pytest.raises(Violation):
        run_different(CopiedAnew)
