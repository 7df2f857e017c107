"""Declared pipelines: topics and files, through SQL and Python, to topics and tables, each row exactly once.

A file declares sources, steps and sinks; `hw pipeline run` runs it. `declaration` has the nouns, `validation` what is
checked before Spark starts, `runner` what happens then.
"""

from headwater.spark.pipeline.pipeline import Pipeline

__all__ = ["Pipeline"]
