"""Compacting: Spark finds the newest record of each key, the engine rewrites the segments.

So the keys of a topic may be more than fit in one memory. Everything else is as when the engine does it alone: offsets
stay, delete markers have their grace, readers are undisturbed, and a crash leaves each segment as it was or rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions

import headwater.core.compute as pc
from headwater.core.errors import HeadwaterError, InvalidConfiguration, OffsetOutOfRange, StoreError
from headwater.log import CompactionReport, Damage, DirectoryPartition
from headwater.log.format.frame import HAS_KEYS, StoredFrame
from headwater.log.maintain.compaction import delete_markers
from headwater.log.recover.survivors import NEWEST, Survivors
from headwater.spark.address import open_existing
from headwater.spark.jobs.tasks import OnProgress, watched
from headwater.streams import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Batches = Iterator[pa.RecordBatch]

_SEGMENTS: Final = "partition int, base bigint, first bigint, end bigint"
_LEARNT: Final = "partition int, receipt bigint, key binary, newest bigint"
"""A keyed record: twice its offset, and one more for a delete marker, so that the greatest number is the newest. Or
with a receipt, and nothing else: all of the segment with that base was read."""
_DONE: Final = (
    "partition int, error string, segments bigint, rewritten bigint, damaged bigint, removed bigint, before bigint, "
    "after bigint"
)

_LEARNT_ARROW: Final = pa.schema(
    [("partition", pa.int32()), ("receipt", pa.int64()), ("key", pa.binary()), ("newest", pa.int64())]
)
_DONE_ARROW: Final = pa.schema(
    [("partition", pa.int32()), ("error", pa.string())]
    + [(name, pa.int64()) for name in ("segments", "rewritten", "damaged", "removed", "before", "after")]
)
_BATCH_BYTES: Final = 1024 * 1024


def compact(
    spark: SparkSession, store: str, topic: str, *, roll: bool = False, on_progress: OnProgress | None = None
) -> dict[int, CompactionReport]:
    """Keep only the newest record of each key in the closed segments of a topic; what was done in each partition.

    `roll` closes the growing segments first.
    """
    looked_at, segments = _closed(store, topic, roll)
    reports = {number: CompactionReport(0, 0, 0, 0, 0, 0) for number in looked_at}
    if not segments:
        return reports
    work = spark.createDataFrame(spark.sparkContext.parallelize(segments, len(segments)), _SEGMENTS)
    done = (
        work.mapInArrow(_learning(store, topic), _LEARNT)
        .groupBy("partition", "receipt", "key")
        .agg(functions.max("newest").alias("newest"))
        .repartition(len(looked_at), "partition")
        .sortWithinPartitions("partition", functions.asc_nulls_last("receipt"), "newest")
        .mapInArrow(_rewriting(store, topic, looked_at), _DONE)
    )
    with watched(spark, on_progress):
        rows = done.collect()
    for row in rows:
        if row.error is not None:
            raise StoreError(f"{topic}/{row.partition} is not compacted: {row.error}")
        reports[row.partition] = CompactionReport(*row[2:])
    return reports


def _closed(store: str, topic: str, roll: bool) -> tuple[dict[int, dict[int, bytes]], list[tuple[int, int, int, int]]]:
    """The closed segments of each partition, by which file they are, and what is to be read of each."""
    with open_existing(store) as opened:
        info = opened.topic(topic).info
        if not info.config.compact:
            raise InvalidConfiguration(f"topic {topic!r} cannot be compacted: its option compact is not set")
        looked_at: dict[int, dict[int, bytes]] = {}
        segments = []
        for number in range(info.partitions):
            partition = _partition(opened, topic, number)
            if roll:
                partition.roll()
            closed = partition.closed()
            looked_at[number] = {part.segment.base: part.segment.header.log for part in closed}
            segments += [(number, part.segment.base, part.first, part.end) for part in closed]
        return looked_at, segments


def _partition(store: Store, topic: str, number: int) -> DirectoryPartition:
    partition = store.topic(topic).partition(number)
    if not isinstance(partition, DirectoryPartition):
        raise InvalidConfiguration(f"{store} is not a directory: Spark compacts only stores in directories")
    return partition


# In tasks: learning.


def _learning(store: str, topic: str) -> Callable[[_Batches], _Batches]:
    """Gives the keys of segments, and receipts for those of which all was read."""

    def learn(batches: _Batches) -> _Batches:
        with open_existing(store) as opened:
            for batch in batches:
                for row in batch.to_pylist():
                    partition = _partition(opened, topic, row["partition"])
                    yield from _learn(partition, row["partition"], row["base"], row["first"], row["end"])

    return learn


def _learn(partition: DirectoryPartition, number: int, base: int, first: int, end: int) -> _Batches:
    damage: list[Damage] = []
    gathered: list[pa.RecordBatch] = []
    try:
        for frame in partition.frames(first, end, on_damage=damage.append):
            if frame.header.attributes & HAS_KEYS:
                gathered.append(_keys(frame, number))
            if sum(batch.nbytes for batch in gathered) > _BATCH_BYTES:
                yield pa.concat_batches(gathered)
                gathered = []
    except OffsetOutOfRange:
        damage.append(Damage(partition.path, 0, first, end, "removed by retention"))
    if gathered:
        yield pa.concat_batches(gathered)
    if not damage:
        yield pa.RecordBatch.from_pylist([{"partition": number, "receipt": base}], schema=_LEARNT_ARROW)


def _keys(frame: StoredFrame, number: int) -> pa.RecordBatch:
    batch = frame.batch()
    markers = pc.cast(delete_markers(batch, frame.schema), pa.int64())
    newest = pc.add(pc.multiply(frame.offsets(batch), 2), markers)
    keys = batch.column(frame.schema.system("key"))
    numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
    columns = [numbers, pa.nulls(batch.num_rows, pa.int64()), keys, newest]
    return pa.RecordBatch.from_arrays(columns, schema=_LEARNT_ARROW).filter(pc.is_valid(keys))


# In tasks: rewriting.


def _rewriting(store: str, topic: str, looked_at: Mapping[int, Mapping[int, bytes]]) -> Callable[[_Batches], _Batches]:
    """Has the engine rewrite the partitions whose survivors arrive, one after the other."""

    def rewrite(batches: _Batches) -> _Batches:
        with open_existing(store) as opened:
            for number, parts in groupby(_by_partition(batches), key=itemgetter(0)):
                row: tuple[object, ...]
                try:
                    whole, newest = _told_apart(part for _, part in parts)
                    survivors = Survivors(looked_at[number], whole, newest)
                    row = (number, None, *astuple(_partition(opened, topic, number).compact(survivors)))
                except (HeadwaterError, OSError) as error:
                    row = (number, str(error), *[0] * 6)
                yield pa.RecordBatch.from_pylist([dict(zip(_DONE_ARROW.names, row, strict=True))], schema=_DONE_ARROW)

    return rewrite


def _by_partition(batches: _Batches) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        for number in pc.unique(batch.column("partition")).to_pylist():
            yield number, batch.filter(pc.equal(batch.column("partition"), number))


def _told_apart(parts: _Batches) -> tuple[set[int], _Batches]:
    """The receipts, which come first, and the survivors behind them."""
    whole: set[int] = set()
    for part in parts:
        receipts = part.column("receipt")
        whole.update(receipts.drop_null().to_pylist())
        if receipts.null_count:
            return whole, (_newest(batch) for batch in chain([part], parts))
    return whole, iter(())


def _newest(part: pa.RecordBatch) -> pa.RecordBatch:
    newest = part.filter(pc.is_null(part.column("receipt"))).column("newest")
    markers = pc.equal(pc.bit_wise_and(newest, 1), 1)
    return pa.RecordBatch.from_arrays([pc.shift_right(newest, 1), markers], schema=NEWEST)
