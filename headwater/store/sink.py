"""A sink: where a producer's frames go."""

from __future__ import annotations

from typing import Protocol

from headwater.log import Frame, Identity
from headwater.store.receipt import Outcome
from headwater.store.topic import Topic


class Sink(Protocol):
    """Into a partition at once, or into the stage of a transaction."""

    identity: Identity | None
    """Who writes, as the frames are to say."""

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        """Write one frame. The outcome is told its place in the log as soon as it has one."""

    def sync(self, topic: Topic) -> None:
        """Make what was written durable."""


class PartitionSink:
    """Frames go straight into the topic's partitions."""

    identity: Identity | None = None

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        outcome.succeed(topic.partition(partition).append(frame))

    def sync(self, topic: Topic) -> None:
        for partition in topic.partitions():
            partition.sync()
