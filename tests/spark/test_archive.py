"""Archives: everything once, whoever dies; read with the log as one; the log lets go only of what is safe."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import headwater as hw
from headwater.log.files.disk import Disk
from headwater.spark import archive as archives
from headwater.spark import columns
from headwater.spark.archive import MANIFEST, ArchiveManifest, PartitionArchive, partition_directory
from headwater.spark.jobs import archiving
from headwater.spark.jobs.archiving import archive
from headwater.spark.options import SourceOptions
from headwater.spark.ranges import OffsetRange, read
from headwater.spark.reader import HeadwaterReader, describe
from headwater.streams import Commit, TopicPartition


def fill(store: hw.Store, name: str, count: int, *, roll_every: int = 10, **options: Any) -> hw.Topic:
    """A topic of one partition in frames of three records; a segment is closed after every `roll_every`."""
    topic = store.create_topic(name, **options) if name not in store.topics() else store.topic(name)
    start = topic.bounds()[0].end
    for number in range(start, start + count):
        with store.producer(name) as out:
            headers = {"n": b"%d" % number} if number % 3 else None
            out.send(b"v%d" % number, key=b"k%d" % (number % 7), headers=headers, timestamp=10**18 + number * 1001)
        if number % roll_every == roll_every - 1:
            topic.partition(0).roll()
    return topic


def direct(store: hw.Store, where: Path | None, topic: str, **given: str) -> list[int]:
    """The offsets that Spark's tasks would give, by the very code that runs in them."""
    options = SourceOptions.parse(
        {"store": str(store), "topic": topic} | given | ({"archive": str(where)} if where else {})
    )
    schema = describe(options)
    reader = HeadwaterReader(options, schema)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    values = [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]
    assert all(value == b"v%d" % offset for offset, value in values)
    return [offset for offset, _ in values]


def manifest(where: Path, topic: str, partition: int = 0) -> ArchiveManifest:
    path = partition_directory(str(where), topic, partition) / MANIFEST
    return ArchiveManifest.unpack(path.read_bytes(), path)


def visible(where: Path, topic: str, partition: int = 0) -> set[str]:
    """The files that a reader of plain Parquet sees."""
    return {
        path.name for path in partition_directory(str(where), topic, partition).iterdir() if path.name[0] not in "._"
    }


def test_closed_segments_are_archived_with_all_their_columns(
    spark: SparkSession, store: hw.Store, tmp_path: Path
) -> None:
    fill(store, "orders", 35)
    [report] = archive(spark, str(store), "orders", str(tmp_path / "archive"))
    assert (report.start, report.end, report.rows, report.files, report.log_start) == (0, 30, 30, 1, 0)
    [file] = manifest(tmp_path / "archive", "orders").files
    table = pq.read_table(partition_directory(str(tmp_path / "archive"), "orders", 0) / file.name, partitioning=None)
    assert table.column_names == ["offset", "timestamp", "timestamp_ns", "key", "headers", "value"]
    rows = table.drop_columns(["timestamp"]).to_pylist()
    expected = [
        (record.offset, record.timestamp, record.key, record.value, list((record.headers or {}).items()))
        for record in store.topic("orders").partition(0).records(0, 30)
    ]
    assert [
        (row["offset"], row["timestamp_ns"], row["key"], row["value"], row["headers"] or []) for row in rows
    ] == expected
    plain = spark.read.parquet(str(tmp_path / "archive" / "orders"))
    assert {"timestamp", "partition"} <= set(plain.columns)
    assert sorted(row.offset for row in plain.select("offset").collect()) == list(range(30))


def test_a_second_run_adds_what_is_new_and_nothing_twice(spark: SparkSession, store: hw.Store, tmp_path: Path) -> None:
    fill(store, "orders", 20)
    archive(spark, str(store), "orders", str(tmp_path / "archive"))
    [again] = archive(spark, str(store), "orders", str(tmp_path / "archive"))
    assert (again.rows, again.files, again.end) == (0, 0, 20)
    fill(store, "orders", 15)
    [more] = archive(spark, str(store), "orders", str(tmp_path / "archive"), roll=True, file_bytes=1)
    assert (more.rows, more.files, more.end) == (15, 2, 35)
    ranges = [(file.start, file.end) for file in manifest(tmp_path / "archive", "orders").files]
    assert ranges == [(0, 20), (20, 30), (30, 35)]
    assert visible(tmp_path / "archive", "orders") == {
        file.name for file in manifest(tmp_path / "archive", "orders").files
    }


