"""The assignment of a consumer: its partitions, and how they come and go.

A partition changes hands when the assignment is refreshed, never between: what was read ahead of it is dropped, and the
next member begins at the group's position. A member that did not poll in time has lost all that it had; it joins again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.core.config import ConsumerConfig
from headwater.core.errors import InvalidFilter, StaleMember
from headwater.streams.cursor import Cursor, OnRecordsDamaged
from headwater.streams.cursors import Cursors
from headwater.streams.fixed_share import FixedShare
from headwater.streams.group import TopicKey
from headwater.streams.group_member import GroupMember
from headwater.streams.ports import Fetcher
from headwater.streams.record_filter import RecordFilter
from headwater.streams.start import Start
from headwater.streams.subscription import Subscription
from headwater.streams.topic import TopicPartition

if TYPE_CHECKING:
    from headwater.streams.store import Store

_log = logging.getLogger(__name__)
_WAITING = 0.01
"""The seconds between two looks of a member that waits for others to let its partitions go."""

OnChange = Callable[[frozenset[TopicPartition]], None]
"""Told which partitions a consumer has been given, or has to give up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """The functions that a consumer calls when its partitions change, or cannot be read."""

    on_assign: OnChange | None = None
    on_revoke: OnChange | None = None
    on_damage: OnRecordsDamaged | None = None


