"""Looks at the topics in the store of a broker. For threads: it reads files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from headwater.broker.backend import LocalTopic, NamedPartition, Sees
from headwater.broker.stored import partition_of
from headwater.core.errors import HeadwaterError, UnknownTopic
from headwater.log import SegmentFacts
from headwater.streams.store import Store
from headwater.streams.topic import TopicStatistics


class Inspection:
    """The store of a broker in numbers. Both backends use it."""

    def __init__(self, store: Store, statistics_of: Callable[[str], TopicStatistics]) -> None:
        """`statistics_of` gets the numbers of a topic; it raises UnknownTopic, and what is wrong with its files."""
        self._store = store
        self._statistics_of = statistics_of

    def statistics(self, names: Sequence[str], sees: Sees) -> list[TopicStatistics]:
        """The numbers of these topics; without names, of all that the caller sees. Raises UnknownTopic for a name."""
        if names:
            return [self._statistics_of(name) for name in names]
        statistics: list[TopicStatistics] = []
        for name in self._store.topics():
            with suppress(UnknownTopic):  # deleted since its name was read
                if sees(name):
                    statistics.append(self._statistics_of(name))
        return statistics

    def topics(self) -> list[LocalTopic]:
        """All topics, with their numbers; without them where the topic cannot be opened."""
        topics: list[LocalTopic] = []
        for name in self._store.topics():
            with suppress(UnknownTopic):  # deleted since its name was read
                try:
                    statistics = self._statistics_of(name)
                    topics.append(LocalTopic(name, self._store.describe_topic(name).uuid, statistics))
                except UnknownTopic:
                    raise
                except HeadwaterError:
                    topics.append(LocalTopic(name, b"", None))
        return topics

    def segments(self, partition: NamedPartition) -> list[SegmentFacts]:
        """The segments of a partition; raises UnknownTopic and PartitionDeleted."""
        return list(partition_of(self._store, partition).segments())
