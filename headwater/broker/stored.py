"""Finds what a caller names in the store of a broker. For threads: it may read files."""

from __future__ import annotations

from headwater.broker.backend import NamedPartition, NamedTopic
from headwater.core.errors import PartitionDeleted
from headwater.log import Partition
from headwater.streams.catalog import TopicInfo
from headwater.streams.store import Store


def topic_of(store: Store, topic: NamedTopic) -> TopicInfo:
    """The topic; raises UnknownTopic, and PartitionDeleted if another topic has the name by now."""
    info = store.describe_topic(topic.name)
    if topic.uuid and topic.uuid != info.uuid:
        raise PartitionDeleted(f"topic {topic.name!r}")
    return info


def partition_of(store: Store, partition: NamedPartition) -> Partition:
    """The log of a partition; raises UnknownTopic, PartitionDeleted, and what is wrong with the number."""
    info = topic_of(store, NamedTopic(partition.topic, partition.topic_uuid))
    return store.partition(info, partition.partition)


def sync_partitions(store: Store, partitions: list[NamedPartition]) -> None:
    """Make everything durable that was appended to the partitions."""
    for partition in partitions:
        partition_of(store, partition).sync()