class Death(BaseException):
    """Of the process that archives."""


class MortalDisk(Disk):
    """Dies before its n-th change."""

    def __init__(self, life: int) -> None:
        self.life = life

    def _live(self) -> None:
        self.life -= 1
        if self.life < 0:
            raise Death

    def replace(self, path: Path, content: bytes, *, sync: bool = True) -> None:
        self._live()
        super().replace(path, content, sync=sync)

    def rename(self, source: Path, target: Path) -> None:
        self._live()
        super().rename(source, target)


def test_whenever_a_run_dies_the_next_one_completes_it(
    spark: SparkSession, store: hw.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, "orders", 30)
    deaths = 0
    while True:
        where = tmp_path / f"archive-{deaths}"
        disk = MortalDisk(deaths)
        with monkeypatch.context() as patch:
            patch.setattr(archiving, "REAL_DISK", disk)
            patch.setattr(archives, "REAL_DISK", disk)
            try:
                archive(spark, str(store), "orders", str(where), file_bytes=1)
                break
            except Death:
                deaths += 1
        assert direct(store, where, "orders") == list(range(30))
        archive(spark, str(store), "orders", str(where), file_bytes=1)
        after = manifest(where, "orders")
        assert [(file.start, file.end, file.rows) for file in after.files] == [(0, 10, 10), (10, 20, 10), (20, 30, 10)]
        assert after.pending == ()
        assert visible(where, "orders") == {file.name for file in after.files}
        assert not list(partition_directory(str(where), "orders", 0).glob("_run-*"))
        assert direct(store, where, "orders") == list(range(30))
    assert deaths >= 8


KILLED = """
import sys, headwater as hw
from headwater.spark.jobs.archiving import archive
from tests.spark.conftest import SMALL
spark = hw.spark.session("killed", master="local[1]", config=SMALL)
def told(done, total):
    print("progress", done, flush=True)
archive(spark, sys.argv[1], "orders", sys.argv[2], file_bytes=1, on_progress=told)
print("all", flush=True)
"""


def test_a_killed_process_leaves_an_archive_that_the_next_one_completes(
    spark: SparkSession, store: hw.Store, tmp_path: Path
) -> None:
    fill(store, "orders", 60, roll_every=1)
    where = tmp_path / "archive"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(store), str(where)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(("progress", "all")):
                break
        os.killpg(child.pid, signal.SIGKILL)
    assert line.startswith("progress")
    assert manifest(where, "orders").end < 60
    assert direct(store, where, "orders") == list(range(60))
    archive(spark, str(store), "orders", str(where), trim=True, grace=0.0)
    files = manifest(where, "orders").files
    assert [file.start for file in files[1:]] == [file.end for file in files[:-1]]
    assert (files[0].start, files[-1].end, sum(file.rows for file in files)) == (0, 60, 60)
    assert store.topic("orders").bounds()[0].start == 60
    assert visible(where, "orders") == {file.name for file in files}
    assert direct(store, where, "orders") == list(range(60))


def test_archive_and_log_read_as_one_wherever_the_boundary_is(
    spark: SparkSession, store: hw.Store, tmp_path: Path
) -> None:
    chance = random.Random(7)
    where = tmp_path / "archive"
    end = 0
    for _ in range(8):
        end = fill(store, "orders", chance.randrange(1, 9), roll_every=chance.randrange(2, 6)).bounds()[0].end
        trim = chance.random() < 0.5
        archive(spark, str(store), "orders", str(where), roll=chance.random() < 0.3, trim=trim, grace=0.0)
        for _ in range(6):
            first, last = sorted((chance.randrange(end + 1), chance.randrange(end + 1)))
            offsets = direct(
                store,
                where,
                "orders",
                startingOffsets=json.dumps({"orders": {"0": first}}),
                endingOffsets=json.dumps({"orders": {"0": last}}),
                maxRecordsPerPartition=str(chance.randrange(1, 8)),
            )
            assert offsets == list(range(first, last))
        moment = chance.randrange(end)
        offsets = direct(store, where, "orders", startingTimestamp=f"{_iso(10**18 + moment * 1001)}")
        assert offsets == [n for n in range(end) if 10**18 + n * 1001 >= 10**18 + moment * 1001 // 1000 * 1000]
    frame = spark.read.format("headwater").option("store", str(store)).option("topic", "orders")
    frame = frame.option("archive", str(where)).option("includeHeaders", "true")
    rows = frame.load().orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(end))
    assert [(row.key, row.value, row.partition) for row in rows] == [
        (b"k%d" % (n % 7), b"v%d" % n, 0) for n in range(end)
    ]
    assert [{header.key: bytes(header.value) for header in row.headers or []} for row in rows] == [
        {"n": b"%d" % n} if n % 3 else {} for n in range(end)
    ]


