"""The consumer: reads topics from where its group left off, or from where it is told.

A record is done when it is acknowledged, and a group's position is the offset before which everything is done. So a
crash repeats records that were not acknowledged, and never skips any. Acknowledgements become the group's position at
the next poll, at `commit` and at `close`.

A partition changes hands at a poll, never between: what was read ahead of it is dropped, and the next member begins at
the group's position. A member that did not poll in time has lost all that it had; it joins again with its next poll.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from headwater.core.config import ConsumerConfig
from headwater.core.errors import (
    HeadwaterError,
    InvalidConfiguration,
    PartitionClosed,
    PartitionDeleted,
    PartitionForked,
    StaleMember,
    StoreClosed,
    StoreError,
)
from headwater.log.format.projection import Projection
from headwater.streams.cursor import ConsumedBatch, ConsumedRecord, Cursor, OnLoss
from headwater.streams.cursors import Cursors
from headwater.streams.group import Commit, PositionClaim, TopicKey
from headwater.streams.group_member import GroupMember
from headwater.streams.ports import GroupCoordinator
from headwater.streams.processing import Handler, Processing, ProcessOptions, ProcessSummary
from headwater.streams.start import Start, resolve
from headwater.streams.subscription import Subscription
from headwater.streams.topic import TopicPartition

if TYPE_CHECKING:
    from headwater.streams.store import Store

_log = logging.getLogger(__name__)
_WAITING = 0.01
"""The seconds between two looks of a member that waits for others to let its partitions go."""

OnChange = Callable[[frozenset[TopicPartition]], None]
"""Told which partitions a consumer has been given, or has to give up."""


_Found = TypeVar("_Found", ConsumedRecord, ConsumedBatch)


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
        on_damage: OnLoss | None = None,
    ) -> None:
        if static is not None and not 0 <= static[0] < static[1]:
            raise InvalidConfiguration(f"a static assignment is (number, of how many), not {static}")
        self._store = store
        self._subscription = Subscription(store, topics)
        self._start = start
        self.config = config
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._on_damage = on_damage
        self._cursors = Cursors()
        self._static = static
        self._refreshed = 0.0
        self._refreshing = False
        self._delivered = 0
        self._projections: dict[bytes, Projection] = {}
        self._closed = False
        self._holding = False
        self._owing = False
        """True if others wait for partitions that a transaction keeps."""
        self._lost = False
        """True if something was taken away that had been handed out since the last poll, or in a transaction."""
        self._pid = os.getpid()
        self._member = GroupMember(group, self._subscription, static=static is not None)
        self._fetcher = store._new_fetcher(config, self._member.group_name)
        self.watch = self._fetcher.watch

    # Polling.

    def poll(self, max_records: int | None = None, timeout: float = 0.0) -> list[ConsumedRecord]:
        """Return at most `max_records` records, waiting up to `timeout` seconds for the first; there may be none."""
        limit = self.config.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise InvalidConfiguration(f"max_records must be at least 1, not {limit}")
        found = self._polled(timeout, lambda: self._take_records(limit))
        self._delivered += len(found)
        return found

    def poll_batches(self, timeout: float = 0.0) -> list[ConsumedBatch]:
        """The same as Arrow batches, one for each frame that was read ahead."""
        found = self._polled(timeout, self._take_batches)
        self._delivered += sum(one.batch.num_rows for one in found)
        return found

    def _polled(self, timeout: float, take: Callable[[], list[_Found]]) -> list[_Found]:
        deadline, patiently = time.monotonic() + timeout, timeout > 0
        self._begin_poll(patiently)
        while True:
            self._look(patiently=patiently)
            found = take()
            left = deadline - time.monotonic()
            if found or (left <= 0 and not patiently):
                self._fetcher.taken(self._cursors.active())
                return found
            if left > 0:
                self.watch.wait(self.ready, min(left, self.patience()))
            else:
                patiently = False  # the time is over: what is there by now is looked for once, without waiting for news

    def _look(self, *, patiently: bool) -> None:
        """Have the fetcher see what there is; what it hears of the group meanwhile is acted on first."""
        self._refresh()
        while self._fetcher.look(self._cursors.active(), self._member.id, patiently=patiently):
            if self._refreshing or self._member.is_current:
                return
            self._refresh()

    def ready(self) -> bool:
        """Return whether there is a reason to wake up: records, or a change in the group."""
        if not self._member.is_current:
            return True
        with suppress(PartitionClosed, PartitionDeleted):
            return self._fetcher.ready(self._cursors.active())
        return True

    def _take_records(self, limit: int) -> list[ConsumedRecord]:
        found: list[ConsumedRecord] = []
        failed: HeadwaterError | None = None
        for cursor in self._cursors.active():
            try:
                while len(found) < limit and cursor.fetch(self.config.fetch_bytes):
                    if not cursor.records:
                        cursor.unpack()
                    found.extend(cursor.take(limit - len(found)))
            except HeadwaterError as error:
                failed = self._failed(cursor, error) or failed
            self._cursors.next_turn()  # the next poll begins with another partition
            if len(found) >= limit:
                break
        return self._found(found, failed)

    def _take_batches(self) -> list[ConsumedBatch]:
        found: list[ConsumedBatch] = []
        failed: HeadwaterError | None = None
        for cursor in self._cursors.active():
            try:
                cursor.unread()
                if cursor.fetch(self.config.fetch_bytes):
                    found.extend(cursor.take_batches(self._projection(cursor)))
            except HeadwaterError as error:
                failed = self._failed(cursor, error) or failed
        return self._found(found, failed)

    def _failed(self, cursor: Cursor, error: HeadwaterError) -> HeadwaterError | None:
        """Return the error of a partition that cannot be read; None if its topic is gone: a refresh takes it out."""
        if self._subscription.key(cursor.place) == cursor.key:
            return error
        self._refreshed = 0.0
        return None

    def _found(self, found: list[_Found], failed: HeadwaterError | None) -> list[_Found]:
        """Return what was found. A partition that fails does not hold the others up: its error comes after them."""
        if failed is not None and not found:
            raise failed
        return found

    def _projection(self, cursor: Cursor) -> Projection:
        found = self._projections.get(cursor.key[0])
        if found is None:
            found = Projection(self._store.topic(cursor.place.topic).schema, None)
            self._projections[cursor.key[0]] = found
        return found

    def __iter__(self) -> Iterator[ConsumedRecord]:
        """Records as they come, waiting for more, until the consumer is closed."""
        while not self._closed:
            found = deque(self.poll(timeout=1.0))
            try:
                while found and not self._closed:
                    yield found.popleft()
            finally:
                self.give_back(found)

    def process(self, handler: Handler, **options: Unpack[ProcessOptions]) -> ProcessSummary:
        """Call `handler` with each record as it comes, acknowledge it then, and retry what fails.

        SIGTERM, Ctrl-C or an event end it: it finishes the record at hand, commits and returns what it has done. A
        record that fails for good goes to a dead-letter topic or to a callback; with neither, the error is raised.
        """
        return Processing(self, self._store, self._subscription.filter, handler, **options).run()

    def give_back(self, found: Sequence[ConsumedRecord | ConsumedBatch]) -> None:
        """Take back what a poll found, or the last of it, that nobody has got: it comes again."""
        self._delivered -= self._cursors.give_back(found)

    def _begin_poll(self, patiently: bool) -> None:
        self._check_open()
        if self.config.auto_ack:
            self._cursors.take_as_done()
        if not self._holding:
            self._lost = False
            self._commit_or_forget(patiently=patiently)
        self._member.touch()

    # The assignment.

    def patience(self) -> float:
        """Return the seconds between looks at the group: so few that a member that waits is not taken for late."""
        if self._member.waiting:
            return _WAITING
        return min(self.config.refresh_interval, self.config.max_poll_interval / 3)

    def _refresh(self) -> None:
        """Look for new topics and partitions, and for changes in the group, when it is time."""
        self._check_open()
        if self._refreshing:
            return  # called by one of the callbacks
        now = time.monotonic()
        age = now - self._refreshed
        if age < self.patience() and self._member.is_current:
            return
        self._refreshing = True
        try:
            self._take_over(self._share() if self._member.id is None else self._rebalance())
            self._refreshed = now  # from when it asked, not from when it heard: others count from then, too
        finally:
            self._refreshing = False

    def _share(self) -> AbstractSet[TopicPartition]:
        """The partitions of a consumer that has no others to agree with: all, or a fixed share."""
        self._forget(self._member.look_for_resets(self._cursors.values()))
        number, total = self._static or (0, 1)
        everything = sorted(self._subscription.partitions())
        return {place for i, place in enumerate(everything) if i % total == number}

    def _rebalance(self) -> AbstractSet[TopicPartition]:
        """The partitions that are this member's now. Those that it loses are committed first, and then let go."""
        while True:
            try:
                rebalanced = self._member.rebalance(self.config.max_poll_interval, self._cursors)
            except StaleMember as error:
                _log.warning("%s; it joins again", error)
                self._forget(self._cursors.keys())
                self._member.rejoin()
                continue
            # A partition that was taken anew has another position, even if this consumer read it before: it was reset.
            self._forget(rebalanced.taken & self._cursors.keys())
            kept = {place for place in rebalanced.leaving if self._holding and self._cursors[place].touched}
            self._owing = bool(kept)
            if rebalanced.leaving == kept:
                return rebalanced.owned | rebalanced.leaving
            self._revoke(rebalanced.leaving - kept)

    def _revoke(self, places: AbstractSet[TopicPartition]) -> None:
        """Give up partitions that are still this member's: the callback may acknowledge, and it is committed."""
        if self._on_revoke is not None:
            self._on_revoke(frozenset(places))
        self._commit_or_forget()
        self._drop(places)

    def _forget(self, places: AbstractSet[TopicPartition]) -> None:
        """Give up partitions that are not this consumer's any more: what was not committed is another's to do."""
        lost = frozenset(places)
        self._drop(lost)
        if lost and self._on_revoke is not None:
            self._on_revoke(lost)

    def _drop(self, places: AbstractSet[TopicPartition]) -> None:
        if self._cursors.drop(places):
            self._lost = True

    def _take_over(self, owned: AbstractSet[TopicPartition]) -> None:
        keys = {place: key for place in owned if (key := self._subscription.key(place)) is not None}
        self._forget({place for place, cursor in self._cursors.items() if keys.get(place) != cursor.key})
        assigned = frozenset(keys.keys() - self._cursors.keys())
        if assigned and self._member.group_name is not None:
            self._store.roll_forward(self._member.group_name)  # the member before may have decided and died
        self._cursors.add([self._new_cursor(place, keys[place]) for place in sorted(assigned)])
        self._fetcher.follow(list(self._cursors.values()))
        if assigned and self._on_assign is not None:
            self._on_assign(assigned)

    def _new_cursor(self, place: TopicPartition, key: TopicKey) -> Cursor:
        partition = self._store.topic(place.topic).partition(place.partition)
        position, generation = self._member.start_position(place, key, partition, self._start)
        source = self._fetcher.source(place, key, partition)
        return Cursor(place, key, partition, position, generation, self._on_damage, source)

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
        refused = self._commit_done()
        if refused:
            raise StaleMember(self._member.refusal(refused))

    def _commit_or_forget(self, *, patiently: bool = False) -> None:
        """Commit what is done; what is no longer this member's is given up, since others repeat it."""
        refused = self._commit_done(patiently=patiently)
        if refused and self._member.has_members_at(refused):
            raise StaleMember(f"{self._member.refusal(refused)}: a group has members, or fixed shares, not both")
        if refused:
            _log.warning("%s: others may repeat what was done there", self._member.refusal(refused))
            self._refreshed = 0.0
            self._forget(refused)

    def _commit_done(self, *, patiently: bool = False) -> frozenset[TopicPartition]:
        """Commit what is done, and return the partitions where that was refused; `patiently`, a later call may tell."""
        changed = self._cursors.done()
        if self._member.group is None or self._holding or not changed:
            return frozenset()
        known = self._member.known(self._cursors, changed)
        done, refused = self._fetcher.commit(self._member.id, changed, known, patiently=patiently)
        for place, commit in done.items():
            if place in changed:
                self._cursors[place].committed = commit.offset
        return refused & changed.keys() if refused else refused

    def _cursor(self, topic: str, partition: int) -> Cursor:
        self._check_open()
        place: Any = (topic, partition)  # the same as a TopicPartition, and made in a tenth of its time
        cursor = self._cursors.get(place)
        if cursor is None:
            raise StaleMember(f"{topic}/{partition} is not assigned to this consumer (any more)")
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
        if self._holding:
            raise StoreError("the consumer is part of another transaction: end that one first")
        refused = self._commit_done()
        if refused:
            self._refreshed = 0.0
            self._forget(refused)
            self._lost = False  # as told here
            raise StaleMember(self._member.refusal(refused))
        self._refresh()  # what others wait for goes now, even if some of it was handed out and never acknowledged
        self._holding = True

    def claim(self) -> PositionClaim | None:
        """Return what is done since `hold`; raises StaleMember when something of it was taken away."""
        if self._lost:
            raise StaleMember("partitions were taken from this consumer, and what it read there is another's to do")
        if self.config.auto_ack:
            self._cursors.take_as_done()
        commits, member = self._cursors.done(), self._member
        if member.group_name is None or not commits:
            return None
        return PositionClaim(member.group_name, member.id, commits, member.known(self._cursors, commits))

    def decided(self, commits: dict[TopicPartition, Commit], generation: int) -> None:
        """These positions were decided over in a generation of the group."""
        for place in commits:
            self._cursors[place].generation = generation

    def begin_anew(self) -> None:
        """Nobody knows whether what is done was committed: go on from the group's positions."""
        self._refreshed = 0.0
        self._drop(frozenset(self._cursors))

    def let_go(self, *, committed: bool) -> None:
        """The transaction is over. Records that it has not committed are read again."""
        self._holding = self._lost = False
        if self._owing:
            self._refreshed = 0.0  # they are let go at the next poll, or when the next transaction begins
        for cursor in self._cursors.values():
            if committed:
                cursor.committed = cursor.acks.position
            elif cursor.delivered > cursor.committed:
                cursor.move(cursor.committed)

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
        if self._holding:
            raise StoreError("the consumer is part of a transaction, which a reset would undo: end it first")
        self._refresh()
        positions = {place: resolve(cursor.partition, position) for place, cursor in self._cursors.items()}
        if self._member.group is not None:
            self._fetcher.finish_commits()
            self._member.group.reset({place: Commit(self._cursors[place].key, at) for place, at in positions.items()})
        for place, offset in positions.items():
            self._cursors[place].move(offset)

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
            place: max(cursor.partition.bounds().end - cursor.acks.position - cursor.acks.pending, 0)
            for place, cursor in self._cursors.items()
        }

    def statistics(self) -> ConsumerStatistics:
        """The consumer in numbers."""
        return ConsumerStatistics(
            assigned=tuple(sorted(self._cursors)),
            positions={place: cursor.acks.position for place, cursor in self._cursors.items()},
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
                refused = self._commit_done()
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
