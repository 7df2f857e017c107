"""Tables of Parquet, Delta and Iceberg as sinks of Spark, without their jars.

Tasks write Parquet files where nobody looks at them; the driver moves them to the table and adds them to it, in one
commit that also says which batch of which query it was. A batch that is done again finds itself there. Files of tasks
that failed are removed with the next batch. Whole files of a Delta or Iceberg commit that did not happen are in no
table: the table's own cleaning (`vacuum`, removal of orphans) collects them.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import headwater.core.compute as pc
from headwater.core.errors import StoreError
from headwater.spark.pipeline.parquet import ParquetTable
from headwater.spark.pipeline.staging import DataFile, StagedFile, TableStaging, private_directory

_QUERY: Final = "sql.streaming.queryId"
_OPEN_FILES: Final = 100
"""A task has at most so many files open: with more folders than that, some of them get several files."""
_UNSAFE: Final = frozenset("\"#%'*/:=?\\\x7f{[]^")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrittenFile(WriterCommitMessage):
    """The file that a task has written, and its query. Without rows there is no file."""

    query: str
    files: tuple[DataFile, ...]


class TableWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a stream's batches to a table, each batch once."""

    def __init__(self, options: dict[str, str], rows: StructType) -> None:
        self.options = options
        self.folders: list[str] = json.loads(options["partition_by"])
        """Columns that name the folders of a row's file, outermost first; as text they are once more at its end."""
        names = [name.casefold() for name in self.folders]
        fields = rows.fields[: len(rows.fields) - len(names)]
        self.kept = [number for number, field in enumerate(fields) if field.name.casefold() not in names]
        self.rows = StructType([fields[number] for number in self.kept])
        self.schema: pa.Schema = to_arrow_schema(self.rows, timezone="UTC")

    @abstractmethod
    def directory(self) -> Path:
        """Return the directory that its files go to."""

    @abstractmethod
    def publish(self, files: Sequence[DataFile], query: str, batch: int) -> bool:
        """Add files to the table, unless this batch of this query is there; whether they were added."""

    def staging(self, query: str) -> TableStaging:
        """Return the staging area that holds the files of a query until they are published."""
        return TableStaging(private_directory(self.directory()), query)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFile:
        """Write the rows of one task, to files of its own: one, or one for each folder."""
        task = TaskContext.get()
        query = task.getLocalProperty(_QUERY) if task is not None else None
        if not query:
            raise StoreError(
                "Spark does not tell its tasks which query they work for, so rows cannot be written exactly once"
            )
        files = self.stage(iterator, self.staging(query))
        return WrittenFile(query, tuple(files))

    def stage(self, batches: Iterable[pa.RecordBatch], staging: TableStaging) -> list[DataFile]:
        """Write rows to staged files, one for each folder."""
        growing: dict[str, StagedFile] = {}
        files: list[DataFile] = []
        try:
            for batch in batches:
                for folder, rows in by_folder(batch, self.folders):
                    if folder not in growing:
                        if len(growing) >= _OPEN_FILES:
                            files.append(growing.pop(next(iter(growing))).finish())
                        growing[folder] = staging.create(self.schema, folder)
                    growing[folder].write([rows.column(number) for number in self.kept])
            files += [file.finish() for file in growing.values()]
            if files:
                staging.seal()
        finally:
            for file in growing.values():
                file.abandon()
        return files

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Add what all tasks have written."""
        written = [message for message in messages if isinstance(message, WrittenFile)]
        files = [file for message in written for file in message.files]
        if files and not self.publish(files, written[0].query, batchId):
            _log.info("batch %d of query %s is in the table already", batchId, written[0].query)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave the files where they are: a commit that failed may have added them all the same."""


class ParquetWriter(TableWriter):
    """A directory of Parquet files."""

    def directory(self) -> Path:
        """The table's own."""
        return Path(self.options["path"])

    def publish(self, files: Sequence[DataFile], query: str, batch: int) -> bool:
        """The decision lies beside the directory."""
        return ParquetTable(self.directory()).publish(files, query, batch)