def _iso(ns: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)).isoformat()


def test_a_range_planned_before_the_log_was_trimmed_is_read_from_the_archive(
    spark: SparkSession, store: hw.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_ENOUGH", 1)  # so that batches are passed on as they are read
    topic = fill(store, "orders", 20)
    where = tmp_path / "archive"
    archive(spark, str(store), "orders", str(where))
    fill(store, "orders", 20)
    options = SourceOptions.parse({"store": str(store), "topic": "orders", "archive": str(where)})
    task = OffsetRange("orders", topic.info.uuid.hex(), 0, 5, 40)
    batches = read(task, options, describe(options))
    offsets = next(batches).column("offset").to_pylist()
    archive(spark, str(store), "orders", str(where), roll=True, trim=True, grace=0.0)
    assert topic.bounds()[0].start == 40
    assert offsets + [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(
        range(5, 40)
    )


def test_a_stream_begins_in_the_archive(spark: SparkSession, store: hw.Store, tmp_path: Path, checkpoint: Any) -> None:
    fill(store, "orders", 25)
    where = tmp_path / "archive"
    archive(spark, str(store), "orders", str(where), trim=True, grace=0.0)
    assert store.topic("orders").bounds()[0].start == 20
    source = spark.readStream.format("headwater").option("store", str(store)).option("topic", "orders")
    source = source.option("archive", str(where)).option("startingOffsets", "earliest")
    query = (
        source.load()
        .writeStream.format("parquet")
        .option("checkpointLocation", checkpoint())
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(900)
    assert sorted(row.offset for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(25))


def test_typed_topics_keep_their_columns_also_those_that_came_later(
    spark: SparkSession, store: hw.Store, tmp_path: Path
) -> None:
    schema = pa.schema(
        [("n", pa.uint32()), ("x", pa.float64()), ("tags", pa.list_(pa.string())), ("at", pa.timestamp("ns"))]
    )
    topic = store.create_topic("typed", schema=schema)
    rows = [
        {"n": n, "x": float("nan") if n % 2 else n / 3, "tags": ["a"] * (n % 3), "at": 10**18 + n} for n in range(9)
    ]
    with store.producer("typed") as out:
        for row in rows:
            out.send(row, key=b"k")
    topic.partition(0).roll()
    topic.evolve(schema.append(pa.field("late", pa.string())))
    archive(spark, str(store), "typed", str(tmp_path / "archive"), trim=True, grace=0.0)
    with store.producer("typed") as out:
        out.send(rows[0] | {"late": "yes"}, key=b"k")
    archived = (
        spark.read.format("headwater")
        .option("store", str(store))
        .option("topic", "typed")
        .option("archive", str(tmp_path / "archive"))
        .load()
        .orderBy("_offset")
        .collect()
    )
    assert [(row.n, str(row.x), row.tags, row.late, row["_key"]) for row in archived] == [
        (row["n"], str(row["x"]), row["tags"], None, b"k") for row in rows
    ] + [(0, "0.0", [], "yes", b"k")]


def test_the_log_lets_go_only_after_the_grace_and_of_what_every_group_has_read(
    spark: SparkSession, store: hw.Store, tmp_path: Path
) -> None:
    topic = fill(store, "orders", 30)
    where = str(tmp_path / "archive")
    archive(spark, str(store), "orders", where, trim=True, grace=3600.0)
    assert topic.bounds()[0].start == 0
    group = store.group("slow")
    group.commit(None, {TopicPartition("orders", 0): Commit((topic.info.uuid, 0), 13)})
    [report] = archive(spark, str(store), "orders", where, trim=True, grace=0.0)
    assert (report.log_start, report.protected_by) == (13, ("slow",))
    group.commit(None, {TopicPartition("orders", 0): Commit((topic.info.uuid, 0), 30)})
    [report] = archive(spark, str(store), "orders", where, trim=True, grace=0.0)
    assert (report.log_start, report.protected_by) == (30, ())


def test_the_log_keeps_what_the_archive_no_longer_has(spark: SparkSession, store: hw.Store, tmp_path: Path) -> None:
    topic = fill(store, "orders", 20)
    where = tmp_path / "archive"
    archive(spark, str(store), "orders", str(where))
    path = partition_directory(str(where), "orders", 0) / manifest(where, "orders").files[0].name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(hw.StoreError, match="checksum"):
        archive(spark, str(store), "orders", str(where), trim=True, grace=0.0)
    assert topic.bounds()[0].start == 0


def test_what_cannot_be_archived_or_read_says_why(spark: SparkSession, store: hw.Store, tmp_path: Path) -> None:
    where = tmp_path / "archive"
    store.create_topic("compacted", compact=True)
    with pytest.raises(hw.InvalidConfiguration, match="compacted"):
        archive(spark, str(store), "compacted", str(where))
    topic = fill(store, "orders", 20)
    archive(spark, str(store), "orders", str(where))
    fill(store, "orders", 20)
    topic.partition(0).delete_before(30)
    with pytest.raises(hw.DataLost, match="20 to 30"):
        archive(spark, str(store), "orders", str(where))
    archive(spark, str(store), "orders", str(where), skip_lost=True)
    with pytest.raises(hw.DataLost, match="20 to 30"):
        direct(store, where, "orders")
    assert direct(store, where, "orders", failOnDataLoss="false") == [*range(20), *range(30, 40)]
    with pytest.raises(hw.InvalidConfiguration, match="no archive of topic 'orders'"):
        direct(store, tmp_path / "elsewhere", "orders")
    path = partition_directory(str(where), "orders", 0) / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"end": 40', b'"end": 39'))
    with pytest.raises(hw.HeadwaterError, match="checksum"):
        direct(store, where, "orders")
    path.unlink()
    with pytest.raises(PySparkException, match="manifest is missing"):
        spark.read.format("headwater").option("store", str(store)).option("topic", "orders").option(
            "archive", str(where)
        ).load().collect()


def test_another_topic_of_the_name_is_not_taken_for_the_archived_one(
    spark: SparkSession, store: hw.Store, tmp_path: Path
) -> None:
    fill(store, "orders", 10)
    archive(spark, str(store), "orders", str(tmp_path / "archive"))
    store.delete_topic("orders")
    fill(store, "orders", 10)
    with pytest.raises(hw.InvalidConfiguration, match="another topic"):
        archive(spark, str(store), "orders", str(tmp_path / "archive"))
    with pytest.raises(hw.InvalidConfiguration, match="another topic"):
        direct(store, tmp_path / "archive", "orders")


def test_a_file_that_does_not_read_back_is_not_archived(store: hw.Store, tmp_path: Path) -> None:
    topic = fill(store, "orders", 10)
    piece = archiving._Piece(str(store), "orders", topic.info.uuid.hex(), 0, 0, 10, 1, str(tmp_path), "f.parquet")
    path, _ = archiving._write(piece)
    table = pq.read_table(path, partitioning=None)
    for wrong in (
        table.slice(1),
        table.set_column(5, "value", pa.array([b"v0"] * 10)),
        pa.concat_tables([table, table.slice(9)]),
    ):
        pq.write_table(wrong, path)
        with pytest.raises(hw.StoreError):
            archiving._compare(Path(path), topic, piece)


def test_manifests_survive_a_round_trip(tmp_path: Path) -> None:
    manifest = ArchiveManifest(
        "t", "00", 3, 5, 9, (archives.ArchivedFile("f", 5, 9, 4, 10, 11, None, 12, 13),), ("_run-1", "g")
    )
    assert ArchiveManifest.unpack(manifest.pack(), tmp_path) == manifest
    assert PartitionArchive(tmp_path, replace(manifest, end=8)).end == 8
