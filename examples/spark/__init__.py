"""Streams through Spark. `python -m examples.spark.NAME [DIRECTORY]` runs one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import headwater as hw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def workbench() -> Iterator[tuple[SparkSession, Path]]:
    """Spark, and a directory for an example's files: the new one that the command line names, else one that goes."""
    with TemporaryDirectory(prefix="headwater-example-") as scratch:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        if directory.exists() and any(directory.iterdir()):
            sys.exit(f"{directory} is not empty: name a new directory, or none")
        spark = hw.spark.session("example", config={"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False})
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark, directory
        finally:
            spark.stop()
