"""Ranges of offsets: the part of each partition that a query reads, divided among tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headwater.core.errors import DataLost, HeadwaterError, OffsetOutOfRange, RangeUnreadable
from headwater.spark.address import open_existing
from headwater.spark.archive import PartitionArchive
from headwater.spark.columns import Conversion
from headwater.spark.options import SourceOptions
from headwater.spark.worker import freeze_garbage
from headwater.streams import Topic

_log = logging.getLogger(__name__)

MOST_RECORDS: Final = 1_000_000
"""A task reads at most so many records unless `maxRecordsPerPartition` says otherwise."""
LARGEST_TASK: Final = 4 * MOST_RECORDS
"""Or so many, where it is known how many tasks run at once: each costs Spark some 15 ms in Python."""


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """Offsets of one partition, from `start` up to, and without, `end`: the work of one task."""

    topic: str
    id: str
    """The topic's uuid: one that is made again under the name is another."""
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets. There may be fewer records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} from {self.start} to {self.end}"


def split(ranges: Sequence[OffsetRange], options: SourceOptions, at_once: int | None = None) -> list[OffsetRange]:
    """The same offsets as work for enough tasks, `at_once` of them at a time. By offsets alone: nothing is read."""
    total = sum(whole.size for whole in ranges)
    shared = -(-total // at_once) if at_once else 0
    most = options.max_records_per_partition or min(max(shared, MOST_RECORDS), LARGEST_TASK)
    parts: list[OffsetRange] = []
    for whole in ranges:
        count = -(-whole.size // most)
        if options.min_partitions is not None:
            count = max(count, round(whole.size / total * options.min_partitions))
        count = min(count, whole.size)
        cuts = [whole.start + whole.size * number // count for number in range(count + 1)]
        parts += [replace(whole, start=first, end=last) for first, last in pairwise(cuts)]
    return parts


def read(task: OffsetRange, options: SourceOptions, wanted: StructType) -> Iterator[pa.RecordBatch]:
    """The records of a range as Spark takes them: all of them, or an error that says which are missing."""
    try:
        with open_existing(options.store) as store:
            topic = store.topic(task.topic)
            if topic.info.uuid.hex() != task.id:
                why = "the topic was deleted and made again"
                lose(DataLost(task.topic, task.partition, task.start, task.end, why), options)
                return
            conversion = Conversion(topic.schema, wanted, task.topic, task.partition)
            yield from conversion.batches(_stored(topic, task, conversion.columns, options))
        freeze_garbage()
    except DataLost:
        raise
    except (HeadwaterError, OSError, pa.ArrowException) as error:
        raise RangeUnreadable(task.topic, task.partition, task.start, task.end, error) from error


def _stored(topic: Topic, task: OffsetRange, columns: list[str], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a range as they are stored. Records that were removed meanwhile raise, or are passed over.

    Archived records come from the archive. It is looked up when it is needed, and again if the log has lost records
    that the archive did not have before.
    """

    def on_lost(first: int, last: int) -> None:
        lose(DataLost(task.topic, task.partition, first, last, "they are not in the archive"), options)

    start, end = task.start, task.end
    while start < end:
        archive = PartitionArchive.of(options.archive, topic, task.partition)
        if archive is not None and start < archive.end:
            stop = min(end, archive.end)
            yield from archive.batches(start, stop, topic.schema, columns, on_lost)
            start = stop
            continue
        try:
            yield from topic.scan(start, end, partitions=[task.partition], columns=columns)
            return
        except OffsetOutOfRange as error:
            if error.offset < error.start:
                start = max(error.offset, start)
                archive = PartitionArchive.of(options.archive, topic, task.partition)
                if archive is not None and start < archive.end:
                    continue
                lost, start = (start, min(error.start, end)), error.start
                why = f"the log starts at {error.start}"
            else:
                lost, end = (max(start, error.end), end), error.end
                why = f"the log ends at {error.end}"
            lose(DataLost(task.topic, task.partition, *lost, why), options)


def lose(loss: DataLost, options: SourceOptions) -> None:
    """Raise, or go on with a warning, as the user has chosen."""
    if options.fail_on_data_loss:
        raise loss
    _log.warning("%s; going on without them", loss.finding)
