"""Producing to a cluster: the frames of each partition go to the broker that leads it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headwater.client.leaders import Leaders
from headwater.client.sink import RemoteSink
from headwater.log import Frame, Identity
from headwater.log.format.frame import UNSIGNED
from headwater.streams.receipt import Outcome
from headwater.streams.topic import Topic


class ClusterSink:
    """Frames go to the partitions of one topic, each by a stream of its own, which follows the leader. Thread-safe."""

    prompt = False
    identity: Identity | None = UNSIGNED  # frames are signed when they are sent

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self._mutex = threading.Lock()
        self._sinks: dict[int, RemoteSink] = {}
        self._tell: Callable[[BaseException], None] = lambda _: None

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        self._tell = tell

    def _all(self) -> list[RemoteSink]:
        with self._mutex:
            return list(self._sinks.values())

    def room(self, partition: int, timeout: float) -> bool:
        sink = self._sinks.get(partition)
        limit = self._leaders.connection.config.in_flight_bytes
        deadline = time.monotonic() + timeout
        while sum(one.flying_bytes for one in self._all()) >= limit:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            max(self._all(), key=lambda one: one.flying_bytes).wait_for_answer(left)
        return sink is None or sink.room(partition, max(deadline - time.monotonic(), 0))

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        with self._mutex:
            sink = self._sinks.get(partition)
            if sink is None:
                sink = self._sinks[partition] = RemoteSink(self._leaders.of(topic.recent_info.name, partition))
                sink.on_failure(self._tell)
        sink.append(topic, partition, frame, outcome)

    @property
    def pending(self) -> int:
        return sum(sink.pending for sink in self._all())

    def settle(self) -> None:
        for sink in self._all():
            sink.settle()

    def sync(self, topic: Topic) -> None:
        for sink in self._all():
            sink.sync(topic)

    def close(self) -> None:
        for sink in self._all():
            sink.close()
