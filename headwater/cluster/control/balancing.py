"""Balancing: where the replicas of all partitions should be, so that every broker holds and leads about as much.

It moves no more than it must. Replicas are counted, not their bytes: what a partition holds today says little about
what it will hold, while each takes its share of new records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headwater.cluster.etcd.keys import PartitionKey
from headwater.core.errors import InvalidConfiguration

Placement = dict[PartitionKey, tuple[int, ...]]
"""The brokers of each partition, the one that leads by preference first."""


@dataclass(frozen=True, slots=True)
class HeldReplica:
    """A partition as it is: its replicas, how many it should have, and its size."""

    replicas: tuple[int, ...]
    replication: int
    size: int = 0


def balanced(
    partitions: Mapping[PartitionKey, HeldReplica],
    brokers: Collection[int],
    *,
    keeping: Collection[int] = (),
    level: bool = True,
) -> Placement:
    """The wanted replicas: on these brokers, and on no others. Those that are `keeping` hold what they have, no more.

    Without `level` only those are moved that have to be. Raises InvalidConfiguration when there are too few brokers.
    """
    return _Balance(partitions, brokers, keeping).placement(level=level)


class _Balance:
    def __init__(
        self, partitions: Mapping[PartitionKey, HeldReplica], brokers: Collection[int], keeping: Collection[int]
    ) -> None:
        self._partitions = dict(sorted(partitions.items()))
        self._brokers = sorted(brokers)
        self._keeping = frozenset(keeping).difference(brokers)
        for held in partitions.values():
            able = len(self._brokers) + len(self._keeping.intersection(held.replicas))
            if held.replication > able:
                raise InvalidConfiguration(
                    f"a topic has {held.replication} replicas, and only {able} brokers would hold them: add a broker "
                    f"first"
                )
        self._placed: dict[PartitionKey, list[int]] = {}
        self._load: Counter[int] = Counter(dict.fromkeys((*self._brokers, *self._keeping), 0))
        self._of_topic: Counter[tuple[bytes, int]] = Counter()
        for key, held in self._partitions.items():
            self._placed[key] = []
            for broker in held.replicas:
                if broker in self._load:
                    self._put(key, broker)

    def _put(self, key: PartitionKey, broker: int) -> None:
        self._placed[key].append(broker)
        self._load[broker] += 1
        self._of_topic[key[0], broker] += 1

    def _take(self, key: PartitionKey, broker: int) -> None:
        self._placed[key].remove(broker)
        self._load[broker] -= 1
        self._of_topic[key[0], broker] -= 1

    def placement(self, *, level: bool) -> Placement:
        for key, held in self._partitions.items():
            self._fill(key, held.replication)
        if level:
            self._level()
        firsts = self._level_leaders() if level else {}
        return {key: _led_first(placed, firsts.get(key)) for key, placed in self._placed.items()}

    def _fill(self, key: PartitionKey, wanted: int) -> None:
        placed = self._placed[key]
        while len(placed) > wanted:
            # First those that are away or about to leave.
            self._take(key, max(placed, key=lambda broker: (broker in self._keeping, self._load[broker], broker)))
        while len(placed) < wanted:
            free = [broker for broker in self._brokers if broker not in placed]
            self._put(key, min(free, key=lambda broker: (self._load[broker], self._of_topic[key[0], broker], broker)))

    def _level(self) -> None:
        """Move replicas from the broker that holds the most to the one that holds the least, until they differ by 1."""
        while self._brokers:
            most = max(self._brokers, key=lambda broker: (self._load[broker], -broker))
            least = min(self._brokers, key=lambda broker: (self._load[broker], broker))
            if self._load[most] - self._load[least] <= 1:
                return
            movable = [key for key, placed in self._placed.items() if most in placed and least not in placed]
            # There is one: the first holds more partitions than the other.
            chosen = min(movable, key=lambda key: self._cost(key, most, least))
            position = self._placed[chosen].index(most)
            self._take(chosen, most)
            self._put(chosen, least)
            self._placed[chosen].insert(position, self._placed[chosen].pop())

    def _cost(self, key: PartitionKey, source: int, target: int) -> tuple[int, int, PartitionKey]:
        """Best is what evens out a topic as well, then what is small."""
        return self._of_topic[key[0], target] - self._of_topic[key[0], source], self._partitions[key].size, key

    def _level_leaders(self) -> dict[PartitionKey, int]:
        """The wanted leader of each partition, so that all brokers lead about as many."""
        firsts = {key: placed[0] for key, placed in self._placed.items()}
        leads = Counter(dict.fromkeys(self._brokers, 0))
        leads.update(firsts.values())
        changed = True
        while changed:
            changed = False
            for key, placed in self._placed.items():
                least = min(placed, key=lambda broker: (broker in self._keeping, leads[broker], broker))
                if least not in self._keeping and leads[firsts[key]] - leads[least] > 1:
                    leads[firsts[key]] -= 1
                    leads[least] += 1
                    firsts[key] = least
                    changed = True
        return firsts


def _led_first(placed: list[int], leader: int | None) -> tuple[int, ...]:
    return tuple(placed) if leader is None else (leader, *(broker for broker in placed if broker != leader))
