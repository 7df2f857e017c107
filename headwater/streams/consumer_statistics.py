"""The statistics of a consumer."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.streams.topic import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """A consumer in numbers."""

    assigned: tuple[TopicPartition, ...]
    positions: dict[TopicPartition, int]
    delivered_records: int
    lag: int
