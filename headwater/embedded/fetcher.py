"""The fetcher of an embedded store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.core.filter import BoundFilter
from headwater.embedded.filtered_source import FilteredSource
from headwater.embedded.group import EmbeddedGroup
from headwater.embedded.watch import new_watch, state_files
from headwater.log import Partition
from headwater.streams.group import commit_now
from headwater.streams.ports import Source

if TYPE_CHECKING:
    from headwater.streams.cursor import Cursor
    from headwater.streams.group import Commit, TopicKey
    from headwater.streams.topic import TopicPartition


class PartitionFetcher:
    """Records come straight from the partitions, and the file system tells of new ones. For one consumer."""

    def __init__(self, group: EmbeddedGroup | None, group_files: Sequence[Path] = ()) -> None:
        """`group_files` change with every generation of the group."""
        self._group = group
        self._group_files = group_files
        self._followed: set[TopicKey] | None = None
        self.watch = new_watch()

    def source(
        self,
        tp: TopicPartition,
        key: TopicKey,  # noqa: ARG002
        partition: Partition,
        where: BoundFilter | None,
    ) -> Source:
        return partition if where is None else FilteredSource(partition, where, tp.partition)

    def follow(self, cursors: Sequence[Cursor]) -> None:
        keys = {cursor.key for cursor in cursors}
        if keys != self._followed:
            self.watch.follow([*state_files(cursor.partition for cursor in cursors), *self._group_files])
            self._followed = keys

    def look(self, cursors: Sequence[Cursor], member: str | None, *, patiently: bool) -> bool:  # noqa: ARG002
        return False

    def taken(self, cursors: Sequence[Cursor]) -> None:
        """Do nothing: partitions are read where they lie, so there is nothing to fetch ahead."""

    def ready(self, cursors: Sequence[Cursor]) -> bool:
        return any(cursor.partition.bounds().end > cursor.next for cursor in cursors)

    def commit(
        self,
        member: str | None,
        commits: dict[TopicPartition, Commit],
        known: dict[TopicKey, int] | None,
        *,
        patiently: bool,  # noqa: ARG002 - it takes no time here
    ) -> tuple[dict[TopicPartition, Commit], frozenset[TopicPartition]]:
        assert self._group is not None, "there are positions only in a group"
        return commit_now(self._group, member, commits, known)

    def finish_commits(self) -> None:
        """Do nothing: commits are done when they return."""

    def close(self) -> None:
        self.watch.close()
