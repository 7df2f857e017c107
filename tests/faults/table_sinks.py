"""Row 31: the sink of a table dies at every step, and every reader of the table finds whole files and each row once.

The steps are those of the sink: what its tasks stage and what its driver publishes. Spark itself takes no part, except
that the driver notes behind each batch that it is done, and does the next one again when it could not.
"""

from __future__ import annotations

import json
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headwater.log import Disk
from headwater.testing import FailingDisk, Failpoint
from tests.faults.children import Child
from tests.faults.proof import Run, Unavailable, proof
from tests.faults.verification import UnsyncedDisk
from tests.faults.violation import Kind, Violation

if TYPE_CHECKING:
    from headwater.spark.pipeline.tables import TableWriter

BATCHES: Final = 3
TASKS: Final = 2
ROWS: Final = 20
"""Of each task."""
FORMATS: Final = ("parquet", "folders", "delta", "iceberg")
QUERY: Final = "7b0e4a2c-query"
NEEDED: Final = ("pyspark", "duckdb", "polars", "deltalake", "pyiceberg", "sqlalchemy")


@dataclass(frozen=True, slots=True)
class Sink:
    """A table in a directory, and what stands for Spark's checkpoint."""

    format: str
    directory: Path

    @property
    def table(self) -> Path:
        """The directory of its files."""
        return (
            self.directory / "lake" / "db" / "table" / "data" if self.format == "iceberg" else self.directory / "table"
        )

    @property
    def done(self) -> int:
        """So many batches are known to be done."""
        note = self.directory / "done"
        return int(note.read_text()) if note.exists() else 0

    @property
    def catalog(self) -> dict[str, str]:
        """The catalogue by which pyiceberg finds the table."""
        warehouse = self.directory / "lake"
        return {"type": "sql", "warehouse": str(warehouse), "uri": f"sqlite:///{warehouse}/catalog.db"}

    def write(self, disk: Disk) -> None:
        """Begin, or go on behind the last batch that is known to be done; to the end."""
        if self.format in ("parquet", "folders"):
            from headwater.spark.pipeline.parquet import ParquetTable

            begun = self.directory / "begun"  # as Spark notes a query's id before its first batch
            last = self.done - 1 if self.done else None
            ParquetTable(self.table, disk).open(QUERY if begun.exists() else None, last)
            begun.touch()
        else:
            (self.directory / "lake").mkdir(exist_ok=True)
        for batch in range(self.done, BATCHES):
            writer = self._writer(disk)
            staging = writer.staging(QUERY)
            killed = staging.create(writer.schema)
            files = [file for task in range(TASKS) for file in writer.stage([self._rows(batch, task)], staging)]
            killed.abandon()
            writer.publish(files, QUERY, batch)
            note = self.directory / "done.new"
            note.write_text(str(batch + 1))
            note.rename(self.directory / "done")

    def _writer(self, disk: Disk) -> TableWriter:
        """The real one, on another disk."""
        from pyspark.sql.types import LongType, StringType, StructField, StructType

        from headwater.spark.pipeline import tables
        from headwater.spark.pipeline.parquet import ParquetTable
        from headwater.spark.pipeline.staging import DataFile, TableStaging, private_directory

        fields = [StructField("row", LongType()), StructField("shelf", StringType())]
        folders = ["shelf"] if self.format == "folders" else []
        kind = {"delta": tables.DeltaWriter, "iceberg": tables.IcebergWriter}.get(self.format, tables.ParquetWriter)

        class Writer(kind):  # type: ignore[valid-type, misc]
            def staging(self, query: str) -> TableStaging:
                return TableStaging(private_directory(self.directory()), query, disk)

            def publish(self, files: list[DataFile], query: str, batch: int) -> bool:
                if kind is tables.ParquetWriter:
                    return ParquetTable(self.directory(), disk).publish(files, query, batch)
                return bool(super().publish(files, query, batch))

        options = {
            "path": "db.table" if self.format == "iceberg" else str(self.table),
            "catalog": json.dumps(self.catalog),
            "partition_by": json.dumps(folders),
        }
        writer: TableWriter = Writer(options, StructType(fields + fields[1:] * len(folders)))
        return writer

    def _rows(self, batch: int, task: int) -> pa.RecordBatch:
        numbers = list(rows_of(batch))[task::TASKS]
        shelves = [None if number % 5 == 0 else f"{number % 3}/a b" for number in numbers]
        columns = [pa.array(numbers), pa.array(shelves, pa.string()), pa.array(shelves, pa.string())]
        columns = columns[: 3 if self.format == "folders" else 2]
        return pa.record_batch(columns, names=[str(place) for place in range(len(columns))])

    def readers(self) -> dict[str, Callable[[], list[int]]]:
        """Functions that read the rows, by the name of the reader. Nothing is there before the first batch."""
        import duckdb
        import polars as pl
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq

        where: Any = str(self.table)
        # Said, since it cannot be found out while the folder of what is null is the only one.
        shelves = ds.partitioning(pa.schema([("shelf", pa.string())]), flavor="hive")
        own: Callable[[], pa.Table] = lambda: pq.read_table(where, partitioning=shelves)  # noqa: E731
        if self.format == "delta":
            from deltalake import DeltaTable

            if not DeltaTable.is_deltatable(str(self.table)):
                return {}
            table = DeltaTable(str(self.table))
            own, where = table.to_pyarrow_table, table.file_uris()
        elif self.format == "iceberg":
            from pyiceberg.catalog import load_catalog

            if not (self.directory / "lake" / "catalog.db").exists():
                return {}
            catalog = load_catalog("default", **self.catalog)
            if not catalog.table_exists("db.table"):
                return {}
            scan = catalog.load_table("db.table").scan()
            own, where = scan.to_arrow, [task.file.file_path for task in scan.plan_files()]
        if not any(self.table.rglob("*.parquet")) or not where:
            return {}
        return {
            "pyarrow": lambda: list(own()["row"].to_pylist()),
            "Polars": lambda: list(pl.read_parquet(where)["row"]),
            "DuckDB": lambda: list(duckdb.read_parquet(where).fetchnumpy()["row"].tolist()),
        }


