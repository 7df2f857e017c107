"""The position of a pipeline, as that of a consumer group: lag shows it, and retention keeps what is unread."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from headwater.core.errors import HeadwaterError
from headwater.spark.address import open_existing
from headwater.spark.offsets import Offsets
from headwater.spark.pipeline.checkpoint import Checkpoint
from headwater.streams import Commit, Store, TopicPartition

_log = logging.getLogger(__name__)
PartitionKey = tuple[str, str, int]
"""The name of a topic, its id, and the number of a partition."""


def slowest(positions: Iterable[Offsets | None]) -> dict[PartitionKey, int]:
    """Return the position that all queries have reached: in each partition that of the slowest reader."""
    lowest: dict[PartitionKey, int] = {}
    for offsets in positions:
        for name, topic in (offsets or {}).items():
            for number, offset in topic.partitions.items():
                key = (name, topic.id, number)
                lowest[key] = min(offset, lowest.get(key, offset))
    return lowest


class PipelinePosition:
    """Sets the group's positions to what all queries of the pipeline have done. For one thread.

    They are for others to see: the queries go by their checkpoints. A query that has not done its first batch holds the
    group where it is.
    """

    def __init__(self, group: str, stores: Sequence[str]) -> None:
        self._group = group
        self._stack = ExitStack()
        self._stores: list[Store] = [self._stack.enter_context(open_existing(address)) for address in stores]
        self._shown: dict[PartitionKey, int] = {}

    def show(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Set the group to the position of the queries. Errors are logged, and stop no pipeline."""
        positions = [checkpoint.done() for checkpoint in checkpoints]
        if None in positions:
            return
        done = slowest(positions)
        if done == self._shown:
            return
        for store in self._stores:
            try:
                self._commit(store, done)
            except HeadwaterError as error:
                _log.warning("group %r does not show where the pipeline is: %s", self._group, error)
                return
        self._shown = done

    def _commit(self, store: Store, done: dict[PartitionKey, int]) -> None:
        group = store.group(self._group)
        known = group.committed()
        topics = set(store.topic_names())
        commits = {}
        for (name, uuid, number), offset in done.items():
            key = (bytes.fromhex(uuid), number)
            if name not in topics or store.describe_topic(name).uuid != key[0]:
                continue
            if key not in known or known[key].offset < offset:
                commits[TopicPartition(name, number)] = Commit(key, offset)
        refused = group.commit(None, commits) if commits else ()
        if refused:
            partitions = ", ".join(map(str, sorted(refused)))
            _log.warning(
                "group %r has consumers, and does not show where the pipeline is in %s", self._group, partitions
            )

    def rewind(self) -> None:
        """Set all positions to where their logs start: the pipeline begins anew, and retention keeps what is there."""
        for store in self._stores:
            group = store.group(self._group)
            names = {store.describe_topic(name).uuid: name for name in store.topics()}
            positions = {}
            for uuid, number in group.committed():
                if uuid in names:
                    start = store.topic(names[uuid]).bounds()[number].start
                    positions[TopicPartition(names[uuid], number)] = Commit((uuid, number), start)
            if positions:
                group.reset(positions)

    def close(self) -> None:
        """Let go of the stores."""
        self._stack.close()
