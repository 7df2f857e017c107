"""Spark over topics, beside Spark over Parquet with the same rows and columns, in one session.

All rows are in the page cache on both sides, and both are read whole: Spark's own count of a Parquet file would look at
its footer only. Segments are closed frames as a producer makes them; the Parquet files are Spark's own, uncompressed as
the frames are. The memory of Spark, its two threads and its settings are the same for both. Each side has six turns
before any is counted: until then Java is still compiling what it runs. Each comparison has a session, and a Java, of
its own: how well Java compiles one query depends on all those that it has run before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.measure import Measure, timed
from benchmarks.report import Goal, Row, at_least, at_most
from benchmarks.spark_kafka import beside_kafka
from benchmarks.sparks import (
    COLUMNS,
    KEYS,
    PARTITIONS,
    apart,
    fill,
    loaded,
    noop,
    rate,
    scanned,
    serial,
    streamed,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

    import headwater as hw

WIDE: Final = 10
_WRITTEN_BYTES: Final = 500_000_000
"""So much is written at most. It is in memory twice, as a stage and in the log, beside what was read and what the other
side has just written; and what a machine has free beyond a few GB, a host may have taken back: then getting it again
would be most of what is measured."""
_KAFKA_SHARE: Final = 4
"""So many times fewer records are read from Kafka than from files: it takes that much longer, and more."""
Columns = dict[str, Callable[[int], pa.Array]]
"""A function for each column that makes so many values."""


def run(quick: bool, scratch: Path) -> Iterator[Row]:
    """Measure them all."""
    if find_spec("pyspark") is None:
        raise SystemExit("PySpark is not installed: pip install 'headwater[spark]'")
    repeats = 1 if quick else 5
    for size, rows in ((1000, 50_000 if quick else 1_000_000), (100, 300_000 if quick else 5_000_000)):
        measured = partial(apart, scratch, _measured, scratch, size, rows, repeats)
        measured(_Bench.fill)
        for work in (
            _Bench.whole,
            _Bench.scanned,
            _Bench.beside_made_up,
            _Bench.grouping,
            _Bench.scanned_grouping,
            _Bench.scanned_grouping_beside_made_up,
            _Bench.to_parquet,
            _Bench.available_now,
            _Bench.writing,
        ):
            yield measured(work)
        yield from beside_kafka(scratch, size, rows // _KAFKA_SHARE, repeats)
        measured(_Bench.clear)
    for projected in (_whole_numbers, _numbers_texts_times):
        for way in (loaded, scanned):
            yield apart(scratch, _projection, projected, way, 200_000 if quick else 5_000_000, repeats)
    yield apart(scratch, _micro_batches, scratch, 15 if quick else 60)


def _measured(
    spark: SparkSession,
    store: hw.Store,
    scratch: Path,
    size: int,
    rows: int,
    repeats: int,
    work: Callable[[_Bench], Row | None],
) -> Row | None:
    return work(_Bench(spark, store, scratch, size, rows, repeats))


class _Bench:
    """One size of records: the topic, and the same rows as Parquet."""

    def __init__(self, spark: SparkSession, store: hw.Store, scratch: Path, size: int, rows: int, repeats: int) -> None:
        self._spark = spark
        self._store = store
        self._scratch = scratch
        self._size = size
        self._rows = rows
        self._repeats = repeats
        self._topic = f"records-{size}"
        self._parquet = str(scratch / f"parquet-{size}")

    def fill(self) -> None:
        """Make the topic, and the same rows as Parquet."""
        fill(self._store, self._topic, self._size, self._rows)
        self._read().write.parquet(self._parquet)

    def clear(self) -> None:
        """Give the disk back."""
        self._store.delete_topic(self._topic)
        shutil.rmtree(self._parquet)

    def whole(self) -> Row:
        """All rows into nothing."""
        return self._row(
            "read all into noop",
            lambda: noop(self._read()),
            "spark.read.parquet",
            lambda: noop(self._read_parquet()),
            at_least(0.9),
        )

    def scanned(self) -> Row:
        """The same rows by Arrow alone, without a data source."""
        return self._row(
            "read all into noop by hw.spark.scan",
            lambda: noop(self._read(way=scanned)),
            "spark.read.parquet",
            lambda: noop(self._read_parquet()),
            at_least(0.9),
        )

    def beside_made_up(self) -> Row:
        """The same, beside the least that a source in Python can do."""
        self._spark.dataSource.register(_made_up_source())
        return self._row(
            "read all into noop",
            lambda: noop(self._read()),
            "a source in Python that sends one batch again and again",
            lambda: noop(self._read_made_up()),
            at_least(0.9),
        )

    def grouping(self) -> Row:
        """One column of them, counted."""
        return self._row(
            "groupBy(key).count(), chosen columns",
            lambda: noop(self._read("key").groupBy("key").count()),
            "spark.read.parquet",
            lambda: noop(self._read_parquet().groupBy("key").count()),
            at_least(0.9),
        )

    def scanned_grouping(self) -> Row:
        """The same by Arrow alone."""
        return self._row(
            "groupBy(key).count(), chosen columns, by hw.spark.scan",
            lambda: noop(self._read("key", way=scanned).groupBy("key").count()),
            "spark.read.parquet",
            lambda: noop(self._read_parquet().groupBy("key").count()),
            at_least(0.9),
        )

    def scanned_grouping_beside_made_up(self) -> Row:
        """The same, beside the least that a function in Python can do."""
        return self._row(
            "groupBy(key).count(), chosen columns, by hw.spark.scan",
            lambda: noop(self._read("key", way=scanned).groupBy("key").count()),
            "a function in Python that returns one batch again and again",
            lambda: noop(self._keys_made_up().groupBy("key").count()),
            at_least(0.9),
        )

    def to_parquet(self) -> Row:
        """All rows into files."""
        out = str(self._scratch / "out")
        row = self._row(
            "topic → Parquet",
            lambda: self._read().write.mode("overwrite").parquet(out),
            "Parquet → Parquet",
            lambda: self._read_parquet().write.mode("overwrite").parquet(out),
            at_least(0.7),
        )
        shutil.rmtree(out)
        return row

    def available_now(self) -> Row:
        """A stream over all that there is, from its start to its end."""
        return self._row(
            "readStream, AvailableNow, into noop",
            lambda: streamed(self._read_stream().writeStream.format("noop"), self._scratch),
            "the batch read",
            lambda: noop(self._read()),
            at_least(0.6),
        )

    def _row(self, work: str, ours: Callable[[], object], name: str, peer: Callable[[], object], goal: Goal) -> Row:
        return self._rate(work, timed(ours), name, timed(peer), goal)

    def _rate(self, work: str, ours: Measure, name: str, peer: Measure, goal: Goal, rows: int | None = None) -> Row:
        return rate(f"{work}, {self._size} B records", rows or self._rows, ours, name, peer, goal, self._repeats)

    def writing(self) -> Row:
        """A stream of Parquet files into a topic, beside the same stream into Parquet."""
        rows = min(self._rows, _WRITTEN_BYTES // self._size)
        source = str(self._scratch / f"source-{self._size}")
        self._read_parquet().limit(rows).write.parquet(source)
        schema = self._spark.read.parquet(source).schema

        def stream() -> DataFrame:
            return self._spark.readStream.schema(schema).parquet(source)

        def ours() -> float:
            name = f"written-{next(serial)}"
            self._store.create_topic(name, partitions=PARTITIONS)
            sink = stream().select("key", "value", "timestamp").writeStream.format("headwater")
            started = perf_counter()
            streamed(sink.option("store", str(self._store)).option("topic", name), self._scratch)
            seconds = perf_counter() - started
            written = sum(bounds.end for bounds in self._store.topic(name).bounds().values())
            assert written == rows, f"{written} of {rows} rows were written"
            self._store.delete_topic(name)
            self._store.sweep()
            return seconds

        def peer() -> float:
            directory = self._scratch / f"written-{next(serial)}"
            sink = stream().select("key", "value", "timestamp").writeStream.format("parquet")
            started = perf_counter()
            streamed(sink.option("path", str(directory)), self._scratch)
            seconds = perf_counter() - started
            shutil.rmtree(directory)
            return seconds

        work, name = "writeStream to a topic, exactly once", "Spark's Parquet sink"
        row = self._rate(work, ours, name, peer, at_least(0.5), rows)
        shutil.rmtree(source)
        return row

    def _read(self, *columns: str, way: Callable[..., DataFrame] = loaded) -> DataFrame:
        chosen = ",".join(columns or COLUMNS)
        return way(self._spark, store=self._store, topic=self._topic, columns=chosen)

    def _read_made_up(self) -> DataFrame:
        """As many rows as the topic has, in as many tasks, with nothing read or made: what Spark's own part takes."""
        reader = self._spark.read.format("made-up").schema(self._read().schema)
        return reader.option("rows", self._rows).option("size", self._size).load()

    def _keys_made_up(self) -> DataFrame:
        """As many keys as the topic has, and as different ones, with nothing read."""
        keys = pa.array([b"key-%d" % (number % KEYS) for number in range(50_000)])
        batch, batches = pa.RecordBatch.from_arrays([keys], names=["key"]), self._rows // len(keys)

        def give(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for some in numbers:
                yield from [batch] * len(some)

        return self._spark.range(0, batches, 1, PARTITIONS).mapInArrow(give, "key binary")

    def _read_parquet(self) -> DataFrame:
        return self._spark.read.parquet(self._parquet)

    def _read_stream(self) -> DataFrame:
        reader = self._spark.readStream.format("headwater").option("store", str(self._store))
        reader = reader.option("topic", self._topic).option("columns", ",".join(COLUMNS))
        return reader.option("startingOffsets", "earliest").load()


def _projection(
    spark: SparkSession,
    store: hw.Store,
    made: Callable[[], Columns],
    way: Callable[..., DataFrame],
    rows: int,
    repeats: int,
) -> Row:
    """One of ten columns beside all ten."""
    columns, topic = made(), made.__name__.strip("_").replace("_", "-")
    names = list(columns)
    sample = pa.RecordBatch.from_pydict({name: make(1) for name, make in columns.items()})
    store.create_topic(topic, schema=sample.schema, partitions=PARTITIONS)
    with store.producer(topic) as out:
        for start in range(0, rows, 50_000):
            batch = {name: make(min(50_000, rows - start)) for name, make in columns.items()}
            out.send_batch(pa.RecordBatch.from_pydict(batch), partition=start // 50_000 % PARTITIONS)

    def read(columns: list[str]) -> None:
        noop(way(spark, store=store, topic=topic, columns=",".join(columns)))

    row = rate(
        f"read 1 of {len(names)} typed columns into noop{', by hw.spark.scan' * (way is scanned)}: {topic}",
        rows,
        timed(lambda: read(names[3:4])),
        f"all {len(names)} of them",
        timed(lambda: read(names)),
        at_least(3),
        repeats,
    )
    store.delete_topic(topic)
    return row


def _whole_numbers() -> Columns:
    """Ten columns of whole numbers: the cheapest that Spark knows."""
    chance = np.random.default_rng(1)
    return {f"c{number}": lambda count: pa.array(chance.integers(0, 1 << 40, count)) for number in range(WIDE)}


def _numbers_texts_times() -> Columns:
    """Ten columns as orders have them: numbers, texts, times."""
    chance = np.random.default_rng(2)

    def whole(count: int) -> pa.Array:
        return pa.array(chance.integers(0, 1 << 40, count))

    def real(count: int) -> pa.Array:
        return pa.array(chance.random(count))

    def text(count: int) -> pa.Array:
        return whole(count).cast(pa.string())

    def time(count: int) -> pa.Array:
        return whole(count).cast(pa.timestamp("us", "UTC"))

    return {
        "id": whole,
        "customer": text,
        "item": text,
        "quantity": whole,
        "price": real,
        "discount": real,
        "address": text,
        "note": text,
        "ordered": time,
        "shipped": time,
    }


def _micro_batches(spark: SparkSession, store: hw.Store, scratch: Path, batches: int) -> Row:
    """Batches of ten rows, one after the other: what a stream's turn costs beside a source that costs nothing."""
    spark.dataSource.register(_constant_source())
    store.create_topic("drops")
    with store.producer("drops") as out:
        for number in range(10 * (batches + 10)):
            out.send(b"%d" % number)
    ours = spark.readStream.format("headwater").option("store", str(store)).option("topic", "drops")
    ours = (
        ours.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 10).option("columns", "offset,value")
    )
    peer = spark.readStream.format("constant")
    # One after the other, and again the other way round: a stream takes longer than the waves of noise.
    figures = [_durations_of(source, scratch, batches // 2) for source in (ours, peer, peer, ours)]
    seconds = [median(figures[0] + figures[3]), median(figures[1] + figures[2])]
    return Row(
        work="micro-batch of 10 rows into noop, median",
        unit="ms",
        ours=seconds[0],
        peer_name="a source in Python that makes 10 rows up",
        peer=seconds[1],
        goal=at_most(1.3),
    )


def _durations_of(source: DataStreamReader, scratch: Path, batches: int) -> list[float]:
    """Return how long the batches of a new query take, without the first ones, which start processes."""
    checkpoint = scratch / f"checkpoint-{next(serial)}"
    writer = source.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        return _durations(query, batches + 5)[5:]
    finally:
        query.stop()


def _durations(query: StreamingQuery, batches: int) -> list[float]:
    """Return how long each batch took, in milliseconds, as Spark reports it."""
    durations: dict[int, float] = {}
    started = perf_counter()
    while len(durations) < batches and perf_counter() - started < 300:
        error = query.exception()
        if error is not None:
            raise error
        for progress in query.recentProgress:
            if progress.numInputRows == 10:
                durations[progress.batchId] = progress.durationMs["triggerExecution"]
        sleep(0.1)
    return [durations[number] for number in sorted(durations)]


def _constant_source() -> type[Any]:
    """A stream of ten rows a batch, in the least Python that Spark takes."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Constant(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - named by Spark
            return {"n": 0}

        def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: ARG002, N802
            return {"n": start["n"] + 10}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:  # noqa: ARG002
            return [InputPartition(start["n"])]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            first = partition.value
            yield pa.RecordBatch.from_pydict({"offset": range(first, first + 10), "value": [b"constant"] * 10})

    class ConstantSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "constant"

        def schema(self) -> str:
            return "offset bigint, value binary"

        def streamReader(self, schema: object) -> Constant:  # noqa: ARG002, N802
            return Constant()

    return ConstantSource


def _made_up_source() -> type[Any]:
    """Records that are all alike, in batches of 1 MB."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import to_arrow_schema

    class MadeUp(DataSourceReader):
        def __init__(self, schema: Any, options: Mapping[str, str]) -> None:
            self._schema = schema
            self._size = int(options["size"])
            self._rows = int(options["rows"])

        def partitions(self) -> list[InputPartition]:
            tasks = PARTITIONS * -(-self._rows // PARTITIONS // 1_000_000)
            return [InputPartition(self._rows // tasks) for _ in range(tasks)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            rows = min(10_000, 1024 * 1024 // self._size)
            row = {"key": b"key-123", "value": b"v" * self._size, "partition": 0, "offset": 0, "timestamp": 0}
            schema = to_arrow_schema(self._schema, timezone="UTC")
            arrays = [pa.array([row[field.name]] * rows).cast(field.type) for field in schema]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            for start in range(0, partition.value, rows):
                yield batch.slice(0, min(rows, partition.value - start))

    class MadeUpSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "made-up"

        def reader(self, schema: Any) -> MadeUp:
            return MadeUp(schema, self.options)

    return MadeUpSource
