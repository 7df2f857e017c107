"""The scrubber: verifies what lies in closed segments, now and then and slowly, whether somebody reads it or not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from headwater.core.config import StewardConfig
from headwater.core.errors import HeadwaterError, StoreClosed
from headwater.log import DirectoryPartition, Partition
from headwater.log.clock import Clock
from headwater.log.directory import ClosedSegment
from headwater.log.maintain.scrub import scrub
from headwater.streams.stopping import Stop

_log = logging.getLogger(__name__)
_STEP: Final = 256 * 1024
"""So much is read at once before the rest that the pace asks for."""


class Scrubber:
    """Scrubs partitions, in a thread of this program. It leaves the damage that it meets to the repair."""

    def __init__(self, partitions: Callable[[], Iterable[Partition]], config: StewardConfig, clock: Clock) -> None:
        """`partitions` says which there are, in the scrubber's thread; those in memory are passed over."""
        self.segments = 0
        """The number of segments that were verified."""
        self.bytes = 0
        """The size of those, in bytes."""
        self._partitions = partitions
        self._config = config
        self._clock = clock
        self._seen: dict[bytes, int] = {}
        """When each segment was verified, by the uuid of its log."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless the configuration says that there is nothing to do."""
        if self._thread is None and self._config.scrub_bytes_per_second is not None:
            self._stopping = threading.Event()
            stop = Stop(self._stopping)
            self._thread = threading.Thread(target=self._work, args=(stop,), name="headwater-scrubber", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread. Stopping twice does no harm."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self, stop: Stop) -> None:
        while not stop.wait(self._config.interval):
            try:
                self.run_once(stop)
            except StoreClosed:
                return
            except (HeadwaterError, OSError) as error:
                _log.error("not everything could be verified: %s", error)

    def run_once(self, stop: Stop) -> None:
        """Verify every segment that is due."""
        present: set[bytes] = set()
        for partition in self._partitions():
            if not isinstance(partition, DirectoryPartition):
                continue
            try:
                segments = partition.closed()
                present.update(closed.segment.header.log for closed in segments)
                for closed in filter(self._is_due, segments):
                    self._scrub(partition, closed, stop)
                    if stop:
                        return
            except StoreClosed:
                raise
            except (HeadwaterError, OSError) as error:
                _log.warning("%s could not be verified: %s", partition, error)
        self._seen = {log: when for log, when in self._seen.items() if log in present}

    def _is_due(self, closed: ClosedSegment) -> bool:
        last = max(closed.closed_ns, self._seen.get(closed.segment.header.log, 0))
        return self._clock.now_ns() - last >= self._config.scrub_interval * 1e9

    def _scrub(self, partition: DirectoryPartition, closed: ClosedSegment, stop: Stop) -> None:
        rate = self._config.scrub_bytes_per_second
        assert rate is not None
        owed = 0
        for size in scrub(partition, closed):
            self.bytes += size
            owed += size
            if owed >= _STEP:
                if stop.wait(owed / rate):
                    return
                owed = 0
        stop.wait(owed / rate)
        self.segments += 1
        self._seen[closed.segment.header.log] = self._clock.now_ns()
