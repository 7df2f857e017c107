"""Spark: topics as DataFrames and streams, through PySpark, with nothing to install but Python packages.

`session` starts Spark, set up as Headwater works best. In any other session `spark.read.format("headwater")` works too:
Spark finds the source by itself where the package is installed. `Pipeline` is a job that is declared, not programmed.
"""

from headwater.spark.pipeline import Pipeline
from headwater.spark.session import session

__all__ = ["Pipeline", "session"]
