"""The stream reader: topics in micro-batches, from a checkpoint on.

Spark decides what a batch is before it runs, writes that down, and asks for the very same again after a crash. So
everything here follows from the offsets that Spark passes in; what the reader remembers is only for speed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater.core.errors import DataLost, HeadwaterError
from headwater.embedded.watch import new_watch, state_files
from headwater.spark.address import open_existing
from headwater.spark.columns import check
from headwater.spark.offsets import Offsets, TopicOffsets, from_json, shares, to_json
from headwater.spark.options import SourceOptions
from headwater.spark.ranges import OffsetRange, lose, read, split
from headwater.spark.reader import chosen_partitions, chosen_topics, first_offsets, positions, positions_exist
from headwater.streams import Commit, Store, Topic, TopicPartition

_log = logging.getLogger(__name__)

PATIENCE: Final = 0.05
"""The reader waits so many seconds for records before it says that there are none. It saves turns of an idle query's
loop. A longer wait would hold up the other sources of the query, which Spark asks one after the other."""


class HeadwaterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches, in a process of its own beside the driver, and reads them in tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._opened: Store | None = None  # not before it is needed: tasks get a copy of this reader
        self._checked: set[str] = set()
        self._mirrored: Offsets = {}
        self._target: Offsets | None = None
        self._last_batch = time.monotonic()

    # The position of the stream, and how far it can go.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - these are named by Spark
        """Return the offsets at which a new query begins."""
        topics = chosen_topics(self._store(), self._options)
        positions_exist(topics, self._options)
        begin = self._options.starting or "latest"
        return to_json(
            {
                topic.name: TopicOffsets(topic.info.uuid.hex(), positions(topic, begin, "latest", self._options))
                for topic in topics
            }
        )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end: the query reads the records that are there now, and ends."""
        self._target = self._ends()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the ends of the topics, from which the query's progress computes its lag."""
        return to_json(self._ends())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offsets at which the next batch ends, or `start` if there is nothing to read.

        Spark calls this when the batch before is done, so everything before `start` is done.
        """
        done = from_json(start)
        self._mirror(done)
        ends = self._target if self._target is not None else self._ends_beyond(done)
        begin = self._begin(done, ends)
        ends = {name: ends[name] for name in begin}
        sizes = _sizes(begin, ends)
        if self._too_few(sum(sizes.values())):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = _shortened(begin, ends, shares(sizes, limit.max_rows))
        if sizes:
            self._last_batch = time.monotonic()
        return to_json(ends)

    def _too_few(self, available: int) -> bool:
        """Return whether to wait for more, since the user wants larger batches and has not waited for too long."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or available >= least:
            return False
        return time.monotonic() - self._last_batch < self._options.max_trigger_delay

    def _ends_beyond(self, done: Offsets) -> Offsets:
        """Return the ends of the topics once they differ from what is done, or after a short while."""
        ends = self._ends()
        if ends != done:
            return ends

        def changed() -> bool:
            nonlocal ends
            ends = self._ends()
            return ends != done

        watch = new_watch()
        try:
            partitions = [partition for topic in self._topics() for partition in topic.partitions()]
            watch.follow(state_files(partitions))
            watch.wait(changed, PATIENCE)
        finally:
            watch.close()
        return ends

    def _ends(self) -> Offsets:
        """Return the current ends of the topics, new topics included."""
        ends: Offsets = {}
        for topic in self._topics():
            if topic.info.uuid.hex() not in self._checked:
                check(topic.schema, topic.name, self._schema)
                self._checked.add(topic.info.uuid.hex())
            bounds = topic.bounds()
            partition_ends = {number: bounds[number].end for number in chosen_partitions(topic, self._options)}
            ends[topic.name] = TopicOffsets(topic.info.uuid.hex(), partition_ends)
        return ends

    def _topics(self) -> list[Topic]:
        """The topics that are meant and there. One that has been deleted is missed when its offsets are."""
        store = self._store()
        return [store.topic(name) for name in store.topics() if self._options.means(name)]

    def _begin(self, done: Offsets, ends: Offsets) -> Offsets:
        """Return where the next batch begins in each partition, after a check that all unread records are still there.

        A new partition is read from offset 0, a new topic from where its log starts. Topics that are lost, and those
        that the options no longer name, are left out.
        """
        topics = {topic.name: topic for topic in self._topics()}
        begin: Offsets = {}
        for name in sorted(done.keys() | ends.keys()):
            before, now, topic = done.get(name), ends.get(name), topics.get(name)
            if topic is None or now is None:
                if self._options.means(name):
                    lose(DataLost(name, None, None, None, "the topic was deleted"), self._options)
                continue
            if topic.info.uuid.hex() != now.id or (before is not None and before.id != now.id):
                lose(DataLost(name, None, None, None, "the topic was deleted and made again"), self._options)
                before = None
                if topic.info.uuid.hex() != now.id:
                    continue
            readable = first_offsets(topic, self._options)
            starts = {number: readable[number] for number in now.partitions}
            if before is not None:
                for number, end in now.partitions.items():
                    starts[number] = self._kept(name, number, before.partitions.get(number, 0), starts[number], end)
            begin[name] = TopicOffsets(now.id, starts)
        return begin

    def _kept(self, name: str, number: int, first: int, log_start: int, end: int) -> int:
        """The first of the unread offsets of a partition that is still there."""
        if first < log_start:
            lose(DataLost(name, number, first, log_start, f"the log starts at {log_start}"), self._options)
        if end < first:
            lose(DataLost(name, number, end, first, f"the log ends at {end}"), self._options)
        return max(first, log_start)

    # Batches.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The work of a batch, divided into tasks: the same for the same offsets."""
        if start == end:
            return []
        ends = from_json(end)
        begin = self._begin(from_json(start), ends)
        ranges = [
            OffsetRange(name, offsets.id, number, first, ends[name].partitions[number])
            for name, offsets in begin.items()
            for number, first in offsets.partitions.items()
            if first < ends[name].partitions[number]
        ]
        return split(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return read(partition, self._options, self._schema) if isinstance(partition, OffsetRange) else iter(())

    # The group.

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with a batch, and says so one batch late; `latestOffset` hears it sooner."""

    def _mirror(self, done: Offsets) -> None:
        """Set the positions of the group to what is done, so that lag shows it and retention keeps the rest.

        They are for others to see: the stream itself goes on from its checkpoint, whatever they are.
        """
        name = self._options.group
        if name is None or done == self._mirrored:
            return
        group = self._store().group(name)
        known = group.committed()
        commits = {}
        for topic, offsets in done.items():
            for number, offset in offsets.partitions.items():
                key = (bytes.fromhex(offsets.id), number)
                if key not in known or known[key].offset < offset:
                    commits[TopicPartition(topic, number)] = Commit(key, offset)
        try:
            refused = group.commit(None, commits)
        except HeadwaterError as error:
            _log.warning("group %r does not show where this stream is: %s", name, error)
            return
        if refused and not self._mirrored:  # once is enough
            partitions = ", ".join(map(str, sorted(refused)))
            _log.warning("group %r has consumers, and does not show where this stream is in %s", name, partitions)
        self._mirrored = done

    # The handle.

    def _store(self) -> Store:
        if self._opened is None:
            self._opened = open_existing(self._options.store)
        return self._opened

    def stop(self) -> None:
        """Close the store when the query has ended."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _sizes(begin: Offsets, ends: Offsets) -> dict[tuple[str, int], int]:
    """Return the number of offsets in each partition that has any."""
    return {
        (name, number): end - begin[name].partitions[number]
        for name, offsets in ends.items()
        for number, end in offsets.partitions.items()
        if end > begin[name].partitions[number]
    }


def _shortened(begin: Offsets, ends: Offsets, taken: dict[tuple[str, int], int]) -> Offsets:
    """The ends of a batch that takes so many from each partition."""
    return {
        name: TopicOffsets(
            offsets.id,
            {
                number: begin[name].partitions[number] + taken[name, number] if (name, number) in taken else end
                for number, end in offsets.partitions.items()
            },
        )
        for name, offsets in ends.items()
    }
