"""Cleaning an embedded store: undone transactions, rolling, compaction, retention, groups that nobody uses any more.

A pass first decides for every partition and then acts, so a dry run tells what a real one would do. Nothing is removed
that a group has yet to read, unless the configuration forces it, and an error in one partition does not keep the others
from being cleaned.

Ages count by the time that was observed to pass (`headwater.log.elapsed`), not by what the wall clock says now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.core.config import StewardConfig
from headwater.core.errors import HeadwaterError, PartitionBusy, PartitionDeleted, StoreClosed, UnknownTopic
from headwater.embedded.group import EmbeddedGroup
from headwater.embedded.retention_plan import PartitionPlan
from headwater.log.clock import Clock
from headwater.log.maintain.retention import SegmentFacts, expired
from headwater.streams.catalog import TopicInfo
from headwater.streams.group import GroupInfo
from headwater.streams.steward import CleanedPartition, StewardReport, readers
from headwater.streams.stopping import Stop
from headwater.streams.topic import TopicPartition
from headwater.streams.transaction import STAGES_KEPT

if TYPE_CHECKING:
    from headwater.streams.store import Store

OpenGroup = Callable[[str], EmbeddedGroup]
"""Returns the coordinator of a group by its name."""


class EmbeddedCleaner:
    """Cleans an embedded store, in passes. Thread-safe as far as `alone` keeps others out."""

    notes_history = False

    def __init__(
        self, store: Store, groups: OpenGroup, clock: Clock, alone: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`alone` gives the right to clean, for the length of a block; it raises PartitionBusy."""
        self._store = store
        self._groups = groups
        self._clock = clock
        self._alone = alone
        self._compacted: dict[tuple[bytes, int], tuple[int, int]] = {}
        """For each partition the end of the closed segments, and the time, of its last compaction."""

    def clean(self, config: StewardConfig, *, dry_run: bool, stop: Stop) -> StewardReport:
        try:
            with self._alone():
                work = CleaningPass(self._store, self._groups, config, self._clock, self._compacted, dry_run, stop)
                return work.run()
        except PartitionBusy as busy:
            holder = f"process {busy.pid}" if busy.pid else "another thread"
            return StewardReport(dry_run=dry_run, skipped=f"{holder} is cleaning {self._store} at this moment")


class CleaningPass:
    """One pass over a store."""

    def __init__(
        self,
        store: Store,
        groups: OpenGroup,
        config: StewardConfig,
        clock: Clock,
        compacted: dict[tuple[bytes, int], tuple[int, int]],
        dry_run: bool,
        stop: Stop,
    ) -> None:
        self._store = store
        self._open_group = groups
        self._config = config
        self._clock = clock
        self._elapsed = store.elapsed
        self._unused = self._elapsed.is_older(config.group_expiry)
        self._compacted = compacted
        self._dry_run = dry_run
        self._stop = stop
        self._errors: list[str] = []

    def run(self) -> StewardReport:
        """Decide for every partition, then act, and return what was done."""
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
    def _noting(self, subject: object) -> Iterator[None]:
        """Note errors in the block and go on. A topic or partition that was deleted needs no cleaning."""
        try:
            yield
        except StoreClosed:
            raise
        except (UnknownTopic, PartitionDeleted):
            pass
        except (HeadwaterError, OSError) as error:
            self._errors.append(f"{subject}: {error}")

    # Groups.

    def _expire_groups(self) -> list[str]:
        gone: list[str] = []
        for name in self._store.group_names():
            with self._noting(f"group {name!r}"):
                if self._open_group(name).expire_unused(self._unused, dry_run=self._dry_run):
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
                count += self._open_group(name).prune(topics, self._unused, dry_run=self._dry_run)
        return count

    def _groups(self, names: list[str]) -> dict[str, GroupInfo | None]:
        """Each group as it is; None for one that cannot be read now, which may be anywhere."""
        groups: dict[str, GroupInfo | None] = dict.fromkeys(names)
        for name in names if self._config.protect_unread else ():
            with self._noting(f"group {name!r}"):
                groups[name] = self._store.group(name).describe()
        return groups if self._config.protect_unread else {}

    # Deciding.

    def _plans(self, names: list[str]) -> list[PartitionPlan]:
        plans: list[PartitionPlan] = []
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
            plan.readers = readers(groups, plan.topic, plan.tp)
        return plans

    def _plan(self, info: TopicInfo, number: int) -> PartitionPlan:
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
        tp = TopicPartition(info.name, number)
        plan = PartitionPlan(tp, info.uuid, info.config, partition, segments, start, overdue)
        plan.compacts = info.config.compact and self._compaction_due(plan)
        if plan.compacts and not self._dry_run:
            self._compact(plan)
        return plan

    def _compaction_due(self, plan: PartitionPlan) -> bool:
        """Reading a whole log only pays when a segment was closed since, or delete markers have come of age."""
        last = self._compacted.get((plan.topic, plan.tp.partition))
        if last is None or len(plan.segments) < 2:
            return len(plan.segments) > 1
        base, compacted = last
        return base != plan.segments[-1].base or self._elapsed.now_ns() - compacted > plan.config.delete_grace * 1e9

    def _compact(self, plan: PartitionPlan) -> None:
        try:
            plan.compaction = plan.partition.compact()
        except (HeadwaterError, OSError) as error:
            plan.compacts, plan.error = False, str(error)
            self._errors.append(f"{plan.tp}: {error}")
        else:
            self._compacted[plan.topic, plan.tp.partition] = (plan.segments[-1].base, self._elapsed.now_ns())
            plan.segments = plan.partition.segments()

    def _retain(self, plan: PartitionPlan) -> None:
        config = plan.config
        age_ns = self._elapsed.age_ns
        wanted = expired(plan.segments, config, age_ns, None)
        allowed = expired(plan.segments, config, age_ns, plan.keep_from)
        limits = replace(config, retention_age=self._config.force_after, retention_bytes=self._config.force_bytes)
        forced = expired(plan.segments, limits, age_ns, None)
        if config.compact:
            forced = min(forced, wanted)  # its oldest records may be the present ones: only its own limits count
        plan.count = max(allowed, forced)
        plan.wanted = max(wanted, forced)
        plan.blame(plan.wanted)

    def _limit_total(self, plans: list[PartitionPlan]) -> None:
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

    def _delete(self, plan: PartitionPlan) -> CleanedPartition:
        if max(plan.count, plan.wanted) and not self._dry_run and not self._stop:
            protected = plan.segments[plan.count : plan.wanted]
            try:
                plan.partition.remove_expired(plan.segments[plan.count].base if plan.count else None, protected)
            except (HeadwaterError, OSError) as error:
                plan.error = str(error)
                self._errors.append(f"{plan.tp}: {error}")
                plan.count = 0
        elif self._stop:
            plan.count = 0
        return CleanedPartition(
            topic=plan.tp.topic,
            partition=plan.tp.partition,
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
