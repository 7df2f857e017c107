"""The consumer: reads topics from where its group left off, or from where it is told.

A record is done when it is acknowledged, and a group's position is the offset before which everything is done. So a
crash repeats records that were not acknowledged, and never skips any. Acknowledgements become the group's position at
the next poll, at `commit` and at `close`; with automatic acknowledgement, polls may commit less often (`AutoCommit`).

A partition changes hands at a poll, never between: see `ConsumerAssignment`.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from headwater.core.config import ConsumerConfig
from headwater.core.errors import (
    InvalidConfiguration,
    PartitionClosed,
    PartitionDeleted,
    PartitionForked,
    StaleMember,
    StoreClosed,
    StoreError,
)
from headwater.streams.auto_commit import AutoCommit
from headwater.streams.consumer_assignment import Callbacks, ConsumerAssignment, OnChange
from headwater.streams.cursor import ConsumedBatch, ConsumedRecord, Cursor, OnRecordsDamaged
from headwater.streams.fetch_collector import FetchCollector
from headwater.streams.fixed_share import FixedShare
from headwater.streams.group import Commit, PositionClaim
from headwater.streams.group_member import GroupMember
from headwater.streams.ports import GroupCoordinator
from headwater.streams.processing import Handler, Processing, ProcessOptions, ProcessSummary
from headwater.streams.record_filter import RecordFilter
from headwater.streams.start import Start, resolve
from headwater.streams.subscription import Subscription
from headwater.streams.topic import TopicPartition
from headwater.streams.transaction_progress import TransactionProgress

if TYPE_CHECKING:
    from headwater.streams.store import Store

_log = logging.getLogger(__name__)
_Consumed = TypeVar("_Consumed", ConsumedRecord, ConsumedBatch)
_READING_ON = 10.0
"""For so many seconds after its time a poll goes on with records that do not match a filter. The next poll commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """A consumer in numbers."""

    assigned: tuple[TopicPartition, ...]
    positions: dict[TopicPartition, int]
    delivered_records: int
    lag: int


