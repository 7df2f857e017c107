"""A sink: where a producer's frames go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from headwater.log import Frame, Identity
from headwater.streams.receipt import Outcome
from headwater.streams.topic import Topic


class Sink(Protocol):
    """Into a partition at once, into the stage of a transaction, or to a broker."""

    identity: Identity | None
    """Who writes, as the frames are to say."""
    prompt: bool
    """Whether frames are where they belong when `append` returns, or only on their way there."""

    def room(self, partition: int, timeout: float) -> bool:
        """Wait until one more frame can be taken for the partition, at most `timeout` seconds; whether it can."""

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        """Write one frame. The outcome is told its place in the log as soon as it has one."""

    @property
    def pending(self) -> int:
        """How many records are on their way."""

    def settle(self) -> None:
        """Return when all frames that are on their way have arrived, or have failed."""

    def sync(self, topic: Topic) -> None:
        """Make what was written durable."""

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Have `tell` called with the error of each frame that fails after `append` has returned."""

    def close(self) -> None:
        """Nothing more comes."""


class PromptSink:
    """What sinks have in common that are done with a frame when `append` returns."""

    prompt = True

    def room(self, partition: int, timeout: float) -> bool:  # noqa: ARG002 - nothing is ever on its way
        """There is always room."""
        return True

    @property
    def pending(self) -> int:
        """Nothing is ever on its way."""
        return 0

    def settle(self) -> None:
        """Nothing is ever on its way."""

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Whatever fails is raised by `append`."""

    def close(self) -> None:
        """Nothing to give back."""


class PartitionSink(PromptSink):
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
