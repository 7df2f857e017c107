"""The program that `spark_first_second` kills: queries that copy a topic, each with a checkpoint of its own.

`python -m tests.spark.first_driver DIRECTORY` starts Spark and reads lines, `KIND NAME`. It does each query until
everything is written, and leaves a file `NAME.done`. A `pipeline` is declared; a `plain` query cleans its checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import headwater as hw
from headwater.spark.pipeline import runner
from tests.spark.conftest import SMALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "numbers"
BATCH = 20
DECLARATION = f"""
name: {{name}}
store: store
sources: {{{{{TOPIC}: {{{{topic: {TOPIC}, limit: {BATCH}}}}}}}}}
sinks: {{{{copies: {{{{from: {TOPIC}, topic: "{{name}}"}}}}}}}}
"""


def checkpoint_of(kind: str, name: str, directory: Path) -> Path:
    """The checkpoint of a query."""
    if kind == "plain":
        return directory / f"{name}.state"
    return directory / "store" / "__checkpoints" / name / "queries" / "copies"


def copy(kind: str, name: str, directory: Path, spark: SparkSession) -> None:
    """Copy the topic to the one with the query's name."""
    if kind == "pipeline":
        declaration = directory / f"{name}.yaml"
        declaration.write_text(DECLARATION.format(name=name))
        runner.run(hw.spark.Pipeline.load(declaration).declaration(), spark=spark)
        return
    store, state = str(directory / "store"), checkpoint_of(kind, name, directory)
    hw.spark.clean_checkpoint(state)
    reader = spark.readStream.format("headwater").option("store", store).option("topic", TOPIC)
    frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", BATCH).load()
    writer = frame.selectExpr("key", "value").writeStream.format("headwater").option("store", store)
    writer = writer.option("topic", name).option("checkpointLocation", str(state))
    writer.trigger(availableNow=True).start().awaitTermination()


def main(directory: Path) -> None:
    """Do the queries that it is told to do."""
    spark = hw.spark.session("first second", master="local[2]", config=SMALL)
    spark.sparkContext.setLogLevel("OFF")
    for line in sys.stdin:
        kind, name = line.split()
        copy(kind, name, directory, spark)
        (directory / f"{name}.done").touch()
    os.kill(os.getpid(), signal.SIGKILL)  # whoever started this sees to the JVM, which takes seconds to stop


if __name__ == "__main__":
    main(Path(sys.argv[1]))