def rows_of(batch: int) -> range:
    """The rows of a batch."""
    return range(batch * TASKS * ROWS, (batch + 1) * TASKS * ROWS)


def examine(sink: Sink, needed: range, allowed: range) -> list[tuple[Kind, str]]:
    """Return what is wrong with the table: with its files, or for any reader. Rows that are allowed may be there."""
    import pyarrow.parquet as pq

    found: list[tuple[Kind, str]] = []
    for path in sink.table.rglob("*.parquet"):
        try:
            pq.read_metadata(path)
        except pa.ArrowInvalid as error:
            found.append((Kind.SERVED_DAMAGE, f"{path} is not whole: {error}"))
    readers = sink.readers() or {"everyone": list}
    for name, read in readers.items():
        try:
            counted = Counter(read())
        except Exception as error:  # noqa: BLE001 - each reader has errors of its own
            found.append((Kind.SERVED_DAMAGE, f"{name} refuses the table: {type(error).__name__}: {error}"))
            continue
        found += [
            (Kind.DUPLICATE, f"{name} reads row {row} {times} times") for row, times in counted.items() if times > 1
        ]
        found += [(Kind.LOST_WRITE, f"{name} misses row {row}") for row in set(needed) - counted.keys()]
        found += [(Kind.UNSEEN, f"{name} reads row {row}") for row in counted if row not in allowed]
    return found


def _in_child(directory: Path, body: Callable[[], Any]) -> Any:
    """Run the body in a forked process and return its result.

    Readers and writers of tables have threads, which no later fork may inherit.
    """
    answer = directory / "answer"

    def work() -> None:
        answer.write_text(json.dumps(body()))

    if Child(work, directory / "errors").wait() != 0:
        raise RuntimeError((directory / "errors").read_text())
    return json.loads(answer.read_text())


def examined(sink: Sink, moment: str, needed: range, allowed: range) -> Iterator[Violation]:
    """The same, as violations."""
    found = _in_child(sink.directory, lambda: [(kind.name, detail) for kind, detail in examine(sink, needed, allowed)])
    for name, detail in found:
        yield Violation(Kind[name], f"{sink.format}, {moment}: {detail}")


def check_readers() -> None:
    """Raise Unavailable where tables cannot be written and read; else import what does that, once for all children."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)}")
    for name in ("headwater.spark.pipeline.tables", "pyiceberg.catalog.sql", *NEEDED):
        import_module(name)


@cache
def deaths() -> list[tuple[str, int]]:
    """Before which operation of the sink of which format."""
    check_readers()
    found = []
    for format in FORMATS:
        with tempfile.TemporaryDirectory(prefix="headwater-tables-") as directory:
            sink = Sink(format, Path(directory))

            def count(sink: Sink = sink) -> int:
                disk = FailingDisk(UnsyncedDisk())
                sink.write(disk)
                return len(disk.operations)

            found += [(format, number) for number in range(1, _in_child(Path(directory), count) + 1)]
    return found


@proof(
    row=31,
    title="the sink of a table dies at every step: readers find whole files, no row twice, none missing",
    runs=None,
    quick=8,
    cases=lambda _: len(deaths()),
)
def table_sinks(run: Run) -> Iterator[Violation]:
    """Half of the successors die too, at a step of their own, before one writes the rest."""
    format, number = deaths()[run.number]
    sink = Sink(format, run.directory)
    errors = run.directory / "errors"

    def die(step: int) -> int:
        part = run.random.choice((0, 100))
        disk = FailingDisk(UnsyncedDisk(), Failpoint(number=step, part=part, death=True))
        return Child(lambda: sink.write(disk), errors).wait()

    if die(number) != -signal.SIGKILL:
        left = errors.read_text() if errors.exists() else "it ended without an error"
        yield Violation(Kind.CRASH, f"the sink of {format} did not die at step {number}", left)
        return
    yield from _examined(sink, f"killed at step {number}")
    if run.random.random() < 0.5:
        die(run.random.randint(1, 12))
        yield from _examined(sink, f"killed at step {number}, and its successor")
    if Child(lambda: sink.write(UnsyncedDisk()), errors).wait() != 0:
        yield Violation(Kind.CRASH, f"the sink of {format} does not go on", errors.read_text())
        return
    yield from _examined(sink, f"after the death at step {number}")
    if left_over := sorted(path for path in run.directory.glob("**/staged/*/*")):
        yield Violation(Kind.CRASH, f"{format}: the dead one's file is never removed: {left_over[0]}")


def _examined(sink: Sink, moment: str) -> Iterator[Violation]:
    """Batches that are known to be done are there, and of the others no row twice."""
    return examined(sink, moment, range(rows_of(sink.done).start), range(rows_of(BATCHES).start))
