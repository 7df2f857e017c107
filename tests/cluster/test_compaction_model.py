"""The protocol with a topic that is compacted: the newest of each key is never lost, and none of its rules is idle."""

from __future__ import annotations

import pytest

from tests.cluster.compaction_model import REMOVED, CompactingBroker, CompactingCluster, Told
from tests.cluster.log import Entry
from tests.cluster.model import Broker, Violation
from tests.cluster.test_damaged_leader import DifferentDamage

HISTORIES = 100
ENOUGH = 400


@pytest.mark.parametrize("first", range(0, HISTORIES, 50))
def test_the_newest_of_each_key_is_kept(first: int) -> None:
    removed = 0
    for seed in range(first, first + 50):
        cluster = CompactingCluster(seed, CompactingBroker)
        cluster.run()
        removed += sum(entry == REMOVED for broker in cluster.brokers.values() for entry in broker.log.entries)
    assert removed > 200


class DifferentDamageAndGaps(DifferentDamage, CompactingCluster):
    """Two replicas are damaged while the third has a new disk, and each has compacted what it likes."""


class CountingBroker(CompactingBroker):
    gaps = 0
    """The number of gaps that were taken over from other replicas."""

    def note_compacted(self, told: Told) -> None:
        super().note_compacted(told)
        self.gaps += 1


def test_what_others_have_compacted_away_is_repaired() -> None:
    gaps = 0
    for seed in range(60):
        cluster = DifferentDamageAndGaps(seed, CountingBroker)
        cluster.run()
        gaps += sum(broker.gaps for broker in cluster.brokers.values() if isinstance(broker, CountingBroker))
    assert gaps > 5


def test_an_answer_to_a_log_that_was_another_one_is_not_taken() -> None:
    """It was cut, and as long again when a second answer told to cut it: one from before."""
    CompactingCluster(512, CompactingBroker).run()


class CompactsWhatIsNotAcknowledged(CompactingBroker):
    def compactable(self) -> int:
        return self.log.end


class TellsNoEpochs(CompactingBroker):
    def tell(self, start: int) -> Told:
        return super().tell(start)._replace(epochs=())


class TellsNoProducers(CompactingBroker):
    def tell(self, start: int) -> Told:
        return super().tell(start)._replace(producers=())


class TellsOfNoGaps(CompactingBroker):
    def tell(self, start: int) -> Told:
        return super().tell(start)._replace(compacted_until=0)


class BelievesAnyGap(CompactingBroker):
    """Whatever another one does not have was compacted away."""

    def give(self, offset: int) -> Entry | Told | None:  # type: ignore[override]
        held = self.log.start <= offset < self.log.durable_end
        return super().give(offset) if held else self.log.told(0)

    def believes(self, offset: int, told: Told) -> bool:  # noqa: ARG002
        return True


class TellsOfNoGapThatItTookOver(CompactingBroker):
    def note_compacted(self, told: Told) -> None:
        pass


@pytest.mark.parametrize(
    ("broken", "seed", "histories"),
    [
        (CompactsWhatIsNotAcknowledged, 6, CompactingCluster),
        (TellsNoEpochs, 6, CompactingCluster),
        (TellsNoProducers, 444, CompactingCluster),
        (TellsOfNoGaps, 1, CompactingCluster),
        (BelievesAnyGap, 6, DifferentDamageAndGaps),
        (TellsOfNoGapThatItTookOver, 10, DifferentDamageAndGaps),
    ],
    ids=lambda kind: getattr(kind, "__name__", str(kind)),
)
def test_without_a_rule_something_is_lost(broken: type[Broker], seed: int, histories: type[CompactingCluster]) -> None:
    """The first history to be tried is one that is known to show it; others do where that has become another one."""

    def fails(seed: int) -> bool:
        try:
            histories(seed, broken).run()
        except Violation:
            return True
        return False

    assert any(fails(number) for number in range(seed, seed + ENOUGH))
