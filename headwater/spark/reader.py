"""The batch reader: what topics hold when a query is planned, as a DataFrame. `scan` reads the same by a faster way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater.core.errors import DataLost, InvalidConfiguration, OffsetOutOfRange, SchemaError
from headwater.core.schema import RAW
from headwater.spark.address import open_existing
from headwater.spark.archive import PartitionArchive
from headwater.spark.columns import check, spark_schema, usual
from headwater.spark.options import Position, Positions, SourceOptions
from headwater.spark.ranges import OffsetRange, lose, read, split
from headwater.spark.session import as_text
from headwater.streams import Store, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class HeadwaterReader(DataSourceReader):
    """Reads ranges of offsets, decided when the query is planned, each in a task of its own."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The work, divided into tasks."""
        return split(self.ranges(), self._options)

    def ranges(self) -> list[OffsetRange]:
        """The work: what there is in each partition at this moment."""
        options = self._options
        ranges = []
        with open_existing(options.store) as store:
            topics = chosen_topics(store, options)
            for topic in topics:
                check(topic.schema, topic.name, self._schema)
            positions_exist(topics, options)
            for topic in topics:
                starts = positions(topic, options.starting or "earliest", "earliest", options)
                ends = positions(topic, options.ending, "latest", options)
                ranges += [
                    OffsetRange(topic.name, topic.info.uuid.hex(), number, start, ends[number])
                    for number, start in starts.items()
                    if start < ends[number]
                ]
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return read(partition, self._options, self._schema) if isinstance(partition, OffsetRange) else iter(())


def scan(spark: SparkSession, **options: object) -> DataFrame:
    """Return the current records of topics as a DataFrame. It has the same records however often it is evaluated.

    The rows are those of `spark.read.format("headwater")`, but they come by Arrow alone. Java makes each row of a data
    source in Python twice, and adds up figures about it every hundred rows. It makes each row of a function that gives
    Arrow once. Where rows are small, that is most of the time of reading them.

    The options are those of `spark.read.format("headwater")`, by their names: `store`, `topic`, `columns`,
    `startingOffsets` and so on. A damaged or missing record fails the query as it does there.
    """
    chosen = SourceOptions.parse({name: as_text(value) for name, value in options.items()})
    schema = describe(chosen)
    reader = HeadwaterReader(chosen, schema)
    tasks = split(reader.ranges(), chosen, at_once=_at_once(spark))

    def read_tasks(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from reader.read(tasks[number])

    return spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(read_tasks, schema)


def _at_once(spark: SparkSession) -> int | None:
    """Return the number of tasks that run at a time, or None through Spark Connect, which does not tell."""
    context = getattr(spark, "sparkContext", None)
    return None if context is None else context.defaultParallelism


def describe(options: SourceOptions) -> StructType:
    """The columns of what is to be read."""
    with open_existing(options.store) as store:
        topics = chosen_topics(store, options)
        schemas = [topic.schema for topic in topics] or [RAW]
        if options.columns:
            return spark_schema(schemas[0], options.columns)
        other = next((topic.name for topic in topics if topic.schema != schemas[0]), None)
        if other is not None:
            raise SchemaError(
                f"topics {topics[0].name!r} and {other!r} have different columns: name those that both have with "
                f"the option columns, or read the topics one by one"
            )
        return spark_schema(schemas[0], usual(schemas[0], headers=options.headers, several=options.several))


def chosen_topics(store: Store, options: SourceOptions) -> list[Topic]:
    """The topics that are there and meant. Named ones that are not there raise UnknownTopic."""
    if options.topics is not None:
        return [store.topic(name) for name in options.topics]
    return [store.topic(name) for name in store.topics() if options.means(name)]


def chosen_partitions(topic: Topic, options: SourceOptions) -> list[int]:
    """The partitions of a topic that are meant."""
    return [number for number in range(topic.info.partitions) if options.wants(topic.name, number)]


def positions_exist(topics: Sequence[Topic], options: SourceOptions) -> None:
    """Raise when options speak of topics or partitions that are not there: most likely they are misspelt."""
    partitions = {topic.name: topic.info.partitions for topic in topics}
    for side in (options.starting, options.ending):
        for name, numbers in side.items() if isinstance(side, dict) else ():
            _exist(name, numbers, partitions)
    chosen = options.partitions
    for name in partitions:
        _exist(name, chosen.get(name, ()) if isinstance(chosen, dict) else chosen or (), partitions)


def _exist(
    name: str, numbers: Sequence[int] | frozenset[int] | dict[int, Position], partitions: dict[str, int]
) -> None:
    if name not in partitions:
        raise InvalidConfiguration(f"the options give offsets for topic {name!r}, which they do not read")
    beyond = sorted(number for number in numbers if number >= partitions[name])
    if beyond:
        raise InvalidConfiguration(f"topic {name!r} has partitions 0 to {partitions[name] - 1}, not {beyond}")


def first_offsets(topic: Topic, options: SourceOptions) -> dict[int, int]:
    """The first offset in each partition that can be read, in the archive or in the log."""
    bounds = topic.bounds()
    archives = {number: PartitionArchive.of(options.archive, topic, number) for number in bounds}
    return {number: archive.start if archive else bounds[number].start for number, archive in archives.items()}


def positions(topic: Topic, given: Position | Positions, otherwise: Position, options: SourceOptions) -> dict[int, int]:
    """The offset in each partition that is meant; `otherwise` where partitions are given and this one is not."""
    offsets = {}
    for number in chosen_partitions(topic, options):
        position = given.get(topic.name, {}).get(number, otherwise) if isinstance(given, dict) else given
        archive = PartitionArchive.of(options.archive, topic, number)
        archived = None if archive is None else archive.resolve(position, topic.schema)
        if archived is not None:
            offsets[number] = archived
            continue
        try:
            offsets[number] = topic.offset_of(position, number)
        except OffsetOutOfRange as error:
            if error.offset > error.end:
                raise
            first, why = error.start, f"the log starts at {error.start}"
            if archive is not None:
                first, why = archive.start, f"the archive starts at {archive.start}"
            lose(DataLost(topic.name, number, error.offset, first, why), options)
            offsets[number] = first
    return offsets
