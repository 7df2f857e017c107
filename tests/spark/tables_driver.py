"""The program that `table_pipelines` kills: a pipeline from a topic to tables of every format.

`python -m tests.spark.tables_driver DIRECTORY` starts Spark and waits for a line. While the directory has a file `hold`
with the number of a row, the task that comes to this row stands still and leaves a file `held`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import headwater as hw
from headwater.spark.pipeline import runner
from tests.spark.conftest import SMALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH = 60
DECLARATION = f"""
name: tables
store: store
sources: {{numbers: {{topic: numbers, limit: {BATCH}}}}}
steps: {{rows: {{python: "tests.spark.tables_driver:rows", inputs: numbers}}}}
sinks:
"""
SINKS = {
    "parquet": "parquet: parquet/table",
    "folders": "parquet: folders/table, partition_by: shelf",
    "delta": "delta: delta/table",
    "iceberg": "iceberg: db.table, catalog: {warehouse: iceberg/lake}",
}
SMALL_PORTIONS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": 10,
    "spark.sql.execution.python.udf.maxRecordsPerBatch": 10,
}
"""A task has written much of what it has to write when it is held."""


def declare(formats: Iterable[str]) -> str:
    """The pipeline, with a sink of each format."""
    return DECLARATION + "".join(f"  {format}: {{from: rows, {SINKS[format]}}}\n" for format in formats)


def rows(numbers: DataFrame) -> DataFrame:
    """The step of the pipeline: the number of each row, and its shelf."""
    from pyspark.sql import functions as fn

    directory = os.environ["TABLES_DIRECTORY"]

    @fn.udf("long")
    def held(value: bytes) -> int:
        number = int(value)
        hold = Path(directory, "hold")
        while hold.exists() and hold.read_text() == str(number):
            Path(directory, "held").touch()
            time.sleep(0.05)
        return number

    number = held("value")
    return numbers.select(number.alias("row"), fn.concat(fn.lit("shelf "), number % 3).alias("shelf"))


def main(directory: Path) -> None:
    """Run the pipeline, once it is told to, until everything that is there is written."""
    os.environ["TABLES_DIRECTORY"] = str(directory)
    spark = hw.spark.session("tables", master="local[4]", config=SMALL | SMALL_PORTIONS)
    spark.sparkContext.setLogLevel("OFF")
    if not sys.stdin.readline():
        return  # nobody is there any more
    runner.run(hw.spark.Pipeline.load(directory / "pipeline.yaml").declaration(), spark=spark)
    (directory / "done").touch()
    os.kill(os.getpid(), signal.SIGKILL)  # whoever started this sees to the JVM, which takes seconds to stop


if __name__ == "__main__":
    main(Path(sys.argv[1]))
