"""Directories of Parquet as sinks: whole files alone, each row once, also of what Spark's own sink wrote before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.spark.pipeline.checkpoint import Checkpoint
from headwater.spark.pipeline.parquet import ParquetTable
from headwater.spark.pipeline.staging import DataFile, TableStaging
from headwater.spark.pipeline.tables import by_folder
from tests.spark.pipelines import Pipelines, send

SCHEMA = pa.schema([("number", pa.int64())])


def staged(table: ParquetTable, numbers: range, query: str = "query") -> list[DataFile]:
    """Stage rows as a task does."""
    staging = TableStaging(table.private, query)
    file = staging.create(SCHEMA)
    file.write([pa.array(numbers, pa.int64())])
    data = file.finish()
    staging.seal()
    return [data]


def read(path: Path, column: str = "number") -> list[int]:
    """The rows, which all readers agree upon."""
    rows = sorted(pq.read_table(path)[column].to_pylist())
    assert rows == sorted(pl.read_parquet(path)[column].to_list())
    assert rows == sorted(row[0] for row in duckdb.read_parquet(f"{path}/**/*.parquet").select(column).fetchall())
    return rows


def test_a_batch_that_is_done_again_is_there_once_and_what_was_staged_for_it_is_removed(tmp_path: Path) -> None:
    table = ParquetTable(tmp_path / "table")
    table.open(None, None)
    assert table.publish(staged(table, range(5)), "query", 0)
    abandoned = TableStaging(table.private, "query").create(SCHEMA)
    abandoned.write([pa.array(range(5, 9), pa.int64())])
    assert read(table.path) == list(range(5)), "what is staged is seen by nobody"
    assert not table.publish(staged(table, range(5)), "query", 0)
    abandoned.abandon()
    assert table.publish(staged(table, range(5, 9)), "query", 1)
    assert read(table.path) == list(range(9))
    assert not list(TableStaging(table.private, "query").directory.iterdir())


def test_another_query_is_refused(tmp_path: Path) -> None:
    table = ParquetTable(tmp_path / "table")
    table.open(None, None)
    table.publish(staged(table, range(5)), "query", 0)
    for query in (None, "another"):
        with pytest.raises(hw.InvalidConfiguration, match="output of another checkpoint"):
            table.open(query, None)
    with pytest.raises(hw.StoreError, match="another query has written"):
        table.publish(staged(table, range(5), "another"), "another", 0)
    table.open("query", 0)
    assert read(table.path) == list(range(5))


def test_without_the_record_of_what_was_decided_it_is_not_guessed(tmp_path: Path) -> None:
    table = ParquetTable(tmp_path / "table")
    table.open(None, None)
    table.publish(staged(table, range(5)), "query", 0)
    decided = table.private / "decided.json"
    content = decided.read_bytes()
    decided.write_bytes(content[:10])
    with pytest.raises(hw.StoreError, match="is damaged"):
        table.open("query", 0)
    decided.unlink()
    with pytest.raises(hw.InvalidConfiguration, match="is missing"):
        table.open("query", 0)
    decided.write_bytes(content)
    table.open("query", 0)


def test_where_nothing_may_lie_beside_the_table_its_private_files_lie_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == tmp_path / "table")
    table = ParquetTable(tmp_path / "table")
    table.open(None, None)
    monkeypatch.undo()
    again = ParquetTable(tmp_path / "table")
    again.publish(staged(again, range(5)), "query", 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table"]
    assert pq.read_table(table.path)["number"].to_pylist() == list(range(5))
    assert pl.read_parquet(f"{table.path}/**/*.parquet").height == 5


def test_folders_are_named_as_spark_names_them(
    spark: SparkSession, store: hw.Store, pipelines: Pipelines, tmp_path: Path
) -> None:
    store.create_topic("numbers")
    send(store, "numbers", 0, 20)
    pipelines.run(
        pipelines.load("""
sources: {numbers: {topic: numbers}}
steps:
  kept:
    sql: >
      SELECT offset AS number, offset % 2 = 0 AS even, timestamp_micros(offset * 500000 + 1) AS time,
             element_at(array(null, '', 'a/b=c', 'é %'), CAST(offset % 4 + 1 AS int)) AS `odd name` FROM numbers
sinks:
  table: {from: kept, parquet: table, partition_by: [even, odd name]}
""")
    )
    assert read(tmp_path / "table") == list(range(20))
    rows = spark.read.parquet(str(tmp_path / "table"))
    rows.write.partitionBy("even", "odd name").parquet(str(tmp_path / "own"))
    folders = [{str(path.parent.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*.parquet")}
               for name in ("table", "own")]  # fmt: skip
    assert folders[0] == folders[1]
    assert rows.schema["time"].dataType.typeName() == "timestamp"
    assert rows.where("`odd name` = 'a/b=c' AND NOT even").count() == 0
    assert rows.where("`odd name` = 'a/b=c' AND even").count() == 5


def test_no_row_is_lost_between_folders() -> None:
    keys = pa.array(["a", None, "b", "", "a", "b"])
    others = pa.array(["x", "x", None, "y", "x", "x"])
    batch = pa.record_batch([pa.array(range(6)), keys, others], names=["number", "0", "1"])
    by_name = {folder: rows.column(0).to_pylist() for folder, rows in by_folder(batch, ["key", "other"])}
    empty = "__HIVE_DEFAULT_PARTITION__"
    assert by_name == {
        "key=a/other=x": [0, 4],
        f"key={empty}/other=x": [1],
        f"key=b/other={empty}": [2],
        f"key={empty}/other=y": [3],
        "key=b/other=x": [5],
    }


def test_what_sparks_own_sink_wrote_is_taken_over_without_its_debris(
    spark: SparkSession, store: hw.Store, tmp_path: Path, checkpoint: Callable[[], str]
) -> None:
    store.create_topic("numbers")
    send(store, "numbers", 0, 30)
    where, table = checkpoint(), ParquetTable(tmp_path / "table")
    source = spark.readStream.format("headwater").option("store", str(tmp_path / "store")).option("topic", "numbers")
    frame = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 10).load()
    writer = frame.selectExpr("offset AS number").writeStream.format("parquet").option("checkpointLocation", where)
    writer.trigger(availableNow=True).start(str(table.path)).awaitTermination()
    (table.path / "part-00000-killed.snappy.parquet").touch()
    pq.write_table(pa.table({"number": [1, 2]}), table.path / "part-00000-done-again.snappy.parquet")
    known = Checkpoint(Path(where))
    assert known.query is not None
    with pytest.raises(hw.InvalidConfiguration, match="output of another checkpoint"):
        table.open(None, None)
    table.open(known.query, known.last_batch)
    assert read(table.path) == list(range(30))
    assert known.last_batch is not None
    assert not table.publish(staged(table, range(20, 30), known.query), known.query, known.last_batch)
    assert table.publish(staged(table, range(30, 40), known.query), known.query, known.last_batch + 1)
    assert read(table.path) == list(range(40))
    assert spark.read.parquet(str(table.path)).count() == 40
