"""A subscription: the topics that a consumer wants, by names and patterns, and which partitions those have now."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from headwater.core.errors import UnknownTopic
from headwater.streams.group import TopicKey
from headwater.streams.membership import Member
from headwater.streams.pattern import TopicFilter
from headwater.streams.topic import TopicPartition

if TYPE_CHECKING:
    from headwater.streams.store import Store


class Subscription:
    """The topics that one consumer reads. Topics may come and go; later ones are told apart from those at first."""

    def __init__(self, store: Store, topics: str | Iterable[str]) -> None:
        self._store = store
        self.filter = TopicFilter(topics)
        self.topics = [*self.filter.names, *self.filter.patterns]
        self._at_first = {self.key(partition) for partition in self.partitions()}

    def partitions(self) -> list[TopicPartition]:
        """The partitions that there are now."""
        return self.partitions_of(Member(self.topics, 0))

    def partitions_of(self, member: Member) -> list[TopicPartition]:
        """The same for what another member of the group wants."""
        return partitions_of(self._store, member)

    def key(self, partition: TopicPartition) -> TopicKey | None:
        """Return the partition that has this name and number now, None when there is none."""
        with suppress(UnknownTopic):
            return self._store.describe_topic(partition.topic).uuid, partition.partition
        return None

    def came_later(self, key: TopicKey) -> bool:
        """Return whether this partition came later, and so is read from its beginning, wherever the others start."""
        return key not in self._at_first


def partitions_of(store: Store, member: Member) -> list[TopicPartition]:
    """The partitions that there are now of the topics that a member wants."""
    wanted = TopicFilter(member.topics)
    partitions: list[TopicPartition] = []
    for name in store.topic_names():
        if wanted(name):
            with suppress(UnknownTopic):  # deleted since its name was read
                partitions += [TopicPartition(name, number) for number in range(store.describe_topic(name).partitions)]
    return partitions