class DeltaWriter(TableWriter):
    """A table of Delta Lake, by the package `deltalake`."""

    def directory(self) -> Path:
        """The table's own: its files lie beside its log."""
        return Path(self.options["path"])

    def publish(self, files: Sequence[DataFile], query: str, batch: int) -> bool:
        """In Delta the batch is an application transaction, under the id of the query."""
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.transaction import AddAction

        table = DeltaTable.create(self.options["path"], self.schema, mode="ignore")
        done = table.transaction_version(query)
        staging = self.staging(query)
        if done is not None and done >= batch:
            staging.clear()
            return False
        staging.move([(file.name, file.path) for file in files], self.directory())
        now = int(time() * 1000)
        table.create_write_transaction(
            [AddAction(file.path, file.size, {}, now, True, json.dumps({"numRecords": file.rows})) for file in files],
            "append",
            self.schema,
            commit_properties=CommitProperties(app_transactions=[Transaction(query, batch)]),
        )
        staging.clear()
        return True


class IcebergWriter(TableWriter):
    """A table of Iceberg, by the package `pyiceberg`."""

    def directory(self) -> Path:
        """Beside the table's metadata, in its warehouse."""
        namespace, _, name = self.options["path"].partition(".")
        catalog = json.loads(self.options["catalog"])
        return Path(catalog["warehouse"].removeprefix("file://"), namespace, name, "data")

    def publish(self, files: Sequence[DataFile], query: str, batch: int) -> bool:
        """In Iceberg the batch is a property of the table, set in the same commit: it outlives snapshots."""
        from pyiceberg.catalog import load_catalog

        properties = json.loads(self.options["catalog"])
        name = self.options["path"]
        catalog = load_catalog(properties.pop("name", "default"), **properties)
        catalog.create_namespace_if_not_exists(name.partition(".")[0])
        table = catalog.create_table_if_not_exists(name, self.schema)
        marker = f"headwater.batch.{query}"
        staging = self.staging(query)
        if int(table.properties.get(marker, -1)) >= batch:
            staging.clear()
            return False
        staging.move([(file.name, file.path) for file in files], self.directory())
        with table.transaction() as transaction:
            transaction.add_files([str(self.directory() / file.path) for file in files])
            transaction.set_properties({marker: str(batch)})
        staging.clear()
        return True


class TableSource(DataSource):
    """The data source behind sinks that are tables."""

    @classmethod
    def name(cls) -> str:
        """Return the name that is passed to `format`."""
        return "headwater_table"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802 - Spark's
        """The writer of one batch."""
        options = dict(self.options)
        return _WRITERS[options["kind"]](options, schema)


_WRITERS: Final[dict[str, type[TableWriter]]] = {
    "parquet": ParquetWriter,
    "delta": DeltaWriter,
    "iceberg": IcebergWriter,
}


def by_folder(batch: pa.RecordBatch, folders: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a batch by the folder that each belongs to, named as Hive and Spark name them: `item=pear`."""
    if not folders:
        if batch.num_rows:
            yield "", batch
        return
    columns = batch.columns[len(batch.columns) - len(folders) :]
    keys = pa.table(columns, names=[str(number) for number in range(len(columns))])
    for key in keys.group_by(keys.column_names).aggregate([]).to_pylist():
        mask = pa.scalar(True)
        for column, value in zip(columns, key.values(), strict=True):
            mask = pc.and_(mask, pc.is_null(column) if value is None else pc.equal(column, value))
        parts = [f"{_escaped(name)}={_escaped(value)}" for name, value in zip(folders, key.values(), strict=True)]
        yield "/".join(parts), batch.filter(mask)


def _escaped(value: str | None) -> str:
    """A name or a value in a path."""
    if not value:
        return "__HIVE_DEFAULT_PARTITION__"
    return "".join(f"%{ord(char):02X}" if char in _UNSAFE or char < " " else char for char in value)
