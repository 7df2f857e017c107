"""The batch reader: what topics hold when a query is planned, as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from headwater.streams import Store, Topic


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
        found = []
        with open_existing(options.store) as store:
            topics = chosen_topics(store, options)
            for topic in topics:
                check(topic.schema, topic.name, self._schema)
            positions_exist(topics, options)
            for topic in topics:
                starts = positions(topic, options.starting or "earliest", "earliest", options)
                ends = positions(topic, options.ending, "latest", options)
                found += [
                    OffsetRange(topic.name, topic.info.uuid.hex(), number, start, ends[number])
                    for number, start in starts.items()
                    if start < ends[number]
                ]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return read(partition, self._options, self._schema) if isinstance(partition, OffsetRange) else iter(())


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
    there = {topic.name: topic.info.partitions for topic in topics}
    for side in (options.starting, options.ending):
        for name, numbers in side.items() if isinstance(side, dict) else ():
            _exist(name, numbers, there)
    chosen = options.partitions
    for name in there:
        _exist(name, chosen.get(name, ()) if isinstance(chosen, dict) else chosen or (), there)


def _exist(name: str, numbers: Sequence[int] | frozenset[int] | dict[int, Position], there: dict[str, int]) -> None:
    if name not in there:
        raise InvalidConfiguration(f"offsets are given for topic {name!r}, which is not read here")
    beyond = sorted(number for number in numbers if number >= there[name])
    if beyond:
        raise InvalidConfiguration(f"topic {name!r} has partitions 0 to {there[name] - 1}, not {beyond}")


def first_offsets(topic: Topic, options: SourceOptions) -> dict[int, int]:
    """The first offset in each partition that can be read, in the archive or in the log."""
    bounds = topic.bounds()
    archives = {number: PartitionArchive.of(options.archive, topic, number) for number in bounds}
    return {number: one.start if one else bounds[number].start for number, one in archives.items()}


def positions(topic: Topic, given: Position | Positions, otherwise: Position, options: SourceOptions) -> dict[int, int]:
    """The offset in each partition that is meant; `otherwise` where partitions are given and this one is not."""
    found = {}
    for number in chosen_partitions(topic, options):
        where = given.get(topic.name, {}).get(number, otherwise) if isinstance(given, dict) else given
        archive = PartitionArchive.of(options.archive, topic, number)
        archived = None if archive is None else archive.resolve(where, topic.schema)
        if archived is not None:
            found[number] = archived
            continue
        try:
            found[number] = topic.offset_of(where, number)
        except OffsetOutOfRange as error:
            if error.offset > error.end:
                raise
            first, why = error.start, f"the log starts at {error.start}"
            if archive is not None:
                first, why = archive.start, f"the archive starts at {archive.start}"
            lose(DataLost(topic.name, number, error.offset, first, why), options)
            found[number] = first
    return found
