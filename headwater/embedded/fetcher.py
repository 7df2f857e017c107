"""The fetcher of an embedded store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.embedded.watch import Watch
from headwater.log import Partition
from headwater.streams.group import commit_now
from headwater.streams.ports import Source

if TYPE_CHECKING:
    from headwater.streams.cursor import Cursor
    from headwater.streams.group import Commit, Group, TopicKey
    from headwater.streams.store import Store
    from headwater.streams.topic import TopicPartition


class PartitionFetcher:
    """Records come straight from the partitions, and the file system tells of new ones. For one consumer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed: set[TopicKey] | None = None
        self.watch = Watch()

    def source(self, place: TopicPartition, key: TopicKey, partition: Partition) -> Source:  # noqa: ARG002
        return partition

    def follow(self, cursors: Sequence[Cursor], group: Group | None) -> None:
        keys = {cursor.key for cursor in cursors}
        if keys != self._followed:
            paths = [path for cursor in cursors for path in self._store.watched(cursor.partition)]
            self.watch.follow(paths + (group.watched() if group is not None else []))
            self._followed = keys

    def look(self, cursors: Sequence[Cursor], group: Group | None, member: str | None, *, patiently: bool) -> bool:  # noqa: ARG002
        return False

    def taken(self, cursors: Sequence[Cursor]) -> None:
        """There is nothing to fetch ahead: partitions are read where they lie."""

    def ready(self, cursors: Sequence[Cursor]) -> bool:
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
        return commit_now(group, member, commits, known)

    def finish_commits(self) -> None:
        """Commits are done when they return."""

    def close(self) -> None:
        self.watch.close()
