"""The steward (log cleaner): has a store cleaned once, in intervals, or for as long as a program runs.

A backend implements the passes (`Cleaner` in `ports.py`). One steward works on a store at a time; others find that out
and leave.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from headwater.core.config import StewardConfig
from headwater.core.errors import HeadwaterError, PartitionDeleted, StoreClosed, UnknownTopic
from headwater.log import CompactionReport, Partition
from headwater.log.clock import Clock
from headwater.streams.group import GroupInfo
from headwater.streams.history import HistoryWriter
from headwater.streams.pattern import TopicFilter
from headwater.streams.scrubber import Scrubber
from headwater.streams.stopping import Stop, stop_on_signals
from headwater.streams.topic import TopicPartition

if TYPE_CHECKING:
    from headwater.streams.ports import Cleaner
    from headwater.streams.store import Store

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedPartition:
    """The work of a steward in one partition, done or planned."""

    topic: str
    partition: int
    start: int
    """The first offset of the log afterwards."""
    rolled: bool = False
    """True if a growing segment was closed because of its age."""
    segments: int = 0
    """The number of segments that were deleted."""
    bytes: int = 0
    """The size of those, in bytes."""
    forced: int = 0
    """The number of those that a group had not read."""
    protected_by: tuple[str, ...] = ()
    """The groups that have not read all of what the limits would delete."""
    compacted: bool = False
    compaction: CompactionReport | None = None
    """The result of compaction; a dry run cannot tell."""
    error: str | None = None
    """The error that ended the work on this partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StewardReport:
    """The work of one pass of a steward, done or planned."""

    dry_run: bool = False
    skipped: str | None = None
    """Why nothing was done: another steward was at work."""
    partitions: tuple[CleanedPartition, ...] = ()
    expired_groups: tuple[str, ...] = ()
    pruned_positions: int = 0
    """The number of positions that were forgotten because their topics are gone."""
    swept_topics: int = 0
    """Of how many deleted topics the remains were removed."""
    finished_transactions: int = 0
    """The number of decided transactions that were left undone and are carried out now."""
    dropped_stages: int = 0
    """The number of transactions that were given up, because nobody decided them within a day."""
    bytes_left: int = 0
    """The size of all topics afterwards; compaction may have made them smaller than that."""
    clock: str | None = None
    """A warning about the machine's clock, because of which data may stay for longer; None if all is well."""
    errors: tuple[str, ...] = ()
    """Everything that went wrong, in partitions and elsewhere."""

    @property
    def segments(self) -> int:
        """The number of segments that were deleted in all partitions."""
        return sum(partition.segments for partition in self.partitions)

    @property
    def bytes(self) -> int:
        """The size of those, in bytes."""
        return sum(partition.bytes for partition in self.partitions)


class Steward:
    """Cleans a store: once, in a thread of this program, or as a program of its own. Thread-safe."""

    def __init__(self, store: Store, config: StewardConfig, clock: Clock, cleaner: Cleaner) -> None:
        self.config = config
        self._store = store
        self._clock = clock
        self._cleaner = cleaner
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self.last_report: StewardReport | None = None
        """The report of the last pass."""
        self.scrubber = Scrubber(self._partitions, config, clock)
        """Verifies closed segments while this one cleans in the background."""

    def _partitions(self) -> Iterator[Partition]:
        """All partitions of the store; one that is deleted meanwhile is passed over."""
        for name in self._store.topic_names():
            with suppress(UnknownTopic, PartitionDeleted):
                info = self._store.describe_topic(name)
                yield from (self._store.partition(info, number) for number in range(info.partitions))

    def run_once(self, *, dry_run: bool = False) -> StewardReport:
        """One pass over all topics; with `dry_run` it only tells what it would do."""
        return self._run(dry_run, Stop())

    def _run(self, dry_run: bool, stop: Stop) -> StewardReport:
        self.last_report = self._cleaner.clean(self.config, dry_run=dry_run, stop=stop)
        return self.last_report

    # In the background.

    def start(self) -> Self:
        """Clean in a thread of this program, now and then every `interval`, until `stop`."""
        with self._mutex:
            if self._thread is None:
                self._stopping = threading.Event()
                stop = Stop(self._stopping)
                self._thread = threading.Thread(target=self._work, args=(stop,), name="headwater-steward", daemon=True)
                self._thread.start()
                self.scrubber.start()
        return self

    def stop(self) -> None:
        """Finish the partition at hand, and end the thread. Stopping twice does no harm."""
        with self._mutex:
            self._stopping.set()
            self.scrubber.stop()
            if self._thread is not None:
                self._thread.join()
                self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run_forever(self) -> None:
        """Clean now and then every `interval`, until SIGTERM, Ctrl-C or `stop`; then finish the partition at hand."""
        self._stopping = threading.Event()
        with stop_on_signals(self._stopping) as stop:
            self.scrubber.start()
            try:
                self._work(stop)
            finally:
                self.scrubber.stop()

    def _work(self, stop: Stop) -> None:
        history = self._history()
        rest = self.config.interval if history is None else min(self.config.interval, history.interval)
        due = time.monotonic()
        while not stop:
            try:
                if time.monotonic() >= due:
                    self._clean(stop, history)
                    due = time.monotonic() + self.config.interval
                if history is not None and not stop:
                    self._note(history)
            except StoreClosed:
                return
            stop.wait(min(rest, max(due - time.monotonic(), 0)))

    def _clean(self, stop: Stop, history: HistoryWriter | None) -> None:
        try:
            report = self._run(False, stop)
        except StoreClosed:
            raise
        except (HeadwaterError, OSError) as error:
            _log.error("%s could not be cleaned: %s", self._store, error)
            return
        for problem in report.errors:
            _log.error("cleaning %s: %s", self._store, problem)
        if history is not None:
            with self._unnoted():
                history.note_pass(report, self._clock.now_ns())

    # Looking back.

    def _history(self) -> HistoryWriter | None:
        """The writer of the store's history, if that is wanted and nobody else keeps it."""
        if self.config.history is None or self._cleaner.notes_history:
            return None
        return HistoryWriter(self._store, self.config.history)

    def _note(self, history: HistoryWriter) -> None:
        with self._unnoted():
            history.note(self._clock.now_ns())

    @contextmanager
    def _unnoted(self) -> Iterator[None]:
        """Go on after an error that keeps history from being written."""
        try:
            yield
        except StoreClosed:
            raise
        except (HeadwaterError, OSError) as error:
            _log.debug("the history of %s lacks an entry: %s", self._store, error)


def readers(groups: Mapping[str, GroupInfo | None], topic: bytes, partition: TopicPartition) -> dict[str, int]:
    """Return the position of each group in a partition; 0 for one that reads it and has not committed yet."""
    positions: dict[str, int] = {}
    for name, info in groups.items():
        position = None if info is None else info.positions.get((topic, partition.partition))
        if position is not None:
            positions[name] = position.offset
        elif info is None or partition in info.owners or _has_static(info, partition.topic):
            positions[name] = 0
    return positions


def _has_static(info: GroupInfo, topic: str) -> bool:
    """Return whether a consumer with a fixed share of a topic uses the group."""
    return any(member.static and TopicFilter(member.topics)(topic) for member in info.members.values())
