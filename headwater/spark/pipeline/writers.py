"""Writers: each sink of a declaration as a streaming query with a checkpoint of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core.errors import InvalidConfiguration
from headwater.spark.address import open_existing
from headwater.spark.pipeline.checkpoint import Checkpoint
from headwater.spark.pipeline.declaration import (
    DEAD_LETTERS,
    ConsoleSink,
    Declaration,
    Sink,
    TableSink,
    TopicSink,
    Trigger,
)
from headwater.spark.pipeline.frames import Frames
from headwater.spark.pipeline.parquet import ParquetTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Show = Callable[[str, int, str], None]
"""Takes the rows of a batch as text: the sink, the number of the batch, the text."""
_PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}


def all_sinks(declaration: Declaration) -> list[Sink]:
    """The sinks that were declared, and the one for dead letters."""
    sinks = list(declaration.sinks)
    if declaration.dead_letters is not None:
        modes = {sink.mode for sink in sinks}
        sinks.append(
            TopicSink(
                name=DEAD_LETTERS,
                input="",
                mode="append" if modes <= {"append"} else "update",
                store=declaration.store or "",
                topic=declaration.dead_letters,
                partitions=1,
            )
        )
    return sinks


class Writers:
    """Starts the queries of a pipeline."""

    def __init__(
        self, declaration: Declaration, spark: SparkSession, frames: Frames, trigger: Trigger, show: Show
    ) -> None:
        self._declaration = declaration
        self._spark = spark
        self._frames = frames
        self._trigger = trigger
        self._show = show

    def prepare(self, sink: Sink) -> None:
        """Make what the sink needs and may make, and refuse what cannot work."""
        if isinstance(sink, TopicSink) and sink.topic is not None and sink.partitions is not None:
            with open_existing(sink.store) as store:
                if sink.topic not in store.topics():
                    store.create_topic(sink.topic, sink.partitions, _schema(self._frame(sink)), exist_ok=True)
        if isinstance(sink, TableSink):
            package = _PACKAGES.get(sink.format)
            if package is not None and find_spec(package) is None:
                raise InvalidConfiguration(
                    f"a table of {sink.format} needs the package {package}: pip install {package}"
                )
            path = _local(sink.path)
            if sink.format == "parquet" and path is not None:
                checkpoint = self.checkpoint(sink)
                ParquetTable(path).open(checkpoint.query, checkpoint.last_batch)

    def checkpoint(self, sink: Sink) -> Checkpoint:
        """Return the checkpoint of a sink's query."""
        return Checkpoint(self._declaration.checkpoint / "queries" / sink.name)

    def start(self, sink: Sink, *, takeover: bool) -> StreamingQuery:
        """Start the query of a sink, or go on with it from its checkpoint."""
        self.checkpoint(sink).clean()
        writer: Any = self._rows(sink).writeStream.outputMode(sink.mode)
        writer = writer.option("checkpointLocation", str(self.checkpoint(sink).path))
        writer = writer.queryName(f"{self._declaration.name}.{sink.name}")
        interval = self._trigger.interval
        if interval is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(interval * 1000)} milliseconds")
        query: StreamingQuery = self._to(writer, sink, takeover).start()
        return query

    def _to(self, writer: Any, sink: Sink, takeover: bool) -> Any:
        if isinstance(sink, TopicSink):
            return self._to_topic(writer, sink, takeover)
        if isinstance(sink, ConsoleSink):
            return writer.foreachBatch(lambda rows, batch: self._show(sink.name, batch, _shown(rows, sink.rows)))
        assert isinstance(sink, TableSink)
        path = sink.path if sink.format == "iceberg" else _local(sink.path)
        if path is None and sink.format == "parquet":  # on an object store, where Spark's own sink knows its way
            writer = writer.format("parquet").option("path", sink.path)
            return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer
        options = {
            "kind": sink.format,
            "path": str(path or sink.path),
            "catalog": json.dumps(dict(sink.catalog)),
            "partition_by": json.dumps(sink.partition_by),
        }
        return writer.format(self._table_format).options(**options)

    def _to_topic(self, writer: Any, sink: TopicSink, takeover: bool) -> Any:
        # By a name that stays: a checkpoint that is lost raises an error instead of writing everything twice.
        options = {"store": sink.store, "txnId": f"pipeline-{self._declaration.name}-{sink.name.strip('_')}"}
        if sink.topic is not None:
            options["topic"] = sink.topic
        if takeover:
            options["txnTakeover"] = "true"
        if sink.mode == "append":
            return writer.format("headwater").options(**options)

        def write(rows: DataFrame, batch: int) -> None:
            """Append an update as a numbered batch: Spark lets sinks in Python only append."""
            numbered = {"txnVersion": batch, "txnOwner": self.checkpoint(sink).query}
            rows.write.format("headwater").mode("append").options(**options, **numbered).save()

        return writer.foreachBatch(write)

    @cached_property
    def _table_format(self) -> str:
        """The format for tables, registered in the session: once, since Spark takes a second time for a mistake."""
        from headwater.spark.pipeline.tables import TableSource

        self._spark.dataSource.register(TableSource)
        return TableSource.name()

    def _frame(self, sink: Sink) -> DataFrame:
        return self._frames.dead_letters() if sink.name == DEAD_LETTERS else self._frames[sink.input]

    def _rows(self, sink: Sink) -> DataFrame:
        """The rows as a sink takes them: for a table with folders, the names of those follow, as Spark spells them."""
        frame = self._frame(sink)
        if not isinstance(sink, TableSink) or not sink.partition_by or _local(sink.path) is None:
            return frame
        from pyspark.sql import functions as fn

        if len(sink.partition_by) >= len(frame.columns):
            raise InvalidConfiguration(f"partition_by takes all columns of {sink.input}: nothing is left for the files")
        folders = [fn.col(name).cast("string").alias(f"__folder_{name}") for name in sink.partition_by]
        return frame.select("*", *folders)


def _local(path: str) -> Path | None:
    """The path of a table on a file system; None for an address of another kind."""
    path = path.removeprefix("file://")
    return None if "://" in path else Path(path)


def _shown(rows: DataFrame, most: int) -> str:
    text: Callable[..., str] = getattr(rows, "_show_string")  # noqa: B009 - what `show` prints
    return text(most, 40)


def _schema(frame: DataFrame) -> Any:
    """The Arrow schema of a topic for these rows; None, a raw topic, where they have a value."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    own = [field for field in frame.schema.fields if not field.name.startswith("_")]
    return None if "value" in frame.columns else to_arrow_schema(StructType(own), timezone="UTC")
