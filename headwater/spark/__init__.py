"""Spark: topics as DataFrames and streams, through PySpark, with nothing to install but Python packages.

`session` starts Spark, set up as Headwater works best. In any other session `spark.read.format("headwater")` works too:
Spark finds the source by itself where the package is installed. `Pipeline` is a job that is declared, not programmed.
"""

import typing

from headwater.spark.session import session

if typing.TYPE_CHECKING:
    from headwater.spark.pipeline import Pipeline
else:

    def __getattr__(name: str) -> object:
        """`Pipeline`, when it is asked for: Spark's many Python processes import this package and run none."""
        if name != "Pipeline":
            raise AttributeError(f"module 'headwater.spark' has no attribute {name!r}")
        from headwater.spark.pipeline import Pipeline

        return Pipeline


__all__ = ["Pipeline", "session"]