class ConsumerAssignment:
    """The partitions that one consumer reads, with a cursor for each. Not thread-safe.

    It asks the group for its share, or takes a fixed one, and commits the positions of partitions before they leave.
    """

    def __init__(
        self,
        store: Store,
        subscription: Subscription,
        member: GroupMember,
        fetcher: Fetcher,
        config: ConsumerConfig,
        *,
        start: Start,
        share: FixedShare | None,
        callbacks: Callbacks,
        where: RecordFilter | None = None,
    ) -> None:
        self._store = store
        self._subscription = subscription
        self._member = member
        self._fetcher = fetcher
        self._config = config
        self._start = start
        self._fixed_share = share
        self._callbacks = callbacks
        self._where = where
        self.cursors = Cursors()
        self._refreshed = 0.0
        self.refreshing = False
        """True while the partitions change; callbacks run meanwhile."""
        self.holding = False
        """True if a transaction commits the positions: partitions that it has touched are kept until its end."""
        self.owing = False
        """True if others wait for partitions that a transaction keeps."""
        self.lost = False
        """True if something was taken away that had been handed out since the last poll, or in a transaction."""

    # Refreshing.

    def patience(self) -> float:
        """Return the seconds between looks at the group: so few that a member that waits is not taken for late."""
        if self._member.waiting:
            return _WAITING
        return min(self._config.refresh_interval, self._config.max_poll_interval / 3)

    def refresh_soon(self) -> None:
        """Have the next `refresh` look at the group, however recent the last look is."""
        self._refreshed = 0.0

    def refresh(self) -> None:
        """Look for new topics and partitions, and for changes in the group, when it is time."""
        if self.refreshing:
            return  # called by one of the callbacks
        now = time.monotonic()
        age = now - self._refreshed
        if age < self.patience() and self._member.is_current:
            return
        self.refreshing = True
        try:
            self._take_over(self._share() if self._member.id is None else self._rebalance())
            self._refreshed = now  # from when it asked, not from when it heard: others count from then, too
        finally:
            self.refreshing = False

    def _share(self) -> AbstractSet[TopicPartition]:
        """The partitions of a consumer that has no others to agree with: all, or a fixed share."""
        self.forget(self._member.look_for_resets(self.cursors.values()))
        everything = self._subscription.partitions()
        return set(everything) if self._fixed_share is None else self._fixed_share.of(everything)

    def _rebalance(self) -> AbstractSet[TopicPartition]:
        """The partitions that are this member's now. Those that it loses are committed first, and then let go."""
        while True:
            try:
                rebalanced = self._member.rebalance(self._config.max_poll_interval, self.cursors)
            except StaleMember as error:
                _log.warning("%s; it joins again", error)
                self.forget(self.cursors.keys())
                self._member.rejoin()
                continue
            # A partition that was taken anew has another position, even if this consumer read it before: it was reset.
            self.forget(rebalanced.taken & self.cursors.keys())
            kept = {partition for partition in rebalanced.leaving if self.holding and self.cursors[partition].touched}
            self.owing = bool(kept)
            if rebalanced.leaving == kept:
                return rebalanced.owned | rebalanced.leaving
            self._revoke(rebalanced.leaving - kept)

    def _take_over(self, owned: AbstractSet[TopicPartition]) -> None:
        keys = {partition: key for partition in owned if (key := self._subscription.key(partition)) is not None}
        self.forget({partition for partition, cursor in self.cursors.items() if keys.get(partition) != cursor.key})
        assigned = frozenset(keys.keys() - self.cursors.keys())
        if assigned and self._member.group_name is not None:
            self._store.roll_forward(self._member.group_name)  # the member before may have decided and died
        self.cursors.add([self._new_cursor(partition, keys[partition]) for partition in sorted(assigned)])
        self._fetcher.follow(list(self.cursors.values()))
        if assigned and self._callbacks.on_assign is not None:
            self._callbacks.on_assign(assigned)

    def _new_cursor(self, tp: TopicPartition, key: TopicKey) -> Cursor:
        topic = self._store.topic(tp.topic)
        partition = topic.partition(tp.partition)
        position, generation = self._member.start_position(tp, key, partition, self._start)
        where, refusal = None, None
        try:
            where = None if self._where is None else self._where.bind(topic)
        except InvalidFilter as error:  # a topic that came later: the others are read on
            refusal = error
        source = self._fetcher.source(tp, key, partition, where)
        on_damage, on_loss = self._callbacks.on_damage, self._config.on_loss
        cursor = Cursor(tp, key, partition, position, generation, on_damage, source, on_loss)
        cursor.refusal = refusal
        return cursor

    # Giving partitions up.

    def _revoke(self, partitions: AbstractSet[TopicPartition]) -> None:
        """Give up partitions that are still this member's: the callback may acknowledge, and it is committed."""
        if self._callbacks.on_revoke is not None:
            self._callbacks.on_revoke(frozenset(partitions))
        self.commit_or_forget()
        self.drop(partitions)

    def forget(self, partitions: AbstractSet[TopicPartition]) -> None:
        """Give up partitions that are not this consumer's any more: what was not committed is another's to do."""
        lost = frozenset(partitions)
        self.drop(lost)
        if lost and self._callbacks.on_revoke is not None:
            self._callbacks.on_revoke(lost)

    def drop(self, partitions: AbstractSet[TopicPartition]) -> None:
        """Give up partitions without telling anyone."""
        if self.cursors.drop(partitions):
            self.lost = True

    # Committing.

    def commit(self, *, patiently: bool = False) -> frozenset[TopicPartition]:
        """Commit what is done, and return the partitions where that was refused; `patiently`, a later call may tell."""
        changed = self.cursors.done()
        if self._member.group is None or self.holding or not changed:
            return frozenset()
        known = self._member.known(self.cursors, changed)
        done, refused = self._fetcher.commit(self._member.id, changed, known, patiently=patiently)
        for partition, commit in done.items():
            if partition in changed:
                self.cursors[partition].committed = commit.offset
        return refused & changed.keys() if refused else refused

    def commit_or_forget(self, *, patiently: bool = False) -> None:
        """Commit what is done; what is no longer this member's is given up, since others repeat it."""
        refused = self.commit(patiently=patiently)
        if refused and self._member.has_members_at(refused):
            raise StaleMember(f"{self._member.refusal(refused)}: a group has members or fixed shares, not both")
        if refused:
            _log.warning("%s: others may repeat what was done there", self._member.refusal(refused))
            self.refresh_soon()
            self.forget(refused)
