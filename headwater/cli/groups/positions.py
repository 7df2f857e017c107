"""How far groups are: their positions by topic and partition, and what they have yet to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.streams.topic import TopicPartition

if TYPE_CHECKING:
    from headwater.streams import GroupInfo, Store


@dataclass(frozen=True, slots=True)
class Lag:
    """What a group has yet to do in one partition."""

    group: str
    place: TopicPartition
    position: int
    start: int
    end: int
    committed_ns: int
    owner: str

    @property
    def records(self) -> int:
        """How many records."""
        return max(self.end - max(self.position, self.start), 0)

    @property
    def lost(self) -> int:
        """How many were removed before the group has read them."""
        return max(self.start - self.position, 0)


def lags(store: Store, groups: Iterable[str] | None = None, topics: Iterable[str] | None = None) -> list[Lag]:
    """The lag of these groups, or of all, in these topics, or in all; sorted by group and partition."""
    names = store.topic_names() if topics is None else list(topics)
    infos = {info.uuid: info for info in map(store.describe_topic, names)}
    found: list[Lag] = []
    bounds: dict[TopicPartition, tuple[int, int]] = {}
    for group in store.group_names() if groups is None else groups:
        described = store.group(group).describe()
        for (uuid, number), position in described.positions.items():
            info = infos.get(uuid)
            if info is None or number >= info.partitions:
                continue
            place = TopicPartition(info.name, number)
            if place not in bounds:
                start, end, _ = store.partition(info, number).bounds()
                bounds[place] = (start, end)
            owner = client_of(described, place)
            found.append(Lag(group, place, position.offset, *bounds[place], position.committed_ns, owner))
    return sorted(found, key=lambda one: (one.group, one.place))


def client_of(group: GroupInfo, place: TopicPartition) -> str:
    """Who of a group reads a partition now: the member's id, shortened; empty when nobody does."""
    return group.owners.get(place, "")[:12]
