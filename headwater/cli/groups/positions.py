"""Positions of groups by topic and partition, and their lag."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.streams.topic import TopicPartition

if TYPE_CHECKING:
    from headwater.streams import GroupInfo, Store


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a group in one partition."""

    group: str
    tp: TopicPartition
    position: int
    start: int
    end: int
    committed_ns: int
    owner: str
    commits: int = 0
    """The number of times that the group has set this position."""

    @property
    def records(self) -> int:
        """The number of records that the group has yet to read."""
        return max(self.end - max(self.position, self.start), 0)

    @property
    def lost(self) -> int:
        """The number of records that were removed before the group had read them."""
        return max(self.start - self.position, 0)


def lags(store: Store, groups: Iterable[str] | None = None, topics: Iterable[str] | None = None) -> list[Lag]:
    """The lag of these groups, or of all, in these topics, or in all; sorted by group and partition."""
    names = store.topic_names() if topics is None else list(topics)
    infos = {info.uuid: info for info in map(store.describe_topic, names)}
    all_lags: list[Lag] = []
    bounds: dict[TopicPartition, tuple[int, int]] = {}
    for group in store.group_names() if groups is None else groups:
        described = store.group(group).describe()
        for (uuid, number), position in described.positions.items():
            info = infos.get(uuid)
            if info is None or number >= info.partitions:
                continue
            tp = TopicPartition(info.name, number)
            if tp not in bounds:
                start, end, _ = store.partition(info, number).bounds()
                bounds[tp] = (start, end)
            owner = client_of(described, tp)
            all_lags.append(
                Lag(group, tp, position.offset, *bounds[tp], position.committed_ns, owner, position.commits)
            )
    return sorted(all_lags, key=lambda lag: (lag.group, lag.tp))


def client_of(group: GroupInfo, tp: TopicPartition) -> str:
    """Return the id of the member that reads a partition now, shortened; empty if none does."""
    return group.owners.get(tp, "")[:12]
