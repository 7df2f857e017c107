"""The protocol with a topic that is compacted: the newest of each key is never lost, and none of its rules is idle."""

from __future__ import annotations

import pytest

from tests.cluster.compaction_model import REMOVED, CompactingBroker, CompactingCluster, Told
from tests.cluster.model import Broker, Violation

HISTORIES = 80
ENOUGH = 400


@pytest.mark.parametrize("first", range(0, HISTORIES, 40))
def test_the_newest_of_each_key_is_kept(first: int) -> None:
    removed = 0
    for seed in range(first, first + 40):
        cluster = CompactingCluster(seed, CompactingBroker)
        cluster.run()
        removed += sum(entry == REMOVED for broker in cluster.brokers.values() for entry in broker.log.entries)
    assert removed > 200


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


@pytest.mark.parametrize(
    ("broken", "seed"),
    [
        (CompactsWhatIsNotAcknowledged, 6),
        (TellsNoEpochs, 6),
        (TellsNoProducers, 444),
        (TellsOfNoGaps, 1),
    ],
    ids=lambda kind: getattr(kind, "__name__", str(kind)),
)
def test_without_a_rule_something_is_lost(broken: type[Broker], seed: int) -> None:
    """The first history to be tried is one that is known to show it; others do where that has become another one."""

    def fails(seed: int) -> bool:
        try:
            CompactingCluster(seed, broken).run()
        except Violation:
            return True
        return False

    assert any(fails(number) for number in range(seed, seed + ENOUGH))
