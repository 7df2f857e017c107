"""Archiving: closed segments become Parquet, proven against the log row for row, and only then may the log let go.

A run notes in the manifest what it is about to add, has tasks write files under names of their own, renames each and
names it in the manifest. So a run that dies leaves nothing that counts, and the next one removes what it left.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import headwater.core.compute as pc
from headwater.core.errors import DataLost, InvalidConfiguration, PartitionBusy, SchemaError, StoreError
from headwater.log.files.disk import REAL_DISK
from headwater.log.files.lock import PartitionLock
from headwater.spark.address import open_existing
from headwater.spark.archive import (
    MANIFEST,
    ArchivedFile,
    ArchiveManifest,
    PartitionArchive,
    archive_path,
    fingerprint,
    has_files,
    parquet_schema,
    partition_directory,
    to_parquet,
)
from headwater.spark.jobs.tasks import OnProgress, run_pieces
from headwater.streams import Store, Topic, TopicPartition
from headwater.streams.steward import readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCK: Final = "_lock"
_ATTEMPTS: Final = 5
_GROUP_BYTES: Final = 32 * 1024 * 1024
"""The size of a row group, about: a reader holds one of them in memory at a time."""
FILE_BYTES: Final = 256 * 1024 * 1024
"""The size of a file, about: segments are put together until they are as large as that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPartition:
    """The result of archiving one partition."""

    topic: str
    partition: int
    start: int
    end: int
    """The archive holds these offsets now."""
    files: int
    rows: int
    bytes: int
    """The number of files, rows and bytes that this run added."""
    log_start: int
    """The first offset of the log now."""
    protected_by: tuple[str, ...]
    """Groups that have not read what else would have been trimmed."""


@dataclass(frozen=True)
class _Piece:
    """Offsets of a partition that become one file, written under a name for the time being."""

    store: str
    topic: str
    id: str
    partition: int
    start: int
    end: int
    size: int
    scratch: str
    name: str


