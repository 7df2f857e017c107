"""Frames: the sources and steps of a declaration as streaming DataFrames, in one session of their own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

from headwater.core.errors import HeadwaterError, InvalidPipeline, Problem
from headwater.spark.pipeline.declaration import Declaration, FileSource, Function, Node, PipelineStep, Source
from headwater.spark.pipeline.expectations import checked, dropped
from headwater.spark.pipeline.graph import drops
from headwater.spark.pipeline.validation import start_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Starts = Mapping[str, Mapping[str, Mapping[str, int]]]
"""The starts of sources, by the source's name: an offset for each partition of each topic."""


class Frames:
    """Every name of a pipeline as a DataFrame, and as a view for those that come later."""

    def __init__(self, declaration: Declaration, spark: SparkSession, starts: Starts) -> None:
        self._declaration = declaration
        self._spark = spark
        self._good: dict[str, DataFrame] = {}
        self._all: dict[str, DataFrame] = {}
        for source in declaration.sources:
            with located(declaration, source, "sources"):
                self._add(source, self._read(source, starts))
        for step in declaration.steps:
            with located(declaration, step, "steps"):
                self._add(step, self._made(step))

    def __getitem__(self, name: str) -> DataFrame:
        return self._good[name]

    def dead_letters(self) -> DataFrame:
        """The rows that rules have taken out, of all nodes, as records for a raw topic."""
        declaration = self._declaration
        bad = [
            dropped(self._all[node.name], node, declaration.name) for node in declaration.nodes.values() if drops(node)
        ]
        return reduce(lambda frame, other: frame.unionByName(other), bad)

    def _add(self, node: Node, frame: DataFrame) -> None:
        if node.watermark is not None:
            frame = frame.withWatermark(node.watermark.column, node.watermark.delay)
        if isinstance(node, PipelineStep) and node.unique:
            columns = list(node.unique)
            in_time = node.watermark is not None
            frame = frame.dropDuplicatesWithinWatermark(columns) if in_time else frame.dropDuplicates(columns)
        self._all[node.name] = frame
        self._good[node.name] = checked(frame, node)
        self._good[node.name].createOrReplaceTempView(node.name)

    # Sources.

    def _read(self, source: Source, starts: Starts) -> DataFrame:
        reader: Any = self._spark.read if source.static else self._spark.readStream
        if isinstance(source, FileSource):
            return self._files(source, reader)
        start = starts.get(source.name, source.start)
        reader = reader.format("headwater").option("store", source.store).options(**source.options)
        frame: DataFrame = reader.options(**{} if source.static else start_options(start)).load()
        return frame

    def _files(self, source: FileSource, reader: Any) -> DataFrame:
        reader = reader.format(source.format).options(**source.options)
        if source.schema is not None:
            reader = reader.schema(source.schema)
        elif not source.static:
            # A stream must know its columns before it begins: those of the files that are there.
            reader = reader.schema(self._spark.read.parquet(source.path).schema)
        if source.limit is not None and not source.static:
            reader = reader.option("maxFilesPerTrigger", source.limit)
        frame: DataFrame = reader.load(source.path)
        return frame

    # Steps.

    def _made(self, step: PipelineStep) -> DataFrame:
        if step.sql is not None:
            return self._spark.sql(step.sql)
        assert step.function is not None
        function = step.function if callable(step.function) else self._imported(step.function)
        frame = function(*[self._good[name] for name in step.inputs])
        if not hasattr(frame, "writeStream"):
            raise TypeError(f"the function returned {type(frame).__name__}, not a DataFrame")
        result: DataFrame = frame
        return result

    def _imported(self, name: str) -> Function:
        """A function by its name, `module:function`; modules beside the declaration are found, and sent to workers."""
        from pyspark import cloudpickle

        directory = str(self._declaration.directory)
        if directory not in sys.path:
            sys.path.insert(0, directory)
        module_name, _, function_name = name.partition(":")
        module = importlib.import_module(module_name)
        if str(getattr(module, "__file__", None) or "").startswith(directory):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        function: Function = getattr(module, function_name)
        return function


@contextmanager
def located(declaration: Declaration, part: Any, key: str) -> Iterator[None]:
    """Say where a mistake is that only Spark has found."""
    from pyspark.errors import PySparkException

    try:
        yield
    except InvalidPipeline:
        raise
    except (PySparkException, HeadwaterError, ImportError, AttributeError, TypeError) as error:
        reason = str(error).split("\n\nJVM stacktrace")[0].strip().split("; line ")[0]
        raise InvalidPipeline([Problem(declaration.file, part.line, f"{key}.{part.name}", reason)]) from error
