"""The sink: rows of DataFrames and streams, written exactly once.

Tasks stage their rows in the store, each in a file of its own, where nobody sees them. The driver decides over all of
them in one transaction. Whatever dies and whatever is done again, all rows of a batch are there once, or none of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headwater.core.errors import InvalidConfiguration, StoreError, UnknownTopic
from headwater.spark.address import open_existing
from headwater.spark.framing import Framing, Pin
from headwater.spark.layout import check_layout, topic_column
from headwater.spark.options import SinkOptions
from headwater.spark.worker import freeze_garbage
from headwater.streams import Staged, Transaction

_log = logging.getLogger(__name__)
_QUERY = "sql.streaming.queryId"


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """The rows that a task has staged, and the query that they are for."""

    staged: Staged
    query: str | None


@dataclass(frozen=True)
class SinkPlan:
    """The topics and the columns of a batch. The driver makes it for each batch and sends it to the tasks."""

    options: SinkOptions
    rows: StructType
    column: str
    pins: Mapping[str, Pin]

    @classmethod
    def make(cls, options: SinkOptions, rows: StructType) -> SinkPlan:
        """Make the plan, or raise for an unknown topic or columns that do not fit, before anything is written."""
        with open_existing(options.store) as store:
            if options.topic is not None:
                topic = store.topic(options.topic)
                check_layout(rows, topic.schema, topic.name)
                return cls(options, rows, "", {topic.name: Pin.of(topic.info)})
            column = topic_column(rows)
            pins = {}
            for name in store.topics():
                with suppress(UnknownTopic):  # deleted this very moment
                    pins[name] = Pin.of(store.describe_topic(name))
            return cls(options, rows, column, pins)

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedRows:
        """The work of a task. When it fails, or is done twice, what it has staged is never published."""
        task = TaskContext.get()
        first = task.taskAttemptId() if task is not None else 0
        query = task.getLocalProperty(_QUERY) if task is not None else None
        with open_existing(self.options.store) as store, store.stage() as staging:
            framing = Framing(
                store,
                staging,
                self.rows,
                topic=self.options.topic,
                column=self.column,
                pins=self.pins,
                first=first,
            )
            framing.stage(batches)
            written = StagedRows(staging.seal(), query)
        freeze_garbage()
        return written

    def drop(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what tasks have staged, but nothing that is decided: a commit that failed may have decided."""
        with open_existing(self.options.store) as store:
            store.drop(message.staged for message in _written(messages))


class HeadwaterWriter(DataSourceArrowWriter):
    """Writes a DataFrame: all of its rows, or none."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of one task."""
        return self._plan.stage(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what all tasks have staged."""
        options = self._plan.options
        with (
            open_existing(options.store) as store,
            store.transaction(
                writer=options.txn_id, sequence=options.txn_version, owner=options.owner, takeover=options.takeover
            ) as block,
        ):
            _commit(block, _written(messages), f"version {options.txn_version} of {options.txn_id!r}")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish nothing."""
        self._plan.drop(messages)


class HeadwaterStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream: the rows of each of its batches once."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of one task."""
        return self._plan.stage(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Publish what all tasks have staged, unless this batch has been published before."""
        written = _written(messages)
        if not written:
            return
        options = self._plan.options
        query = written[0].query
        if query is None:
            raise StoreError(
                "Spark does not tell its tasks which query they work for, so rows cannot be written exactly once"
            )
        name, owner = (f"spark-{query}", None) if options.txn_id is None else (options.txn_id, query)
        with (
            open_existing(options.store) as store,
            store.transaction(writer=name, sequence=batchId, owner=owner, takeover=options.takeover) as block,
        ):
            _commit(block, written, f"batch {batchId} of {name!r}")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Publish nothing."""
        self._plan.drop(messages)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    """The messages of the tasks that have ended well: there are none of the others."""
    return [message for message in messages if isinstance(message, StagedRows)]


def _commit(block: Transaction, written: Sequence[StagedRows], batch: str) -> None:
    for message in written:
        block.adopt(message.staged)
    block.commit()
    if block.state == "repeated":
        _log.info("%s was written before: that counts, and what was staged again is dropped", batch)


def batch_writer(given: Mapping[str, str], rows: StructType, overwrite: bool) -> HeadwaterWriter:
    """The writer of a DataFrame."""
    if overwrite:
        raise InvalidConfiguration('a topic can only be appended to: use mode("append")')
    return HeadwaterWriter(SinkPlan.make(SinkOptions.parse(given, streaming=False), rows))


def stream_writer(given: Mapping[str, str], rows: StructType, overwrite: bool) -> HeadwaterStreamWriter:
    """The writer of one batch of a stream."""
    if overwrite:
        raise InvalidConfiguration('a topic can only be appended to: use outputMode("append")')
    return HeadwaterStreamWriter(SinkPlan.make(SinkOptions.parse(given, streaming=True), rows))
