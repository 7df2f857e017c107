"""The appender of an embedded store."""

from __future__ import annotations

import threading

from headwater.log import Frame, Identity
from headwater.streams.appending import PromptAppender
from headwater.streams.receipt import Outcome
from headwater.streams.topic import Topic


class PartitionAppender(PromptAppender):
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