def archive(
    spark: SparkSession,
    store: str,
    topic: str,
    path: str,
    *,
    roll: bool = False,
    skip_lost: bool = False,
    trim: bool = False,
    grace: float = 86400.0,
    file_bytes: int = FILE_BYTES,
    on_progress: OnProgress | None = None,
) -> list[ArchivedPartition]:
    """Bring the archive of a topic up to its last closed segment. It may be run again after any failure.

    `roll` closes the growing segments first. `skip_lost` goes on where records were removed before they were archived.
    `trim` removes from the log what has been in the archive for `grace` seconds and every group has read.
    """
    path = archive_path(path)
    with open_existing(store) as opened, ExitStack() as stack:
        pinned = opened.topic(topic).pinned()
        if pinned.info.config.compact:
            raise InvalidConfiguration(
                f"topic {topic!r} is compacted and cannot be archived: deleted keys would come back from the archive"
            )
        parquet_schema(pinned.schema)  # raises for what cannot be archived
        stack.enter_context(_locked(Path(path) / topic))
        run = _Run(spark, store, opened, pinned, path, file_bytes)
        if roll:
            for partition in pinned.partitions():
                partition.roll()
        run.begin(skip_lost)
        run.write(on_progress)
        protected = run.trim(grace) if trim else {}
        return run.report(protected)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Allow one run at a time: a second one would remove the unfinished files of the first."""
    REAL_DISK.make_directory(directory)
    lock = PartitionLock(directory / _LOCK)
    try:
        try:
            lock.acquire(0)
        except PartitionBusy as busy:
            raise StoreError(f"process {busy.pid} is archiving to {directory} at this moment") from None
        yield
    finally:
        lock.close()


class _Run:
    """One run over all partitions of a topic."""

    def __init__(self, spark: SparkSession, address: str, store: Store, topic: Topic, path: str, size: int) -> None:
        self._spark = spark
        self._address = address
        self._store = store
        self._topic = topic
        self._id = topic.info.uuid.hex()
        self._path = path
        self._file_bytes = size
        self._name = os.urandom(4).hex()
        self._archives: list[PartitionArchive] = []
        self._pieces: list[_Piece] = []
        self._added: list[list[ArchivedFile]] = []

    def begin(self, skip_lost: bool) -> None:
        """Clear away what a dead run has left, and note what this one is going to write."""
        for number in range(self._topic.info.partitions):
            archive = self._opened(number)
            self._archives.append(archive)
            self._added.append([])
            self._clear(archive)
            pieces = self._plan(archive, number, skip_lost)
            if pieces:
                pending = (*archive.manifest.pending, _scratch(self._name), *(piece.name for piece in pieces))
                archive.replace(replace(archive.manifest, pending=pending))
                REAL_DISK.mkdir(archive.directory / _scratch(self._name))
            self._pieces += pieces

    def _opened(self, number: int) -> PartitionArchive:
        directory = partition_directory(self._path, self._topic.name, number)
        if not (directory / MANIFEST).exists() and not has_files(directory):
            REAL_DISK.make_directory(directory)
            start = self._topic.partition(number).bounds().start
            empty = ArchiveManifest(self._topic.name, self._id, number, start, start)
            PartitionArchive(directory, empty).replace(empty)
        archive = PartitionArchive.find(self._path, self._topic.name, self._id, number)
        assert archive is not None
        return archive

    def _clear(self, archive: PartitionArchive) -> None:
        """Remove what is pending. Where a task of a dead run is still at work, that is left to the next time."""
        left = []
        for name in archive.manifest.pending:
            if name.startswith("_"):
                if not _removed(archive.directory / name):
                    left.append(name)
            elif all(name != file.name for file in archive.manifest.files):
                (archive.directory / name).unlink(missing_ok=True)
        if archive.manifest.pending != tuple(left):
            archive.replace(replace(archive.manifest, pending=tuple(left)))

    def _plan(self, archive: PartitionArchive, number: int, skip_lost: bool) -> list[_Piece]:
        """The closed segments behind the archive's end, put together to files."""
        partition = self._topic.partition(number)
        segments = partition.segments()
        start, end, durable_end = partition.bounds()
        begin = archive.end
        if end < begin:
            raise StoreError(
                f"{self._topic_partition(number)}: the log was cut: it ends at {end}, and its archive at {begin}"
            )
        if begin < start:
            if not skip_lost:
                why = f"the log starts at {start}; to archive the rest use --skip-lost"
                raise DataLost(self._topic.name, number, begin, start, why)
            begin = start
        closed = [
            (segment.size, after.base) for segment, after in pairwise(segments) if begin < after.base <= durable_end
        ]
        pieces: list[_Piece] = []
        size = 0
        for count, (segment_size, stop) in enumerate(closed, start=1):
            size += segment_size
            if size >= self._file_bytes or count == len(closed):
                pieces.append(self._piece(archive, number, begin, stop, size))
                begin, size = stop, 0
        return pieces

    def _piece(self, archive: PartitionArchive, number: int, start: int, end: int, size: int) -> _Piece:
        scratch = str(archive.directory / _scratch(self._name))
        name = f"{start:020}-{end:020}-{self._name}.parquet"
        return _Piece(self._address, self._topic.name, self._id, number, start, end, size, scratch, name)

    def _topic_partition(self, number: int) -> TopicPartition:
        return TopicPartition(self._topic.name, number)

    # Writing.

    def write(self, on_progress: OnProgress | None) -> None:
        """Have all files written, and name each in its manifest as soon as those before it are there."""
        total = sum(piece.size for piece in self._pieces)
        done = 0
        waiting: dict[int, tuple[Path, ArchivedFile]] = {}
        next_of = {piece.partition: number for number, piece in reversed(list(enumerate(self._pieces)))}
        for number, (scratch, file) in run_pieces(self._spark, _write, self._pieces):
            waiting[number] = (Path(scratch), file)
            done += self._pieces[number].size
            if on_progress is not None:
                on_progress(done, total)
            partition = self._pieces[number].partition
            while next_of[partition] in waiting:
                self._publish(partition, *waiting.pop(next_of[partition]))
                next_of[partition] += 1
        for archive in self._archives:
            self._clear(archive)

    def _publish(self, number: int, scratch: Path, file: ArchivedFile) -> None:
        archive = self._archives[number]
        REAL_DISK.rename(scratch, archive.directory / file.name)
        REAL_DISK.sync_directory(archive.directory)
        file = replace(file, archived_ns=time.time_ns())
        files = (*archive.manifest.files, file)
        archive.replace(replace(archive.manifest, end=file.end, files=files))
        self._added[number].append(file)

    # Trimming.

    def trim(self, grace: float) -> dict[int, tuple[str, ...]]:
        """Remove from the log what is in the archive long enough; which groups have kept how much from going."""
        limits = {number: self._limit(number, grace) for number in range(len(self._archives))}
        self._verify(limits)
        protected = {}
        groups = {name: self._store.group(name).describe() for name in self._store.group_names()}
        for number, limit in limits.items():
            partition = self._topic.partition(number)
            positions = readers(groups, self._topic.info.uuid, self._topic_partition(number))
            allowed = min([limit, *positions.values()])
            if allowed > partition.bounds().start:
                partition.delete_before(allowed)
            protected[number] = tuple(sorted(name for name, position in positions.items() if position < limit))
        return protected

    def _limit(self, number: int, grace: float) -> int:
        """Up to where the log is not needed any more, as far as the archive goes."""
        limit = self._archives[number].start
        for file in self._archives[number].manifest.files:
            if file.archived_ns > time.time_ns() - int(grace * 1e9):
                break
            limit = file.end
        return limit

    def _verify(self, limits: dict[int, int]) -> None:
        """A last look at the files that are going to be the only place of their records."""
        bounds = self._topic.bounds()
        files = [
            (archive, file)
            for number, archive in enumerate(self._archives)
            for file in archive.manifest.files
            if bounds[number].start < file.end <= limits[number]
        ]
        for _ in run_pieces(self._spark, _verify, files):
            pass

    def report(self, protected: dict[int, tuple[str, ...]]) -> list[ArchivedPartition]:
        """Return the result for each partition."""
        bounds = self._topic.bounds()
        return [
            ArchivedPartition(
                topic=self._topic.name,
                partition=number,
                start=archive.start,
                end=archive.end,
                files=len(self._added[number]),
                rows=sum(file.rows for file in self._added[number]),
                bytes=sum(file.bytes for file in self._added[number]),
                log_start=bounds[number].start,
                protected_by=protected.get(number, ()),
            )
            for number, archive in enumerate(self._archives)
        ]


