"""Page views become visits: one ends with a purchase, or after half an hour of silence.

That rule is no window of SQL, so a small class keeps it: `transformWithStateInPandas` gives it each visitor's views, a
state that survives crashes, and timers in the time of the events.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import headwater as hw
from examples.spark import workbench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEWS = pa.schema([("visitor", pa.string()), ("page", pa.string())])
VISITS = "visitor string, start timestamp, views bigint, bought boolean"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MORNING = 1_767_600_000_000  # 5 January 2026, 08:00, as milliseconds
MINUTE = 60_000
SILENCE = 30 * MINUTE


class Visits(StatefulProcessor):
    """Watches one visitor at a time. Its state is the visit that is going on: start, last view, number of views."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self._handle = handle
        self._visit = handle.getValueState("visit", "start bigint, last bigint, views bigint")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002, N802, N803 - Spark's
        """New views of one visitor."""
        for view in pd.concat(list(rows)).sort_values("at").itertuples():
            start, last, views = self._visit.get() or (view.at, view.at, 0)
            if view.at - last > SILENCE:
                yield self._end(key, bought=False)
                start, views = view.at, 0
            self._handle.deleteTimer(last + SILENCE)
            self._handle.registerTimer(view.at + SILENCE)
            self._visit.update((start, view.at, views + 1))
            if view.page == "/thanks":
                yield self._end(key, bought=True)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002, N802, N803 - Spark's
        """Nobody can come any more who would belong to this visit."""
        yield self._end(key, bought=False)

    def _end(self, key: Any, *, bought: bool) -> pd.DataFrame:
        start, last, views = self._visit.get() or (0, 0, 0)
        self._visit.clear()
        self._handle.deleteTimer(last + SILENCE)
        start = pd.Timestamp(start, unit="ms", tz="UTC")
        return pd.DataFrame({"visitor": [key[0]], "start": [start], "views": [views], "bought": [bought]})


def fill(store: hw.Store) -> None:
    """A morning of five visitors who look around, go away, come back, and buy at times."""
    dice = Random(7)
    store.create_topic("views", partitions=2, schema=VIEWS)
    with store.producer("views") as out:
        for number in range(300):
            visitor = dice.choice(["ann", "ben", "cleo", "dan", "eve"])
            page = dice.choice(["/", "/tea", "/cups", "/about", "/thanks"])
            if dice.random() < 0.3:
                at = MORNING + number * MINUTE + dice.randrange(60) * 1000
                out.send({"visitor": visitor, "page": page}, key=visitor.encode(), timestamp=at * 1_000_000)


def run(spark: SparkSession, directory: Path) -> DataFrame:
    """The visits that are over."""
    store = str(directory / "store")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    views = spark.readStream.format("headwater").option("store", store).option("topic", "views")
    visits = (
        views.option("startingOffsets", "earliest")
        .load()
        .selectExpr("visitor", "page", "_timestamp AS time", "unix_millis(_timestamp) AS at")
        .withWatermark("time", "1 minute")
        .groupBy("visitor")
        .transformWithStateInPandas(Visits(), VISITS, outputMode="append", timeMode="EventTime")
    )
    query = (
        visits.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "visits"))
    )
    query.awaitTermination()
    return spark.read.parquet(str(directory / "visits")).orderBy("start")


def main() -> None:
    """Make page views, and show the visits."""
    with workbench() as (spark, directory):
        with hw.open(directory / "store") as store:
            fill(store)
        run(spark, directory).show(10, truncate=False)


if __name__ == "__main__":
    main()
