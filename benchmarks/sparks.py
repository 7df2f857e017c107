"""Shared by all measurements in Spark: a Spark of its own for each comparison, the records, the turns."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measure import Measure, compare
from benchmarks.report import Goal, Row
from benchmarks.transfer import spawn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import headwater as hw

COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp")
"""The columns that both sides have."""
PARTITIONS: Final = 2
KEYS: Final = 1000
WARM_UP: Final = 6
_NOISE: Final = 1 << 25
_STEP: Final = 1009
"""Values are pieces of so many random bytes, each begun so far from the last: a prime, so that none comes twice."""
serial: Final = count()
"""For names that are used once."""


def apart(scratch: Path, measure: Callable[..., Any], *arguments: object, jars: Sequence[Path] = ()) -> Any:
    """Measure in a process, and with a Spark, of its own. Return the result."""
    with ProcessPoolExecutor(1, mp_context=spawn) as process:
        return process.submit(_with_spark, scratch, jars, measure, arguments).result()


def _with_spark(scratch: Path, jars: Sequence[Path], measure: Callable[..., Any], arguments: Sequence[object]) -> Any:
    import headwater as hw

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Spark's greetings, and its workers' farewells
    config = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.driver.memory": "1g",
        "spark.sql.parquet.compression.codec": "uncompressed",
        "spark.sql.warehouse.dir": scratch / "warehouse",
        "spark.local.dir": scratch / "spark",
    }
    if jars:
        config["spark.jars"] = ",".join(map(str, jars))
    spark = hw.spark.session("benchmarks", master="local[2]", config=config)
    spark.sparkContext.setLogLevel("OFF")
    try:
        with hw.open(scratch / "store") as store:
            return measure(spark, store, *arguments)
    finally:
        spark.stop()


def fill(store: hw.Store, topic: str, size: int, rows: int) -> None:
    """Records with keys, in frames as a producer makes them.

    No two values are alike: of a few that come again and again Parquet would keep a dictionary, and read that.
    """
    store.create_topic(topic, partitions=PARTITIONS)
    noise = os.urandom(_NOISE + size)
    keys = [b"key-%d" % number for number in range(KEYS)]
    with store.producer(topic, batch_bytes=1024 * 1024, batch_records=10_000, linger=60.0) as out:
        for number in range(rows):
            start = number * _STEP % _NOISE
            out.send(noise[start : start + size], key=keys[number % KEYS], partition=number // 1000 % PARTITIONS)


def loaded(spark: SparkSession, **options: object) -> DataFrame:
    """A topic by the data source."""
    return spark.read.format("headwater").options(**{name: str(value) for name, value in options.items()}).load()


def scanned(spark: SparkSession, **options: object) -> DataFrame:
    """A topic by Arrow alone."""
    import headwater as hw

    return hw.spark.scan(spark, **options)


def noop(frame: DataFrame) -> None:
    """Make every row, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def streamed(writer: Any, scratch: Path) -> None:
    """Run a stream over all that there is, from its start to its end."""
    checkpoint = scratch / f"checkpoint-{next(serial)}"
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    shutil.rmtree(checkpoint, ignore_errors=True)


def rate(work: str, rows: int, ours: Measure, name: str, peer: Measure | None, goal: Goal, repeats: int) -> Row:
    """Measure how many rows each side does in a second, once both are warm."""
    seconds, peer_seconds = compare(ours, peer, repeats=repeats, warm_up=1 if repeats == 1 else WARM_UP)
    peer_rate = None if peer_seconds is None else rows / peer_seconds
    return Row(work=work, unit="rows/s", ours=rows / seconds, peer_name=name, peer=peer_rate, goal=goal)
