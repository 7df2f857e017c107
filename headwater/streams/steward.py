"""The steward: whoever cleans a store. Undone transactions, rolling, compaction, retention, what nobody needs any more.

A pass first decides for every partition and then acts, so a dry run tells what a real one would do. Nothing is removed
that a group has yet to read, unless the configuration forces it, and what went wrong in one partition does not keep the
others from being cleaned. One steward works on a store at a time; others find that out and leave.

Ages count by the time that was observed to pass (`headwater.log.elapsed`), not by what the wall clock says now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from headwater.core.config import StewardConfig, TopicConfig
from headwater.core.errors import HeadwaterError, PartitionBusy, PartitionDeleted, StoreClosed, UnknownTopic
from headwater.log import CompactionReport, Partition
from headwater.log.clock import Clock
from headwater.log.maintain.retention import SegmentFacts, expired
from headwater.streams.catalog import TopicInfo
from headwater.streams.group import GroupInfo
from headwater.streams.history import HistoryWriter
from headwater.streams.pattern import TopicFilter
from headwater.streams.scrubber import Scrubber
from headwater.streams.stopping import Stop, stop_on_signals
from headwater.streams.topic import TopicPartition
from headwater.streams.transaction import STAGES_KEPT

if TYPE_CHECKING:
    from headwater.streams.store import Store

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedPartition:
    """What a steward has done in one partition, or would do."""

    topic: str
    partition: int
    start: int
    """Where the log begins afterwards."""
    rolled: bool = False
    """Whether a growing segment was closed because of its age."""
    segments: int = 0
    """How many segments were deleted."""
    bytes: int = 0
    """How large those were."""
    forced: int = 0
    """How many of them went although a group had not read them."""
    protected_by: tuple[str, ...] = ()
    """The groups that have not read all of what the limits would delete."""
    compacted: bool = False
    compaction: CompactionReport | None = None
    """What compaction did; a dry run cannot tell."""
    error: str | None = None
    """What went wrong, and ended the work on this partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StewardReport:
    """What a pass of a steward has done, or would do."""

    dry_run: bool = False
    skipped: str | None = None
    """Why nothing was done: another steward was at work."""
    partitions: tuple[CleanedPartition, ...] = ()
    expired_groups: tuple[str, ...] = ()
    pruned_positions: int = 0
    """How many positions of groups were forgotten because their topics are gone."""
    swept_topics: int = 0
    """Of how many deleted topics the remains were removed."""
    finished_transactions: int = 0
    """How many transactions were carried out that were decided and left undone."""
    dropped_stages: int = 0
    """How many were given up whose program has not decided them within a day."""
    bytes_left: int = 0
    """How large all topics together are afterwards; compaction may have made them smaller than that."""
    clock: str | None = None
    """What is strange about the machine's clock, so that something may stay for longer; None if all is well."""
    errors: tuple[str, ...] = ()
    """Everything that went wrong, in partitions and elsewhere."""

    @property
    def segments(self) -> int:
        """How many segments were deleted in all partitions."""
        return sum(one.segments for one in self.partitions)

    @property
    def bytes(self) -> int:
        """How large those were."""
        return sum(one.bytes for one in self.partitions)


