"""The program that `bit_flips_spark` starts: many small queries in one session, and what came of each.

`python -m tests.spark.flips_driver DIRECTORY` reads `queries.json`, a list of options, and writes `answers.json`: for
each query its rows, or the first line of its error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

import headwater as hw
from tests.spark.conftest import SMALL


def main(directory: Path) -> None:
    """Ask everything, one after the other."""
    spark = hw.spark.session("flips", master="local[2]", config=SMALL)
    spark.sparkContext.setLogLevel("OFF")
    answers: list[dict[str, Any]] = []
    for options in json.loads((directory / "queries.json").read_text()):
        frame = spark.read.format("headwater").option("store", str(directory / "store")).options(**options).load()
        try:
            answers.append({"rows": [_plain(row) for row in frame.collect()]})
        except PySparkException as error:
            told = [line for line in str(error).splitlines() if "headwater.core.errors." in line]
            answers.append({"error": told[-1] if told else str(error)})
    (directory / "answers.json").write_text(json.dumps(answers))
    spark.stop()


def _plain(row: Any) -> dict[str, Any]:
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in row.asDict().items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
