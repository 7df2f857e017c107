"""A scan: the current records of topics as a DataFrame, by Arrow alone.

The rows are those of `spark.read.format("headwater")`. But Java makes each row of a data source in Python twice, and
adds up figures about it every hundred rows; of what a function gives as Arrow it makes each row once. Where rows are
small that is most of the time of reading them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.spark.options import SourceOptions
from headwater.spark.ranges import split
from headwater.spark.reader import HeadwaterReader, describe
from headwater.spark.session import as_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def scan(spark: SparkSession, **options: object) -> DataFrame:
    """Return the current records of topics as a DataFrame. It has the same records however often it is evaluated.

    The options are those of `spark.read.format("headwater")`, by their names: `store`, `topic`, `columns`,
    `startingOffsets` and so on. A damaged or missing record fails the query as it does there.
    """
    chosen = SourceOptions.parse({name: as_text(value) for name, value in options.items()})
    schema = describe(chosen)
    reader = HeadwaterReader(chosen, schema)
    tasks = split(reader.ranges(), chosen, at_once=_at_once(spark))

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from reader.read(tasks[number])

    return spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(read, schema)


def _at_once(spark: SparkSession) -> int | None:
    """Return the number of tasks that run at a time, or None through Spark Connect, which does not tell."""
    context = getattr(spark, "sparkContext", None)
    return None if context is None else context.defaultParallelism