class Steward:
    """Cleans a store: once, in a thread of this program, or as a program of its own. Thread-safe."""

    def __init__(self, store: Store, config: StewardConfig, clock: Clock) -> None:
        self.config = config
        self._store = store
        self._clock = clock
        self._compacted: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self.last_report: StewardReport | None = None
        """What the last pass did."""
        self.scrubber = Scrubber(self._partitions, config, clock)
        """Who verifies closed segments, while this one cleans in the background."""

    def _partitions(self) -> Iterator[Partition]:
        """All there are; what is deleted meanwhile is passed over."""
        for name in self._store.topic_names():
            with suppress(UnknownTopic, PartitionDeleted):
                info = self._store.describe_topic(name)
                yield from (self._store.partition(info, number) for number in range(info.partitions))

    def run_once(self, *, dry_run: bool = False) -> StewardReport:
        """One pass over all topics; with `dry_run` it only tells what it would do."""
        return self._run(dry_run, Stop())

    def _run(self, dry_run: bool, stop: Stop) -> StewardReport:
        try:
            with self._store.stewarding():
                report = _Pass(self._store, self.config, self._clock, self._compacted, dry_run, stop).run()
        except PartitionBusy as busy:
            holder = f"process {busy.pid}" if busy.pid else "another thread"
            report = StewardReport(dry_run=dry_run, skipped=f"{holder} is cleaning {self._store} at this moment")
        self.last_report = report
        return report

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
        """Where it notes what it sees and does, if that is wanted."""
        return HistoryWriter(self._store, self.config.history) if self.config.history is not None else None

    def _note(self, history: HistoryWriter) -> None:
        with self._unnoted():
            history.note(self._clock.now_ns())

    @contextmanager
    def _unnoted(self) -> Iterator[None]:
        """What keeps history from being written keeps nothing else from being done."""
        try:
            yield
        except StoreClosed:
            raise
        except (HeadwaterError, OSError) as error:
            _log.debug("the history of %s lacks an entry: %s", self._store, error)


@dataclass(slots=True)
class _Plan:
    """What is to be done in one partition: the first `count` of its segments go."""

    place: TopicPartition
    topic: bytes
    config: TopicConfig
    partition: Partition
    segments: list[SegmentFacts]
    start: int
    rolled: bool
    readers: Mapping[str, int] = field(default_factory=dict)
    """How far each group is that has read the partition."""
    compacts: bool = False
    compaction: CompactionReport | None = None
    count: int = 0
    protected_by: set[str] = field(default_factory=set)
    error: str | None = None

    @property
    def keep_from(self) -> int | None:
        """What the groups have yet to read begins here."""
        return min(self.readers.values(), default=None)

    @property
    def bytes(self) -> int:
        return sum(segment.size for segment in self.segments[: self.count])

    @property
    def bytes_left(self) -> int:
        return sum(segment.size for segment in self.segments[self.count :])

    def blame(self, count: int) -> None:
        """Note who has not read all of the first `count` segments."""
        end = self.segments[count].base if count else 0
        self.protected_by.update(name for name, position in self.readers.items() if position < end)

    def unread(self, count: int) -> int:
        """How many of the first `count` segments some group has yet to read."""
        keep_from = self.keep_from
        return 0 if keep_from is None else sum(one.base > keep_from for one in self.segments[1 : count + 1])

    @property
    def can_give(self) -> bool:
        """Whether one more segment may go to bring the whole store below its limit."""
        return not self.config.compact and self.count < len(self.segments) - self.config.retention_segments


