"""Rates: how fast something grows, told by counts of it at several moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from headwater.streams.history import Sample

_SPAN_NS: Final = 10 * 10**9
"""The present is the last so many nanoseconds: shorter is restless, longer is late."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Records and bytes in a second, of each topic and of all together."""

    topics: dict[str, tuple[float, float]] = field(default_factory=dict)
    records: float = 0.0
    bytes: float = 0.0

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Rates:
        """The present rates by samples of late, the oldest first. With fewer than two nothing is known: no rates."""
        if len(samples) < 2:
            return cls()
        last = samples[-1]
        first = samples[-2]
        for sample in reversed(list(samples)[:-2]):
            if last.time_ns - sample.time_ns > _SPAN_NS:
                break
            first = sample
        topics = {name: growth(first, last, name) for name in last.topics if name in first.topics}
        return cls(topics, sum(records for records, _ in topics.values()), sum(size for _, size in topics.values()))


def growth(first: Sample, last: Sample, topic: str) -> tuple[float, float]:
    """Records and bytes in a second between two samples. A topic that was made anew has begun again: none."""
    seconds = (last.time_ns - first.time_ns) / 1e9
    before, after = first.topics.get(topic), last.topics.get(topic)
    if before is None or after is None or seconds <= 0 or after[0] < before[0]:
        return 0.0, 0.0
    return (after[0] - before[0]) / seconds, max(after[1] - before[1], 0) / seconds
