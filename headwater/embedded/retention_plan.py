"""The plan of a cleaning pass for one partition: the segments that go, and those that groups have yet to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.core.config import TopicConfig
from headwater.log import CompactionReport, Partition
from headwater.log.maintain.retention import SegmentFacts
from headwater.streams.topic import TopicPartition


@dataclass(slots=True)
class PartitionPlan:
    """The work on one partition: the first `count` of its segments go."""

    tp: TopicPartition
    topic: bytes
    config: TopicConfig
    partition: Partition
    segments: list[SegmentFacts]
    start: int
    rolled: bool
    readers: Mapping[str, int] = field(default_factory=dict)
    """The position of each group that has read the partition."""
    compacts: bool = False
    compaction: CompactionReport | None = None
    count: int = 0
    wanted: int = 0
    """The number of segments that the limits want gone."""
    protected_by: set[str] = field(default_factory=set)
    error: str | None = None

    @property
    def keep_from(self) -> int | None:
        """The first offset that some group has yet to read; None if no group reads the partition."""
        return min(self.readers.values(), default=None)

    @property
    def bytes(self) -> int:
        return sum(segment.size for segment in self.segments[: self.count])

    @property
    def bytes_left(self) -> int:
        return sum(segment.size for segment in self.segments[self.count :])

    def blame(self, count: int) -> None:
        """Note who has not read all of the first `count` segments."""
        end = self.segments[count].base if count else 0
        self.protected_by.update(name for name, position in self.readers.items() if position < end)

    def unread(self, count: int) -> int:
        """Return the number of the first `count` segments that some group has yet to read."""
        keep_from = self.keep_from
        return 0 if keep_from is None else sum(segment.base > keep_from for segment in self.segments[1 : count + 1])

    @property
    def can_give(self) -> bool:
        """True if one more segment may go to bring the whole store below its limit."""
        return not self.config.compact and self.count < len(self.segments) - self.config.retention_segments