class Consumer:
    """Reads one topic or several. Not thread-safe: one consumer belongs to one thread; use a group for more."""

    def __init__(
        self,
        store: Store,
        topics: str | Iterable[str],
        *,
        group: GroupCoordinator | None,
        start: Start,
        config: ConsumerConfig,
        static: tuple[int, int] | None = None,
        on_assign: OnChange | None = None,
        on_revoke: OnChange | None = None,
        on_damage: OnRecordsDamaged | None = None,
        where: str | None = None,
    ) -> None:
        share = None if static is None else FixedShare(static)
        self._store = store
        self._subscription = Subscription(store, topics)
        known = {partition.topic for partition in self._subscription.partitions()} if where is not None else ()
        record_filter = None if where is None else RecordFilter(where, map(store.topic, sorted(known)))
        self.config = config
        self._member = GroupMember(group, self._subscription, static=share is not None)
        self._fetcher = store._new_fetcher(config, self._member.group_name)
        self.watch = self._fetcher.watch
        self._assignment = ConsumerAssignment(
            store,
            self._subscription,
            self._member,
            self._fetcher,
            config,
            start=start,
            share=share,
            callbacks=Callbacks(on_assign=on_assign, on_revoke=on_revoke, on_damage=on_damage),
            where=record_filter,
        )
        self._cursors = self._assignment.cursors
        self._collector = FetchCollector(store, self._subscription, self._assignment, config.fetch_bytes)
        self._auto_commit = AutoCommit(config)
        self._progress = TransactionProgress(self._assignment, self._member, auto_ack=config.auto_ack)
        self._reading_on = min(_READING_ON, config.max_poll_interval / 3)
        self._delivered = 0
        self._closed = False
        self._pid = os.getpid()

    # Polling.

    def poll(self, max_records: int | None = None, timeout: float = 0.0) -> list[ConsumedRecord]:
        """Return at most `max_records` records, waiting up to `timeout` seconds for the first; there may be none."""
        limit = self.config.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise InvalidConfiguration(f"max_records must be at least 1, not {limit}")
        records = self._polled(timeout, lambda: self._collector.records(limit))
        self._delivered += len(records)
        return records

    def poll_batches(self, timeout: float = 0.0) -> list[ConsumedBatch]:
        """The same as Arrow batches, one for each frame that was read ahead."""
        batches = self._polled(timeout, self._collector.batches)
        self._delivered += sum(consumed.batch.num_rows for consumed in batches)
        return batches

    def _polled(self, timeout: float, take: Callable[[], list[_Consumed]]) -> list[_Consumed]:
        deadline, patiently = time.monotonic() + timeout, timeout > 0
        self._begin_poll(patiently)
        while True:
            self._look(patiently=patiently)
            consumed = take()
            left = deadline - time.monotonic()
            if not consumed and self._collector.passed_over and -left < self._reading_on:
                self._member.touch()
                continue  # the time is for waiting: what is there is read first
            if consumed or (left <= 0 and not patiently):
                self._fetcher.taken(self._cursors.active())
                return consumed
            if left > 0:
                self.watch.wait(self.ready, min(left, self.patience()))
                if not self._auto_commit.every_poll:
                    self._commit_if_due()
            else:
                patiently = False  # the time is over: what is there by now is looked for once, without waiting for news

    def _look(self, *, patiently: bool) -> None:
        """Have the fetcher see what there is; what it hears of the group meanwhile is acted on first."""
        self._refresh()
        while self._fetcher.look(self._cursors.active(), self._member.id, patiently=patiently):
            if self._assignment.refreshing or self._member.is_current:
                return
            self._refresh()

    def ready(self) -> bool:
        """Return whether there is a reason to wake up: records, or a change in the group."""
        if not self._member.is_current:
            return True
        with suppress(PartitionClosed, PartitionDeleted):
            return self._fetcher.ready(self._cursors.active())
        return True

    def __iter__(self) -> Iterator[ConsumedRecord]:
        """Records as they come, waiting for more, until the consumer is closed."""
        while not self._closed:
            records = deque(self.poll(timeout=1.0))
            try:
                while records and not self._closed:
                    yield records.popleft()
            finally:
                self.give_back(records)

    def process(self, handler: Handler, **options: Unpack[ProcessOptions]) -> ProcessSummary:
        """Call `handler` with each record as it comes, acknowledge it then, and retry what fails.

        SIGTERM, Ctrl-C or an event end it: it finishes the record at hand, commits and returns what it has done. A
        record that fails for good goes to a dead-letter topic or to a callback; with neither, the error is raised.
        """
        return Processing(self, self._store, self._subscription.filter, handler, **options).run()

    def give_back(self, consumed: Sequence[ConsumedRecord | ConsumedBatch]) -> None:
        """Take back the result of a poll, or the last of it, that nobody has got: it comes again."""
        self._delivered -= self._cursors.give_back(consumed)

    def _begin_poll(self, patiently: bool) -> None:
        self._check_open()
        if self.config.auto_ack:
            self._cursors.take_as_done()
        if not self._assignment.holding:
            self._assignment.lost = False
            if self._auto_commit.every_poll:
                self._assignment.commit_or_forget(patiently=patiently)
            else:
                self._commit_if_due()
        self._member.touch()

    def _commit_if_due(self) -> None:
        """Commit if it is time, and wait for it: it is rare, and only then the next one is counted from here."""
        if not self._assignment.holding and self._auto_commit.is_due(self._cursors.uncommitted()):
            self._assignment.commit_or_forget()

    def patience(self) -> float:
        """Return the seconds for which the consumer may wait for records before it has something else to do.

        It looks at the group so often that a member that waits is not taken for late, and commits when that is due.
        """
        return min(self._assignment.patience(), max(self._auto_commit.patience(), 0.0))

    def _refresh(self) -> None:
        """Look for new topics and partitions, and for changes in the group, when it is time."""
        self._check_open()
        self._assignment.refresh()

    # Acknowledging.

    def ack(self, done: ConsumedRecord | ConsumedBatch) -> None:
        """The record, or all of the batch, is done."""
        if isinstance(done, ConsumedBatch):
            self.ack_range(done.topic, done.partition, done.start, done.end)
        else:
            self.ack_range(done.topic, done.partition, done.offset, done.offset + 1)

    def ack_range(self, topic: str, partition: int, start: int, end: int) -> None:
        """Everything from `start` up to, and without, `end` is done; what was not handed out yet cannot be."""
        cursor = self._cursor(topic, partition)
        cursor.acks.ack(start, min(end, cursor.delivered))

    def commit(self) -> None:
        """Make what is done the group's position now; raises StaleMember when a partition has been taken away."""
        self._check_open()
        refused = self._assignment.commit()
        if refused:
            raise StaleMember(self._member.refusal(refused))

    def _cursor(self, topic: str, partition: int) -> Cursor:
        self._check_open()
        tp: Any = (topic, partition)  # the same as a TopicPartition, and made in a tenth of its time
        cursor = self._cursors.get(tp)
        if cursor is None:
            raise StaleMember(f"{topic}/{partition} is not assigned to this consumer, or no longer")
        return cursor

    # Being part of a transaction.

    @property
    def store(self) -> Store:
        """The store that it reads from."""
        return self._store

    @property
    def group_name(self) -> str | None:
        """The group that keeps this consumer's positions."""
        return self._member.group_name

    def hold(self) -> None:
        """Commit nothing from now on: what is done is part of a transaction, and partitions are kept until its end."""
        self._check_open()
        self._progress.hold()

    def claim(self) -> PositionClaim | None:
        """Return what is done since `hold`; raises StaleMember when something of it was taken away."""
        return self._progress.claim()

    def decided(self, commits: dict[TopicPartition, Commit], generation: int) -> None:
        """These positions were decided over in a generation of the group."""
        self._progress.decided(commits, generation)

    def begin_anew(self) -> None:
        """Nobody knows whether what is done was committed: go on from the group's positions."""
        self._progress.begin_anew()

    def let_go(self, *, committed: bool) -> None:
        """The transaction is over. Records that it has not committed are read again."""
        self._progress.let_go(committed=committed)

    # Moving about.

    def seek(self, topic: str, partition: int, position: Start) -> None:
        """Read on from `position`. The group's position follows with the next acknowledgements, forwards only."""
        self._refresh()
        cursor = self._cursor(topic, partition)
        committed = cursor.committed
        cursor.move(resolve(cursor.partition, position))
        cursor.committed = max(cursor.committed, committed)

    def reset(self, position: Start) -> None:
        """Set the group's position in every assigned partition, forwards or backwards, and read on from there."""
        if self._assignment.holding:
            raise StoreError("the consumer is part of a transaction, which a reset would undo: end it first")
        self._refresh()
        offsets = {tp: resolve(cursor.partition, position) for tp, cursor in self._cursors.items()}
        if self._member.group is not None:
            self._fetcher.finish_commits()
            self._member.group.reset({tp: Commit(self._cursors[tp].key, offset) for tp, offset in offsets.items()})
        for tp, offset in offsets.items():
            self._cursors[tp].move(offset)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions, or of all, until `resume`."""
        self._cursors.paused.update(partitions or self._cursors)

    def resume(self, *partitions: TopicPartition) -> None:
        """Go on with these partitions, or with all."""
        self._cursors.paused.difference_update(partitions or set(self._cursors.paused))

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        self._refresh()
        return frozenset(self._cursors)

    def lag(self) -> dict[TopicPartition, int]:
        """For each assigned partition how many records are not done."""
        self._refresh()
        return {
            tp: max(cursor.partition.bounds().end - cursor.acks.position - cursor.acks.pending, 0)
            for tp, cursor in self._cursors.items()
        }

    def statistics(self) -> ConsumerStatistics:
        """The consumer in numbers."""
        return ConsumerStatistics(
            assigned=tuple(sorted(self._cursors)),
            positions={tp: cursor.acks.position for tp, cursor in self._cursors.items()},
            delivered_records=self._delivered,
            lag=sum(self.lag().values()),
        )

    # The handle.

    def close(self) -> None:
        """Commit what is done and leave the group. Closing twice does no harm."""
        self._close(self.config.auto_ack)

    def _close(self, take_as_done: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return  # a copy in a forked process: the member is its parent's
        try:
            with suppress(StoreClosed):  # then the members have gone with the store
                if take_as_done:
                    self._cursors.take_as_done()
                refused = self._assignment.commit()
                if refused:
                    _log.warning("%s: others may repeat what was done there", self._member.refusal(refused))
        finally:
            try:
                with suppress(StoreClosed):
                    self._member.leave()
            finally:
                self._fetcher.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the consumer")
        if self._pid != os.getpid():
            raise PartitionForked("the consumer")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A handler that fails has not done what it was given last: that is not taken as done.
        self._close(self.config.auto_ack and kind is None)
