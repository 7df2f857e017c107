"""Fixed shares: the partitions of a consumer that others do not have to be asked about.

The share of a partition follows from its topic's name and its number alone. So topics and partitions that come or go
move no others.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final

from headwater.core.errors import InvalidConfiguration
from headwater.streams.topic import TopicPartition

_MOST_SHARES: Final = 10_000
"""Every partition is ranked against all shares: this bounds the time that takes."""


class FixedShare:
    """One of several shares, which have every partition in one of them."""

    def __init__(self, static: tuple[int, int]) -> None:
        """`static` is the number of the share, from 0 on, and how many there are."""
        if (
            not isinstance(static, tuple | list)
            or len(static) != 2
            or any(isinstance(number, bool) or not isinstance(number, int) for number in static)
            or not 0 <= static[0] < static[1] <= _MOST_SHARES
        ):
            raise InvalidConfiguration(
                f"static must be (number, total) with 0 <= number < total <= {_MOST_SHARES}, not {static!r}"
            )
        self._number, self._total = static

    def of(self, partitions: list[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions of this share. For each topic they are all that it has, or the first of them."""
        counts: dict[str, int] = {}
        for topic, number in partitions:
            counts[topic] = max(counts.get(topic, 0), number + 1)
        shares = {topic: shares_of(topic, count, self._total) for topic, count in counts.items()}
        return {partition for partition in partitions if shares[partition.topic][partition.partition] == self._number}


@lru_cache(maxsize=4096)
def shares_of(topic: str, partitions: int, total: int) -> tuple[int, ...]:
    """Return the number of the share that each partition of a topic belongs to.

    This is rendezvous hashing, in rounds: a partition goes to the share that ranks highest for it among those with the
    fewest partitions of the topic so far. So the shares of one topic differ by at most one partition, and partitions
    that are added do not change the shares of those before them.
    """
    shares: list[int] = []
    free: set[int] = set()
    for number in range(partitions):
        free = free or set(range(total))
        highest = max(free, key=lambda share: _rank(topic, number, share))
        free.remove(highest)
        shares.append(highest)
    return tuple(shares)


def _rank(topic: str, number: int, share: int) -> bytes:
    return blake2b(f"{topic}/{number}/{share}".encode(), digest_size=8).digest()
