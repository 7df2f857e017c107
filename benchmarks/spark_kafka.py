"""Spark over a broker of ours, beside Spark over Kafka by the package that Spark has for it.

Both brokers are on this machine, and have the same records in as many partitions. The package is of the version before
Spark's own, the newest of which `make peers` finds all parts. Ours writes exactly once, that of Kafka at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Measure, timed
from benchmarks.report import Row, at_least
from benchmarks.servers import (
    SPARK_KAFKA,
    delete_kafka_topic,
    has_spark_kafka,
    headwater_server,
    kafka_server,
    new_kafka_topic,
)
from benchmarks.sparks import COLUMNS, PARTITIONS, apart, fill, loaded, noop, rate, serial, streamed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import headwater as hw

_NAME = "Kafka, by Spark's package for it"


def beside_kafka(scratch: Path, size: int, rows: int, repeats: int) -> Iterator[Row]:
    """Measure Spark with both, or with ours alone if there is no Kafka, or no package for it."""
    jars = sorted(SPARK_KAFKA.glob("*.jar")) if has_spark_kafka() else []
    with headwater_server(scratch) as ours, kafka_server(scratch) if jars else nullcontext() as kafka:
        apart(scratch, _fill, ours, kafka, size, rows, jars=jars)
        for work in (_Beside.reading, _Beside.grouping, _Beside.to_parquet, _Beside.available_now, _Beside.writing):
            yield apart(scratch, _measured, ours, kafka, size, rows, repeats, scratch, work, jars=jars)


def _fill(spark: SparkSession, _: hw.Store, ours: str, kafka: str | None, size: int, rows: int) -> None:
    import headwater as hw

    topic = _topic(size)
    with hw.open(ours) as store:
        fill(store, topic, size, rows)
    if kafka is not None:
        new_kafka_topic(kafka, topic, PARTITIONS)
        records = loaded(spark, store=ours, topic=topic, columns="key,value,partition")
        records.write.format("kafka").option("kafka.bootstrap.servers", kafka).option("topic", topic).save()


def _measured(spark: SparkSession, _: hw.Store, *arguments: Any) -> Row:
    *rest, work = arguments
    row: Row = work(_Beside(spark, *rest))
    return row


def _topic(size: int) -> str:
    return f"records-{size}"


class _Beside:
    """One size of records, in both."""

    def __init__(
        self, spark: SparkSession, ours: str, kafka: str | None, size: int, rows: int, repeats: int, scratch: Path
    ) -> None:
        self._spark = spark
        self._ours = ours
        self._kafka = kafka
        self._size = size
        self._rows = rows
        self._repeats = repeats
        self._scratch = scratch

    def reading(self) -> Row:
        """All rows into nothing."""
        return self._row("read all into noop through a broker", lambda source: noop(self._read(source)))

    def grouping(self) -> Row:
        """One column of them, counted."""
        return self._row(
            "groupBy(key).count(), chosen columns, through a broker",
            lambda source: noop(self._read(source, "key").groupBy("key").count()),
        )

    def to_parquet(self) -> Row:
        """All rows into files."""
        with TemporaryDirectory(dir=self._scratch) as scratch:
            out = f"{scratch}/files"
            return self._row("broker → Parquet", lambda source: self._read(source).write.mode("overwrite").parquet(out))

    def available_now(self) -> Row:
        """A stream over all that there is."""

        def run(source: str) -> None:
            stream = self._told(self._spark.readStream.option("startingOffsets", "earliest"), source, COLUMNS)
            streamed(stream.writeStream.format("noop"), self._scratch)

        return self._row("readStream, AvailableNow, into noop, through a broker", run)

    def writing(self) -> Row:
        """A stream of Parquet files into a new topic of each."""
        with TemporaryDirectory(dir=self._scratch) as scratch:
            files = f"{scratch}/files"
            self._read("headwater", "key", "value").write.parquet(files)
            schema = self._spark.read.parquet(files).schema

            def into(source: str) -> Measure:
                def measure() -> float:
                    stream = self._spark.readStream.schema(schema).parquet(files)
                    with self._new_topic(source) as topic:
                        sink = stream.writeStream.format(source).options(**self._address(source)).option("topic", topic)
                        return timed(lambda: streamed(sink, self._scratch))()

                return measure

            return self._rate("writeStream to a broker", into("headwater"), into("kafka"))

    @contextmanager
    def _new_topic(self, source: str) -> Iterator[str]:
        import headwater as hw

        if source == "headwater":
            topic = f"written-{next(serial)}"
            with hw.open(self._ours) as store:
                store.create_topic(topic, partitions=PARTITIONS)
                yield topic
                store.delete_topic(topic)
        else:
            topic = new_kafka_topic(str(self._kafka), partitions=PARTITIONS)
            yield topic
            delete_kafka_topic(str(self._kafka), topic)

    def _row(self, work: str, run: Callable[[str], object]) -> Row:
        return self._rate(work, timed(lambda: run("headwater")), timed(lambda: run("kafka")))

    def _rate(self, work: str, ours: Measure, kafka: Measure) -> Row:
        work, peer = f"{work}, {self._size} B records", None if self._kafka is None else kafka
        return rate(work, self._rows, ours, _NAME, peer, at_least(1), self._repeats)

    def _read(self, source: str, *columns: str) -> DataFrame:
        return self._told(self._spark.read, source, columns or COLUMNS)

    def _told(self, reader: Any, source: str, columns: tuple[str, ...]) -> DataFrame:
        """These columns, by a reader that is told where the topic is; the rest of a job is the same for both."""
        reader = reader.format(source).options(**self._address(source)).option("subscribe", _topic(self._size))
        if source == "headwater":
            reader = reader.option("columns", ",".join(columns))
        frame: DataFrame = reader.load().select(*columns)
        return frame

    def _address(self, source: str) -> dict[str, str]:
        return {"store": self._ours} if source == "headwater" else {"kafka.bootstrap.servers": str(self._kafka)}
