"""The coordinator of groups, where everything goes wrong: no position moves back, no partition has two owners.

Each seed is one history. Each rule is taken away once, and something shows it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headwater.broker.coordinator import Coordinator
from tests.cluster.group_model import GroupBroker, GroupCluster
from tests.cluster.model import Violation

HISTORIES = 60
ENOUGH = 400
"""In so many histories a missing rule has shown."""


@pytest.mark.parametrize("first", range(0, HISTORIES, 20))
def test_what_a_group_has_been_told_stays_true(first: int) -> None:
    commits = 0
    for seed in range(first, first + 20):
        cluster = GroupCluster(seed)
        cluster.run()
        commits += len(cluster.truth.acknowledged)
    assert commits > 500


class TellsBeforeItIsAcknowledged(Coordinator):
    def may_tell(self, noted: int) -> bool:  # noqa: ARG002
        return True


class ServesBeforeItHasReplayed(Coordinator):
    def serves(self) -> bool:
        return True


class ServesAtOnce(GroupBroker):
    coordinator_kind = ServesBeforeItHasReplayed


class TellsAtOnce(GroupBroker):
    coordinator_kind = TellsBeforeItIsAcknowledged


class ReplaysWhatItKnowsToBeAcknowledged(GroupBroker):
    """Its predecessor has told of more than it has heard of."""

    def replay_end(self) -> int:
        assert self.replica is not None
        return self.replica.high_watermark


class WritesInAnotherEpoch(GroupBroker):
    def may_append(self, epoch: int) -> bool:  # noqa: ARG002
        return True


class ShowsWithoutBeingSure(GroupBroker):
    def is_sure(self, mark: Mapping[int, int]) -> bool:  # noqa: ARG002
        return True


@pytest.mark.parametrize(
    ("broken", "seed"),
    [
        (ServesAtOnce, 0),
        (TellsAtOnce, 0),
        (ReplaysWhatItKnowsToBeAcknowledged, 0),
        (WritesInAnotherEpoch, 0),
        (ShowsWithoutBeingSure, 0),
    ],
    ids=lambda kind: getattr(kind, "__name__", str(kind)),
)
def test_without_a_rule_something_moves_back(broken: type[GroupBroker], seed: int) -> None:
    """The first history to be tried is one that is known to show it; others do where that has become another one."""

    def fails(seed: int) -> bool:
        try:
            GroupCluster(seed, broken).run()
        except Violation:
            return True
        return False

    assert any(fails(number) for number in range(seed, seed + ENOUGH))
