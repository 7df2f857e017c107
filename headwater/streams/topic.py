"""A topic: a name, a schema, a configuration and partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from headwater.core.errors import InvalidConfiguration, PartitionDeleted, SchemaError
from headwater.core.filter import BoundFilter
from headwater.core.record import Record
from headwater.core.schema import Schema
from headwater.log import Bounds, Counters, Partition, PartitionStatistics, Schemas
from headwater.log.files.counters import sum_counters
from headwater.log.format.frame_filter import FrameFilter
from headwater.streams.catalog import TopicInfo, check_kept_once, grown
from headwater.streams.configuring import configured
from headwater.streams.record_filter import bind_filter
from headwater.streams.start import Start, resolve

if TYPE_CHECKING:
    from headwater.streams.ports import Appender
    from headwater.streams.store import Store
    from headwater.streams.transaction import Transaction

PARTITION = pa.int32()


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatistics:
    """A topic in numbers, summed over its partitions, and each of those."""

    name: str
    records: int
    bytes: int
    total_records: int
    total_bytes: int
    unhealthy: tuple[int, ...]
    partitions: tuple[PartitionStatistics, ...]
    counters: Counters
    """The activity of all partitions together."""

    @classmethod
    def of(cls, name: str, partitions: Iterable[PartitionStatistics]) -> TopicStatistics:
        """The sums over these partitions, which are all that the topic has."""
        listed = tuple(partitions)
        return cls(
            name=name,
            records=sum(partition.end - partition.start for partition in listed),
            bytes=sum(partition.bytes for partition in listed),
            total_records=sum(partition.total_records for partition in listed),
            total_bytes=sum(partition.total_bytes for partition in listed),
            unhealthy=tuple(
                number for number, partition in enumerate(listed) if partition.poisoned or partition.damaged
            ),
            partitions=listed,
            counters=sum_counters(partition.counters for partition in listed),
        )


class Topic:
    """A topic of a store. Cheap to make; it always shows the topic as it is now."""

    def __init__(self, store: Store, name: str, uuid: bytes | None = None) -> None:
        self._store = store
        self.name = name
        self._uuid = uuid

    def pinned(self) -> Topic:
        """This very topic: when it is deleted and made again under its name, PartitionDeleted is raised."""
        return Topic(self._store, self.name, self.info.uuid)

    @property
    def info(self) -> TopicInfo:
        """The topic's description."""
        return self._checked(self._store.describe_topic(self.name))

    @property
    def recent_info(self) -> TopicInfo:
        """The description of a moment ago, without asking anybody: producers look at it for every batch."""
        return self._checked(self._store.recall_topic(self.name))

    def _checked(self, info: TopicInfo) -> TopicInfo:
        if self._uuid is not None and info.uuid != self._uuid:
            raise PartitionDeleted(f"topic {self.name!r}")
        return info

    @property
    def schema(self) -> Schema:
        """The schema that new records have."""
        return self._store.schema_of(self.info)

    def partition(self, number: int) -> Partition:
        """One of the topic's partitions."""
        return self._store.partition(self.info, number)

    def partitions(self) -> list[Partition]:
        """All of the topic's partitions."""
        info = self.info
        return [self._store.partition(info, number) for number in range(info.partitions)]

    def _new_appender(self) -> Appender:
        """Return the appender of a new producer of this topic."""
        return self._store._new_appender()

    def _new_transaction(self) -> Transaction:
        """Return a new transaction of the topic's store."""
        return self._store.transaction()

    def bounds(self) -> dict[int, Bounds]:
        """For each partition which offsets can be read now."""
        return {number: partition.bounds() for number, partition in enumerate(self.partitions())}

    def offset_of(self, position: Start, partition: int) -> int:
        """The offset that a position means in a partition now: `"earliest"`, `"latest"`, `headwater.time(…)`, …"""
        return resolve(self.partition(partition), position)

    # Reading without a consumer.

    def scan(
        self,
        start: Start = "earliest",
        end: Start = "latest",
        *,
        partitions: Sequence[int] | None = None,
        columns: list[str] | None = None,
        where: str | None = None,
    ) -> pa.RecordBatchReader:
        """The records from `start` up to `end` as Arrow batches, partition by partition.

        All of what is there when it is called, or an error. DuckDB, Polars and pandas read it without copying. Beside
        the columns of the topic there is one with the partition's number. With `where`, a filter such as
        `"price > 10"`, only records that match; a broker sends no others.
        """
        schema = self.schema
        condition = None if where is None else bind_filter(where, self, schema)
        column = schema.system("partition")
        names = columns if columns is not None else [column, *schema.full.names]
        if not names or len(set(names)) < len(names):
            raise SchemaError(f"columns must be given, each once; there are {column}, {', '.join(schema.full.names)}")
        inner = [name for name in names if name != column] or [schema.system("offset")]
        projected = schema.project(inner)
        fields = [pa.field(column, PARTITION, nullable=False) if n == column else projected.field(n) for n in names]
        output = pa.schema(fields)
        ranges = [
            (number, partition, resolve(partition, start), resolve(partition, end))
            for number, partition in self._chosen(partitions)
        ]
        return pa.RecordBatchReader.from_batches(output, self._batches(ranges, schema, inner, output, condition))

    def _batches(
        self,
        ranges: list[tuple[int, Partition, int, int]],
        schema: Schema,
        inner: list[str],
        output: pa.Schema,
        condition: BoundFilter | None,
    ) -> Iterator[pa.RecordBatch]:
        column = schema.system("partition")
        for number, partition, first, last in ranges:
            if first >= last:
                continue
            where = None if condition is None else FrameFilter(condition, number)
            for batch in partition.scan(first, last, columns=inner, schema=schema, where=where):
                if not batch.num_rows:
                    continue
                arrays = [
                    pa.repeat(pa.scalar(number, PARTITION), batch.num_rows) if name == column else batch.column(name)
                    for name in output.names
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=output)

    def _chosen(self, partitions: Sequence[int] | None) -> list[tuple[int, Partition]]:
        info = self.info
        numbers = range(info.partitions) if partitions is None else partitions
        for number in numbers:
            if not isinstance(number, int) or not 0 <= number < info.partitions:
                raise InvalidConfiguration(
                    f"topic {self.name!r} has partitions 0 to {info.partitions - 1}, not {number}"
                )
        return [(number, self._store.partition(info, number)) for number in numbers]

    def recent(self, count: int = 10, *, where: str | None = None) -> list[Record]:
        """The last `count` records by time, over all partitions; no group's position is touched.

        With `where`, the last ones that match a filter.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidConfiguration(f"count is a number of records, not {count!r}")
        condition = None if where is None else bind_filter(where, self, self.schema)
        records = [
            record
            for number, partition in enumerate(self.partitions())
            for record in last_records(partition, count, None if condition is None else FrameFilter(condition, number))
        ]
        return sorted(records, key=lambda record: record.timestamp)[-count:]

    # Looking after it.

    def evolve(self, schema: pa.Schema) -> None:
        """Add nullable columns to the schema; older records read back with nulls there. Anything else is refused."""
        self._store.evolve_topic(self.name, Schema(schema))

    def statistics(self) -> TopicStatistics:
        """The topic in numbers."""
        info = self.info
        partitions = (self._store.partition_statistics(info, number) for number in range(info.partitions))
        return TopicStatistics.of(self.name, partitions)

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"


def last_records(partition: Partition, count: int, where: FrameFilter | None = None) -> list[Record]:
    """The last `count` records of a partition that match, however many others are between them.

    Compaction may have removed some, and others may not match.
    """
    start, end, _ = partition.bounds()
    records: list[Record] = []
    span = count
    while len(records) < count and start < end:
        first = max(end - span, start)
        records = [*partition.records(first, end, where=where), *records]
        end = first
        span *= 2
    return records[-count:]


def altered(
    info: TopicInfo,
    partitions: int | None,
    options: Mapping[str, Any],
    replication: int | None = None,
    min_insync: int | None = None,
) -> TopicInfo:
    """Return a topic with options changed by name, and with more partitions unless `partitions` is None.

    Raises InvalidConfiguration, also for more than one replica: this is for stores outside of a cluster.
    """
    check_kept_once(info.name, replication, min_insync)
    info = replace(info, config=configured(info.config, None, options))
    return info if partitions is None else grown(info, partitions)


def evolved(info: TopicInfo, schema: Schema, schemas: Schemas) -> TopicInfo:
    """Return a typed topic with a schema that has more, nullable columns, and keep the schema; raises SchemaError."""
    current = schemas.get(info.schemas[-1])
    if schema == current:
        return info
    if current.raw:
        raise SchemaError(f"topic {info.name!r} is raw: its records have no columns to add to")
    check_evolution(current, schema)
    schemas.put(schema)
    return replace(info, schemas=(*info.schemas, schema.id))


def check_evolution(old: Schema, new: Schema) -> None:
    """Raise unless records of `old` can be read as `new`: the same columns, and nullable ones behind them."""
    for number, field in enumerate(old.payload):
        if number >= len(new.payload) or new.payload.field(number) != field:
            raise SchemaError(f"column {field.name!r} ({field.type}) must stay as it is, in its place")
    for field in list(new.payload)[len(old.payload) :]:
        if not field.nullable:
            raise SchemaError(f"new column {field.name!r} must be nullable: older records do not have it")
