"""The membership of one consumer in its group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from headwater.log import Partition
from headwater.streams.cursor import Cursor
from headwater.streams.group import Commit, TopicKey, was_reset
from headwater.streams.membership import Rebalanced
from headwater.streams.ports import GroupCoordinator
from headwater.streams.start import Start, resolve
from headwater.streams.subscription import Subscription
from headwater.streams.topic import TopicPartition


class GroupMember:
    """One consumer, as its group knows it; a consumer without a group has one that knows nobody. Not thread-safe.

    A member shares the partitions with others. A consumer with a fixed share is known to the group as its user, so that
    the group is not forgotten, and acts as no member.
    """

    def __init__(self, group: GroupCoordinator | None, subscription: Subscription, *, static: bool) -> None:
        self.group = group
        self._subscription = subscription
        self._static = static
        self.generation = -1
        """The generation of the assignment that the consumer acts on."""
        self.waiting = False
        """True if others hold partitions that should be this member's."""
        self.id: str | None = None
        """The member's id; None for a fixed share, and without a group."""
        self.user: str | None = None
        """The id of a consumer with a fixed share."""
        self._join()

    def _join(self) -> None:
        if self.group is None:
            return
        wanted = self._subscription
        joined = self.group.join(wanted.topics, wanted.partitions_of, static=self._static)
        if self._static:
            self.user = joined
        else:
            self.id = joined

    @property
    def group_name(self) -> str | None:
        """The name of the group."""
        return None if self.group is None else self.group.name

    @property
    def is_current(self) -> bool:
        """True if nothing has changed in the group since the consumer's assignment."""
        return self._present_generation() == self.generation

    def _present_generation(self) -> int:
        return self.group.generation() if self.group is not None else 0

    def touch(self) -> None:
        """Tell the group that the consumer has polled."""
        joined = self.id or self.user
        if self.group is not None and joined is not None:
            self.group.touch(joined)

    def rebalance(self, max_poll_interval: float, holding: Iterable[TopicPartition]) -> Rebalanced:
        """Return the partitions of this member now; raises StaleMember when it was taken out."""
        assert self.group is not None
        assert self.id is not None
        self.group.touch(self.id)
        self.generation, rebalanced = self.group.rebalance(
            self.id, self._subscription.partitions_of, max_poll_interval, holding=holding
        )
        self.waiting = rebalanced.waiting
        return rebalanced

    def rejoin(self) -> None:
        """Join again, as another member."""
        self.leave()
        self._join()

    def look_for_resets(self, cursors: Iterable[Cursor]) -> set[TopicPartition]:
        """Go on with the present generation, without being a member; return the partitions that were reset since."""
        before, self.generation = self.generation, self._present_generation()
        if self.group is None or before == self.generation:
            return set()
        if self.user is not None and before != -1 and self.user not in self.group.describe().members:
            self.rejoin()  # it was taken out, because nothing was heard of it
            self.generation = self._present_generation()
        position = self.group.position
        return {cursor.tp for cursor in cursors if was_reset(position(cursor.key), cursor.generation)}

    def start_position(self, tp: TopicPartition, key: TopicKey, partition: Partition, start: Start) -> tuple[int, int]:
        """Return the offset to begin at in a partition, and the generation in which it was set.

        It is the group's position, or else what `start` means, which becomes the group's position.
        """
        known = self.group.position(key) if self.group is not None else None
        end = partition.bounds().end
        if known is not None and self.group is not None and known.offset > end:
            self.group.clamp({tp: Commit(key, end)})  # a power loss has taken what was not synced
            known = self.group.position(key)
        if known is not None:
            return min(known.offset, end), known.generation
        position = resolve(partition, "earliest" if self._subscription.came_later(key) else start)
        if self.group is not None:
            # The group begins here even if this member dies before it has done anything: "latest" would be later then.
            known_generation = None if self.id is not None else {key: self.generation}
            self.group.commit(self.id, {tp: Commit(key, position)}, known=known_generation)
        return position, self.generation

    def known(
        self, cursors: Mapping[TopicPartition, Cursor], partitions: Iterable[TopicPartition]
    ) -> dict[TopicKey, int] | None:
        """Return the generations by which a non-member notices a reset; a reset takes a member's partition away."""
        if self.id is not None:
            return None
        return {cursors[partition].key: cursors[partition].generation for partition in partitions}

    def has_members_at(self, partitions: AbstractSet[TopicPartition]) -> bool:
        """Return whether members of the group own one of these partitions, which a fixed share cannot have then."""
        return self.group is not None and self._static and not partitions.isdisjoint(self.group.describe().owners)

    def refusal(self, partitions: AbstractSet[TopicPartition]) -> str:
        """Return a sentence about commits that were refused."""
        names = ", ".join(str(partition) for partition in sorted(partitions))
        return f"group {self.group_name!r} refused the commit of {names}, which this consumer no longer owns"

    def leave(self) -> None:
        """Leave the group."""
        joined = self.id or self.user
        if self.group is not None and joined is not None:
            self.group.leave(joined, self._subscription.partitions_of)
