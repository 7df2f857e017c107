"""Price ticks become one-minute bars: open, high, low, close and volume, written once, when the minute is over.

A declared pipeline: a topic, one query in SQL, another topic. Ticks may come ten seconds late and still count.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa

import headwater as hw
from examples.spark import workbench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TICKS = pa.schema([("symbol", pa.string()), ("price", pa.float64()), ("size", pa.int64())])
OPENING = 1_767_605_400_000_000_000  # 5 January 2026, 09:30, as nanoseconds
SECOND = 1_000_000_000

BARS = """
    SELECT window.start AS minute, symbol,
           min_by(price, _timestamp) AS open, max(price) AS high, min(price) AS low, max_by(price, _timestamp) AS close,
           sum(size) AS volume
    FROM ticks
    GROUP BY window(_timestamp, '1 minute'), symbol
"""


def fill(store: hw.Store) -> None:
    """Five minutes of three prices that wander; a tick is up to five seconds late."""
    dice = Random(7)
    prices = {"AAA": 100.0, "BBB": 42.0, "CCC": 7.5}
    store.create_topic("ticks", partitions=2, schema=TICKS)
    with store.producer("ticks") as out:
        for number in range(600):
            symbol = dice.choice(list(prices))
            prices[symbol] = round(prices[symbol] * dice.uniform(0.995, 1.005), 2)
            tick = {"symbol": symbol, "price": prices[symbol], "size": dice.randint(1, 9) * 100}
            late = dice.randrange(5 * SECOND)
            out.send(tick, key=symbol.encode(), timestamp=OPENING + number * SECOND // 2 - late)


def run(spark: SparkSession, directory: Path) -> DataFrame:
    """The bars of all minutes that are over."""
    store = str(directory / "store")
    pipeline = hw.spark.Pipeline("bars", store=store)
    pipeline.source("ticks", topic="ticks", watermark={"column": "_timestamp", "delay": "10 seconds"})
    pipeline.sql("bars", BARS)
    pipeline.sink("bars", "bars", topic="bars", partitions=1)
    pipeline.run(spark=spark)
    bars = spark.read.format("headwater").option("store", store).option("topic", "bars").load()
    return bars.select("minute", "symbol", "open", "high", "low", "close", "volume").orderBy("symbol", "minute")


def main() -> None:
    """Make ticks, and show the bars."""
    with workbench() as (spark, directory):
        with hw.open(directory / "store") as store:
            fill(store)
        run(spark, directory).show()


if __name__ == "__main__":
    main()
