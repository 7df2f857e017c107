"""Spark looks for modules named `pyspark_*` and takes their `DefaultSource`: so `format("headwater")` works at once."""

from headwater.spark.datasource import HeadwaterSource as DefaultSource

__all__ = ["DefaultSource"]
