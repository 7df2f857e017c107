"""Tables of Delta and Iceberg as sinks of Spark, without their jars.

Tasks write Parquet files into the table's directory, where nobody looks at them; the driver adds them to the table, in
one commit that also says which batch of which query it was. A batch that is done again finds itself there. Files of
tasks that failed stay behind, in no table: the table's own cleaning (`vacuum`, removal of orphans) collects them.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.errors import StoreError

_QUERY: Final = "sql.streaming.queryId"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class File(WriterCommitMessage):
    """What a task has written, for which query. Without rows there is no file."""

    query: str
    name: str
    rows: int
    size: int


class TableWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a stream's batches to a table, each batch once."""

    def __init__(self, options: dict[str, str], rows: StructType) -> None:
        self.options = options
        self.rows = rows
        self.schema: pa.Schema = to_arrow_schema(rows, timezone="UTC")

    @abstractmethod
    def directory(self) -> Path:
        """Where its files go."""

    @abstractmethod
    def publish(self, files: Sequence[File], query: str, batch: int) -> bool:
        """Add files to the table, unless this batch of this query is there; whether they were added."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> File:
        """Write the rows of one task, to a file of its own."""
        task = TaskContext.get()
        query = task.getLocalProperty(_QUERY) if task is not None else None
        if not query:
            raise StoreError("Spark does not tell its tasks which query they work for, so that nothing can count once")
        path = self.directory() / f"part-{uuid4()}.parquet"
        writer: Any = None
        rows = 0
        for batch in iterator:
            if batch.num_rows:
                if writer is None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    writer = pq.ParquetWriter(path, self.schema, compression="zstd")
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=self.schema))
                rows += batch.num_rows
        if writer is None:
            return File(query, "", 0, 0)
        writer.close()
        return File(query, path.name, rows, path.stat().st_size)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Add what all tasks have written."""
        written = [message for message in messages if isinstance(message, File)]
        files = [file for file in written if file.rows]
        if files and not self.publish(files, written[0].query, batchId):
            _log.info("batch %d of query %s is in the table already", batchId, written[0].query)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave the files where they are, in no table: a commit that failed may have added them all the same."""


class DeltaWriter(TableWriter):
    """A table of Delta Lake, by the package `deltalake`."""

    def directory(self) -> Path:
        """The table's own: its files lie beside its log."""
        return Path(self.options["path"])

    def publish(self, files: Sequence[File], query: str, batch: int) -> bool:
        """In Delta the batch is an application transaction, under the id of the query."""
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.transaction import AddAction

        table = DeltaTable.create(self.options["path"], self.schema, mode="ignore")
        done = table.transaction_version(query)
        if done is not None and done >= batch:
            return False
        now = int(time() * 1000)
        table.create_write_transaction(
            [AddAction(file.name, file.size, {}, now, True, json.dumps({"numRecords": file.rows})) for file in files],
            "append",
            self.schema,
            commit_properties=CommitProperties(app_transactions=[Transaction(query, batch)]),
        )
        return True


class IcebergWriter(TableWriter):
    """A table of Iceberg, by the package `pyiceberg`."""

    def directory(self) -> Path:
        """Beside the table's metadata, in its warehouse."""
        namespace, _, name = self.options["path"].partition(".")
        catalog = json.loads(self.options["catalog"])
        return Path(catalog["warehouse"].removeprefix("file://"), namespace, name, "data")

    def publish(self, files: Sequence[File], query: str, batch: int) -> bool:
        """In Iceberg the batch is a property of the table, set in the same commit: it outlives snapshots."""
        from pyiceberg.catalog import load_catalog

        properties = json.loads(self.options["catalog"])
        name = self.options["path"]
        catalog = load_catalog(properties.pop("name", "default"), **properties)
        catalog.create_namespace_if_not_exists(name.partition(".")[0])
        table = catalog.create_table_if_not_exists(name, self.schema)
        marker = f"headwater.batch.{query}"
        if int(table.properties.get(marker, -1)) >= batch:
            return False
        with table.transaction() as transaction:
            transaction.add_files([str(self.directory() / file.name) for file in files])
            transaction.set_properties({marker: str(batch)})
        return True


class TableSource(DataSource):
    """The data source behind sinks that are tables."""

    @classmethod
    def name(cls) -> str:
        """What is passed to `format`."""
        return "headwater_table"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802 - Spark's
        """The writer of one batch."""
        options = dict(self.options)
        kind = DeltaWriter if options["kind"] == "delta" else IcebergWriter
        return kind(options, schema)
