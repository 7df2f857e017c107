"""Producing to a cluster: the frames of each partition go to the broker that leads it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headwater.client.leaders import Leaders
from headwater.client.sender import Sender
from headwater.log import Frame, Identity
from headwater.log.format.frame import UNSIGNED
from headwater.streams.receipt import Outcome
from headwater.streams.topic import Topic


class ClusterSender:
    """Frames go to the partitions of one topic, each by a stream of its own, which follows the leader. Thread-safe."""

    prompt = False
    staging = False
    identity: Identity | None = UNSIGNED  # frames are signed when they are sent

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self._mutex = threading.Lock()
        self._appenders: dict[int, Sender] = {}
        self._tell: Callable[[BaseException], None] = lambda _: None

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        self._tell = tell

    def _all(self) -> list[Sender]:
        with self._mutex:
            return list(self._appenders.values())

    def room(self, partition: int, timeout: float) -> bool:
        appender = self._appenders.get(partition)
        limit = self._leaders.connection.config.in_flight_bytes
        deadline = time.monotonic() + timeout
        while sum(sender.flying_bytes for sender in self._all()) >= limit:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            max(self._all(), key=lambda sender: sender.flying_bytes).wait_for_answer(left)
        return appender is None or appender.room(partition, max(deadline - time.monotonic(), 0))

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        with self._mutex:
            appender = self._appenders.get(partition)
            if appender is None:
                appender = self._appenders[partition] = Sender(self._leaders.of(topic.recent_info.name, partition))
                appender.on_failure(self._tell)
        appender.append(topic, partition, frame, outcome)

    @property
    def pending(self) -> int:
        return sum(appender.pending for appender in self._all())

    def flush(self) -> None:
        for appender in self._all():
            appender.flush()

    def sync(self, topic: Topic) -> None:
        for appender in self._all():
            appender.sync(topic)

    def close(self) -> None:
        for appender in self._all():
            appender.close()
