"""Finds what a caller names in the store of a broker. For threads: it may read files."""

from __future__ import annotations

from headwater.broker.backend import NamedPartition, NamedTopic
from headwater.core.errors import PartitionDeleted
from headwater.core.filter import Filter
from headwater.log import Partition
from headwater.log.files.segment import seed_of
from headwater.log.format.frame_filter import FrameFilter
from headwater.streams.catalog import TopicInfo, partition_uuid
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


def frame_filter_of(store: Store, partition: NamedPartition, where: Filter) -> FrameFilter:
    """A filter for the frames of a partition, bound to the schema that its topic has now."""
    info = topic_of(store, NamedTopic(partition.topic, partition.topic_uuid))
    seed = seed_of(partition_uuid(info.uuid, partition.partition))
    return FrameFilter(where.bind(store.schema_of(info)), partition.partition, seed, compress=True)


def sync_partitions(store: Store, partitions: list[NamedPartition]) -> None:
    """Make everything durable that was appended to the partitions."""
    for partition in partitions:
        partition_of(store, partition).sync()
