"""Sensors give a reading each second; a Parquet table keeps one row for each minute.

Gateways upload ten seconds of readings at a time, as columns. One that heard no answer uploads again: what comes twice
counts once. A broken sensor says -99: such readings are dropped, and counted.
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

READINGS = pa.schema([("sensor", pa.string()), ("at", pa.timestamp("us", "UTC")), ("celsius", pa.float64())])
MIDNIGHT = 1_767_571_200_000_000  # 5 January 2026, 00:00, as microseconds
SECOND = 1_000_000
SENSORS = ["cellar", "kitchen", "roof"]

MINUTES = """
    SELECT window.start AS minute, sensor,
           round(avg(celsius), 2) AS mean, min(celsius) AS low, max(celsius) AS high, count(*) AS readings
    FROM sound
    GROUP BY window(at, '1 minute'), sensor
"""


def fill(store: hw.Store) -> None:
    """Ten minutes of three sensors: one upload in eight comes twice, one reading in fifty is none."""
    dice = Random(7)
    store.create_topic("readings", partitions=2, schema=READINGS)
    with store.producer("readings") as out:
        for begin in range(0, 600, 10):
            for number, sensor in enumerate(SENSORS):
                celsius = [
                    -99.0 if dice.random() < 0.02 else round(dice.gauss(8 + 6 * number, 0.5), 2) for _ in range(10)
                ]
                at = [MIDNIGHT + (begin + second) * SECOND for second in range(10)]
                upload = pa.table([[sensor] * 10, at, celsius], schema=READINGS)
                for _ in range(2 if dice.random() < 0.125 else 1):
                    out.send_batch(upload, keys=[sensor.encode()] * 10)


def run(spark: SparkSession, directory: Path) -> DataFrame:
    """The minutes that are over."""
    pipeline = hw.spark.Pipeline("minutes", store=str(directory / "store"))
    pipeline.source("readings", topic="readings", watermark={"column": "at", "delay": "20 seconds"})
    pipeline.sql(
        "sound",
        "SELECT sensor, at, celsius FROM readings",
        unique=["sensor", "at"],
        expect={"plausible": {"rule": "celsius > -50", "else": "drop"}},
    )
    pipeline.sql("minutes", MINUTES)
    pipeline.sink("table", "minutes", parquet=str(directory / "minutes"), partition_by="sensor")
    pipeline.run(spark=spark)
    return spark.read.parquet(str(directory / "minutes")).orderBy("minute", "sensor")


def main() -> None:
    """Make readings, and show the minutes."""
    with workbench() as (spark, directory):
        with hw.open(directory / "store") as store:
            fill(store)
        run(spark, directory).show()


if __name__ == "__main__":
    main()
