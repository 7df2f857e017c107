"""Spark: topics as DataFrames and streams, through PySpark, with nothing to install but Python packages.

`session` starts Spark, set up as Headwater works best. In any other session `spark.read.format("headwater")` works too:
Spark finds the source by itself where the package is installed. `scan` reads small rows faster than that does.
`Pipeline` is a job that is declared, not programmed. `clean_checkpoint` lets a query start again whose driver died
before its first batch.
"""

import typing

from headwater.spark.session import session

if typing.TYPE_CHECKING:
    from headwater.spark.pipeline import Pipeline
    from headwater.spark.pipeline.checkpoint import clean_checkpoint
    from headwater.spark.reader import scan
else:

    def __getattr__(name: str) -> object:
        """`Pipeline` and `scan`, when they are asked for: Spark's many Python processes need neither."""
        if name == "Pipeline":
            from headwater.spark.pipeline import Pipeline

            return Pipeline
        if name == "clean_checkpoint":
            from headwater.spark.pipeline.checkpoint import clean_checkpoint

            return clean_checkpoint
        if name == "scan":
            from headwater.spark.reader import scan

            return scan
        raise AttributeError(f"module 'headwater.spark' has no attribute {name!r}")


__all__ = ["Pipeline", "clean_checkpoint", "scan", "session"]
