"""Shared by the tests of pipelines: helpers that declare and run them, and that fill and read topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headwater as hw
from headwater.spark.pipeline import runner


class Pipelines:
    """Declares pipelines beside the store of a test, and runs them in the session of the tests."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory

    def load(self, text: str, name: str = "pipeline.yaml") -> hw.spark.Pipeline:
        path = self._directory / name
        path.write_text("store: store\nname: pipeline\n" + text if name.endswith("yaml") else text)
        return hw.spark.Pipeline.load(path)

    def run(self, pipeline: hw.spark.Pipeline, **options: Any) -> Any:
        return runner.run(pipeline.declaration(), spark=self._spark, **options)


def send(store: hw.Store, topic: str, first: int, last: int) -> None:
    with store.producer(topic) as out:
        for number in range(first, last):
            out.send(b"%d" % number, key=b"%d" % number)


def values(store: hw.Store, topic: str) -> list[str]:
    records = [record for partition in store.topic(topic).partitions() for record in partition.records()]
    return sorted((record.value or b"").decode() for record in records)
