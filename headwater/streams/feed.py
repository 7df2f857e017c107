"""A feed: how records, and the news that there are some, reach one consumer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headwater.log import Bounds, Partition, StoredFrame
from headwater.streams.watch import Watch

if TYPE_CHECKING:
    from headwater.streams.cursor import Cursor
    from headwater.streams.group import Commit, Group, TopicKey
    from headwater.streams.store import Store
    from headwater.streams.topic import TopicPartition


class Source(Protocol):
    """Where a cursor reads: a partition, or what was fetched of one."""

    def bounds(self) -> Bounds:
        """Which offsets can be read now."""

    def read(self, offset: int, *, max_bytes: int) -> list[StoredFrame]:
        """Frames from the one that holds `offset` on."""


class Feed:
    """Records come straight from the partitions, and the file system tells of new ones. For one consumer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed: set[TopicKey] | None = None
        self.watch = Watch()
        """What wakes the consumer when there may be something to poll; an event loop can wait for it too."""

    def source(self, place: TopicPartition, key: TopicKey, partition: Partition) -> Source:  # noqa: ARG002
        """Where a new cursor reads."""
        return partition

    def follow(self, cursors: Sequence[Cursor], group: Group | None) -> None:
        """Be woken by what is appended to the partitions at hand, and by changes in the group."""
        keys = {cursor.key for cursor in cursors}
        if keys != self._followed:
            paths = [path for cursor in cursors for path in self._store.watched(cursor.partition)]
            self.watch.follow(paths + (group.watched() if group is not None else []))
            self._followed = keys

    def look(self, cursors: Sequence[Cursor], group: Group | None, member: str | None, *, patiently: bool) -> bool:  # noqa: ARG002
        """Before records are taken: see what there is for these cursors by now; whether that took asking somebody.

        Who is patient waits for the news anyway.
        """
        return False

    def taken(self, cursors: Sequence[Cursor]) -> None:
        """After records were taken: a moment to get the next ones, while those are handled."""

    def ready(self, cursors: Sequence[Cursor]) -> bool:
        """Whether there is something for one of these cursors."""
        return any(cursor.partition.bounds().end > cursor.next for cursor in cursors)

    def commit(
        self,
        group: Group,
        member: str | None,
        commits: dict[TopicPartition, Commit],
        known: dict[TopicKey, int] | None,
        *,
        patiently: bool,  # noqa: ARG002 - it takes no time here
    ) -> tuple[dict[TopicPartition, Commit], frozenset[TopicPartition]]:
        """Set positions of the group: which ones are set by now, and which were refused.

        Who is patient may be told by a later call, which is given all that is not known to be set.
        """
        refused = group.commit(member, commits, known=known)
        if not refused:
            return commits, refused
        return {place: one for place, one in commits.items() if place not in refused}, refused

    def finish_commits(self) -> None:
        """Return when nothing is on its way that sets positions."""

    def close(self) -> None:
        """Give everything back."""
        self.watch.close()