class _Pass:
    """One pass over a store."""

    def __init__(
        self,
        store: Store,
        config: StewardConfig,
        clock: Clock,
        compacted: dict[tuple[bytes, int], tuple[int, int]],
        dry_run: bool,
        stop: Stop,
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._elapsed = store.elapsed
        self._unused = self._elapsed.is_older(config.group_expiry)
        self._compacted = compacted
        self._dry_run = dry_run
        self._stop = stop
        self._errors: list[str] = []

    def run(self) -> StewardReport:
        finished = dropped = swept = 0
        self._elapsed.look()
        with self._noting("transactions"):
            finished = self._store.roll_forward(dry_run=self._dry_run)
        with self._noting("stages of transactions"):
            undecided = self._elapsed.is_older(STAGES_KEPT)
            dropped = self._store.transactions.sweep(undecided, dry_run=self._dry_run)
        with self._noting("the remains of deleted topics"):
            swept = self._store.sweep(dry_run=self._dry_run)
        gone = self._expire_groups()
        pruned = self._prune_positions()
        plans = self._plans([name for name in self._store.group_names() if name not in gone])
        for plan in plans:
            self._retain(plan)
        self._limit_total(plans)
        partitions = tuple(self._delete(plan) for plan in plans)
        if not self._dry_run:
            with self._noting("what was seen of the clock"):
                self._elapsed.keep()
        return StewardReport(
            dry_run=self._dry_run,
            partitions=partitions,
            expired_groups=tuple(gone),
            pruned_positions=pruned,
            swept_topics=swept,
            finished_transactions=finished,
            dropped_stages=dropped,
            bytes_left=sum(plan.bytes_left for plan in plans),
            clock=self._elapsed.warning,
            errors=tuple(self._errors),
        )

    @contextmanager
    def _noting(self, what: object) -> Iterator[None]:
        """Errors in the block are noted, and the pass goes on. Who has been deleted needs no cleaning."""
        try:
            yield
        except StoreClosed:
            raise
        except (UnknownTopic, PartitionDeleted):
            pass
        except (HeadwaterError, OSError) as error:
            self._errors.append(f"{what}: {error}")

    # Groups.

    def _expire_groups(self) -> list[str]:
        gone: list[str] = []
        for name in self._store.group_names():
            with self._noting(f"group {name!r}"):
                if self._store.group(name).expire_unused(self._unused, dry_run=self._dry_run):
                    gone.append(name)
        return gone

    def _prune_positions(self) -> int:
        """Forget positions in topics that are gone, some time after the last commit: a topic may be restored."""
        topics: set[bytes] = set()
        for name in self._store.topic_names():
            try:
                topics.add(self._store.describe_topic(name).uuid)
            except UnknownTopic:
                continue  # deleted since its name was read
            except (HeadwaterError, OSError) as error:
                self._errors.append(f"topic {name!r}: {error}")
                return 0  # whose positions are those of this topic?
        count = 0
        for name in self._store.group_names():
            with self._noting(f"group {name!r}"):
                count += self._store.group(name).prune(topics, self._unused, dry_run=self._dry_run)
        return count

    def _groups(self, names: list[str]) -> dict[str, GroupInfo | None]:
        """Each group as it is; None for one that cannot be read now, which may be anywhere."""
        found: dict[str, GroupInfo | None] = dict.fromkeys(names)
        for name in names if self._config.protect_unread else ():
            with self._noting(f"group {name!r}"):
                found[name] = self._store.group(name).describe()
        return found if self._config.protect_unread else {}

    # Deciding.

    def _plans(self, names: list[str]) -> list[_Plan]:
        plans: list[_Plan] = []
        for name in self._store.topic_names():
            with self._noting(f"topic {name!r}"):
                info = self._store.describe_topic(name)
                for number in range(info.partitions):
                    if self._stop:
                        return []  # the total is not known: better to delete nothing
                    if self._store.holds_partition(info, number):
                        with self._noting(TopicPartition(name, number)):
                            plans.append(self._plan(info, number))
        # Positions are read after the logs: what was acknowledged in between may go.
        groups = self._groups(names)
        for plan in plans:
            plan.readers = readers(groups, plan.topic, plan.place)
        return plans

    def _plan(self, info: TopicInfo, number: int) -> _Plan:
        partition = self._store.partition(info, number)
        segments = partition.segments()
        growing = segments[-1]
        start, end, _ = partition.bounds()
        overdue = end > growing.base and self._elapsed.age_ns(growing.begun_ns) > info.config.segment_age * 1e9
        if overdue and self._dry_run:
            now_ns = self._clock.now_ns()
            segments[-1:] = [growing._replace(closed_ns=now_ns), SegmentFacts(end, 0, now_ns, None)]
        elif overdue:
            partition.roll()
            segments = partition.segments()
        place = TopicPartition(info.name, number)
        plan = _Plan(place, info.uuid, info.config, partition, segments, start, overdue)
        plan.compacts = info.config.compact and self._compaction_due(plan)
        if plan.compacts and not self._dry_run:
            self._compact(plan)
        return plan

    def _compaction_due(self, plan: _Plan) -> bool:
        """Reading a whole log only pays when a segment was closed since, or delete markers have come of age."""
        last = self._compacted.get((plan.topic, plan.place.partition))
        if last is None or len(plan.segments) < 2:
            return len(plan.segments) > 1
        base, compacted = last
        return base != plan.segments[-1].base or self._elapsed.now_ns() - compacted > plan.config.delete_grace * 1e9

    def _compact(self, plan: _Plan) -> None:
        try:
            plan.compaction = plan.partition.compact()
        except (HeadwaterError, OSError) as error:
            plan.compacts, plan.error = False, str(error)
            self._errors.append(f"{plan.place}: {error}")
        else:
            self._compacted[plan.topic, plan.place.partition] = (plan.segments[-1].base, self._elapsed.now_ns())
            plan.segments = plan.partition.segments()

    def _retain(self, plan: _Plan) -> None:
        config = plan.config
        age_ns = self._elapsed.age_ns
        wanted = expired(plan.segments, config, age_ns, None)
        allowed = expired(plan.segments, config, age_ns, plan.keep_from)
        limits = replace(config, retention_age=self._config.force_after, retention_bytes=self._config.force_bytes)
        forced = expired(plan.segments, limits, age_ns, None)
        if config.compact:
            forced = min(forced, wanted)  # its oldest records may be the present ones: only its own limits count
        plan.count = max(allowed, forced)
        plan.blame(max(wanted, forced))

    def _limit_total(self, plans: list[_Plan]) -> None:
        """Let the oldest closed segments go, wherever they are, while the store is too large."""
        if self._config.total_bytes is None:
            return
        excess = sum(plan.bytes_left for plan in plans) - self._config.total_bytes
        giving = [plan for plan in plans if plan.can_give]
        while excess > 0 and giving:
            oldest = max(giving, key=lambda plan: self._age_ns(plan.segments[plan.count]))
            oldest.blame(oldest.count + 1)
            if oldest.unread(oldest.count + 1) > oldest.unread(oldest.count):
                giving.remove(oldest)
                continue
            excess -= oldest.segments[oldest.count].size
            oldest.count += 1
            if not oldest.can_give:
                giving.remove(oldest)

    def _age_ns(self, segment: SegmentFacts) -> int:
        return 0 if segment.closed_ns is None else self._elapsed.age_ns(segment.closed_ns)

    # Acting.

    def _delete(self, plan: _Plan) -> CleanedPartition:
        if plan.count and not self._dry_run and not self._stop:
            try:
                plan.partition.delete_before(plan.segments[plan.count].base)
            except (HeadwaterError, OSError) as error:
                plan.error = str(error)
                self._errors.append(f"{plan.place}: {error}")
                plan.count = 0
        elif self._stop:
            plan.count = 0
        return CleanedPartition(
            topic=plan.place.topic,
            partition=plan.place.partition,
            start=max(plan.segments[plan.count].base, plan.start),
            rolled=plan.rolled,
            segments=plan.count,
            bytes=plan.bytes,
            forced=plan.unread(plan.count),
            protected_by=tuple(sorted(plan.protected_by)),
            compacted=plan.compacts,
            compaction=plan.compaction,
            error=plan.error,
        )


def readers(groups: Mapping[str, GroupInfo | None], topic: bytes, place: TopicPartition) -> dict[str, int]:
    """How far each group is in a partition. One that reads it but has not committed yet may be at its beginning."""
    found: dict[str, int] = {}
    for name, info in groups.items():
        position = None if info is None else info.positions.get((topic, place.partition))
        if position is not None:
            found[name] = position.offset
        elif info is None or place in info.owners or _has_static(info, place.topic):
            found[name] = 0
    return found


def _has_static(info: GroupInfo, topic: str) -> bool:
    """Whether a consumer with a fixed share of a topic uses the group."""
    return any(member.static and TopicFilter(member.topics)(topic) for member in info.members.values())
