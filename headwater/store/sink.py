"""A sink: where a producer's frames go."""

from __future__ import annotations

import threading
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
    """Frames go straight into the topic's partitions. Thread-safe."""

    identity: Identity | None = None

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._mutex = threading.Lock()

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        appended = topic.partition(partition).append(frame)
        with self._mutex:
            self._ends[partition] = max(appended.end_offset, self._ends.get(partition, 0))
        outcome.succeed(appended)

    def sync(self, topic: Topic) -> None:
        """Only what was written here, and only where it is not durable yet: nobody is waited for without need."""
        with self._mutex:
            ends = list(self._ends.items())
        for number, end in ends:
            partition = topic.partition(number)
            if partition.bounds().durable_end < end:
                partition.sync()