def _scratch(run: str) -> str:
    return f"_run-{run}"


def _removed(directory: Path) -> bool:
    """Remove a directory, to which a task may be adding; whether it is gone."""
    for _ in range(_ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return True
        time.sleep(0.1)
    return False


# In tasks.


def _verify(task: tuple[PartitionArchive, ArchivedFile]) -> None:
    archive, file = task
    archive.verify(file)


def _write(piece: _Piece) -> tuple[str, ArchivedFile]:
    """Write a file, make it durable, and read it back beside the log."""
    with open_existing(piece.store) as store:
        topic = store.topic(piece.topic)
        if topic.info.uuid.hex() != piece.id:
            raise DataLost(piece.topic, piece.partition, piece.start, piece.end, "the topic was deleted and made again")
        # Another attempt may still be at work. The directory is the driver's to make: when it is gone, so is the run.
        path = Path(piece.scratch) / f"{os.urandom(4).hex()}-{piece.name}"
        try:
            rows, oldest, newest = _write_parquet(path, topic, piece)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SchemaError(f"topic {piece.topic!r} cannot be stored as Parquet: {error}") from error
        REAL_DISK.sync_directory(path.parent)
        _compare(path, topic, piece)
    size, checksum = fingerprint(path)
    return str(path), ArchivedFile(piece.name, piece.start, piece.end, rows, size, checksum, oldest, newest, 0)


def _write_parquet(path: Path, topic: Topic, piece: _Piece) -> tuple[int, int | None, int | None]:
    schema = topic.schema
    columns = parquet_schema(schema)
    rising = [schema.system("offset"), schema.system("timestamp"), f"{schema.system('timestamp')}_ns"]
    oldest = newest = None
    rows = 0
    with (
        path.open("wb") as file,
        pq.ParquetWriter(
            file,
            columns,
            compression="zstd",
            write_page_checksum=True,
            use_dictionary=[name for name in columns.names if name not in rising],
            column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
        ) as writer,
    ):
        for table in _groups(topic, piece):
            times = pc.min_max(table[f"{schema.system('timestamp')}_ns"]).as_py()
            oldest = times["min"] if oldest is None else min(oldest, times["min"])
            newest = times["max"] if newest is None else max(newest, times["max"])
            rows += table.num_rows
            writer.write_table(table, row_group_size=table.num_rows)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return rows, oldest, newest


def _groups(topic: Topic, piece: _Piece) -> Iterator[pa.Table]:
    """The records of a piece as row groups: the same ones every time."""
    schema = topic.schema
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in topic.scan(piece.start, piece.end, partitions=[piece.partition], columns=schema.full.names):
        if batch.num_rows:
            gathered.append(batch)
            size += batch.nbytes
        if size >= _GROUP_BYTES:
            yield to_parquet(pa.Table.from_batches(gathered), schema)
            gathered, size = [], 0
    if gathered:
        yield to_parquet(pa.Table.from_batches(gathered), schema)


def _compare(path: Path, topic: Topic, piece: _Piece) -> None:
    """Raise unless a file has the records of the log, every column of every row."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        number = -1
        for number, expected in enumerate(_groups(topic, piece)):
            group = file.read_row_group(number, use_threads=False) if number < file.num_row_groups else None
            if group is None or group.column_names != expected.column_names:
                raise StoreError(f"{path} does not have all records of {piece.topic}/{piece.partition}")
            for name in expected.column_names:
                if not _same(expected[name], group[name]):
                    raise StoreError(
                        f"{path}: column {name!r} of {piece.topic}/{piece.partition}, offsets {piece.start} to "
                        f"{piece.end}, does not read back as it was written: nothing is archived"
                    )
        if file.num_row_groups != number + 1:
            raise StoreError(f"{path} has more records than {piece.topic}/{piece.partition}")


def _same(expected: pa.ChunkedArray, actual: pa.ChunkedArray) -> bool:
    if actual.type != expected.type:
        actual = actual.cast(expected.type)
    if expected.equals(actual):
        return True
    if pa.types.is_floating(expected.type):  # no NaN equals another: compare their bits
        bits: dict[Any, Any] = {pa.float64(): pa.int64(), pa.float32(): pa.int32(), pa.float16(): pa.int16()}
        kind = bits[expected.type]
        return bool(_viewed(expected, kind).equals(_viewed(actual, kind)))
    return pa.types.is_nested(expected.type) and repr(expected.to_pylist()) == repr(actual.to_pylist())


def _viewed(array: pa.ChunkedArray, kind: Any) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.view(kind) for chunk in array.chunks], kind)
