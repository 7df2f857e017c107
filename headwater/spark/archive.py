"""Archives: the older part of a topic as Parquet, and the manifests that say what is in it.

A partition's files are named by its manifest, with the offsets that each holds, and by nothing else: directories are
never listed. A manifest is replaced as a whole, so a reader sees the archive before or after a change. Everything below
a manifest's `end` is read from the archive, everything else from the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from crc32c import crc32c

import headwater.core.compute as pc
from headwater.core.errors import Damaged, InvalidConfiguration
from headwater.core.schema import Schema
from headwater.log.files.disk import REAL_DISK
from headwater.streams import Time, Topic
from headwater.streams.start import Start

if TYPE_CHECKING:
    import pyarrow.parquet as pq

MANIFEST: Final = "_manifest.json"
"""Begins with an underscore, so that Spark and others pass over it when they read the directory as plain Parquet."""
_FORMAT: Final = 1
_CHUNK: Final = 8 * 1024 * 1024

OnLost = Callable[[int, int], None]
"""Called with the first offset that is in no file, and the first behind it that is."""


def archive_path(given: str) -> str:
    """Return the absolute path of an archive, which is the same for every process."""
    if given.startswith("file:"):
        given = unquote(urlsplit(given).path)
    if not given or "://" in given:
        raise InvalidConfiguration(f"an archive must be a directory (an object store can be mounted), not {given!r}")
    return str(Path(given).expanduser().absolute())


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file with all records of a partition from `start` up to, and without, `end`."""

    name: str
    start: int
    end: int
    rows: int
    bytes: int
    crc32c: int
    oldest_ns: int | None
    newest_ns: int | None
    """The least and the greatest timestamp."""
    archived_ns: int
    """When it became part of the archive."""


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """The content of one partition's archive. Offsets in no file were gone before they could be archived."""

    topic: str
    id: str
    """The topic's uuid."""
    partition: int
    start: int
    end: int
    files: tuple[ArchivedFile, ...] = ()
    pending: tuple[str, ...] = ()
    """The files that a run was about to add. The next run removes them if that one died."""

    def pack(self) -> bytes:
        """Return the manifest as JSON, which people can read, with a checksum."""
        content = {"format": _FORMAT, **asdict(self)}
        return json.dumps(content | {"checksum": _checksum(content)}, indent=1).encode() + b"\n"

    @classmethod
    def unpack(cls, content: bytes, where: Path) -> ArchiveManifest:
        """Read what `pack` has written. Raises Damaged."""
        try:
            fields = json.loads(content)
            checksum = fields.pop("checksum")
            if checksum != _checksum(fields):
                raise Damaged("the manifest does not match its checksum: restore it from a backup", file=where)
            if fields.pop("format") != _FORMAT:
                raise InvalidConfiguration(
                    f"{where} was written by a newer version of Headwater: read it with that version"
                )
            files = tuple(ArchivedFile(**file) for file in fields.pop("files"))
            return cls(**fields | {"files": files, "pending": tuple(fields["pending"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"the file is not a manifest of an archive: {error}", file=where) from error


def _checksum(content: dict[str, Any]) -> int:
    return crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


class PartitionArchive:
    """The archive of one partition, as its manifest is at this moment."""

    def __init__(self, directory: Path, manifest: ArchiveManifest) -> None:
        self.directory = directory
        self.manifest = manifest

    @classmethod
    def find(cls, archive: str, topic: str, topic_id: str, partition: int) -> PartitionArchive | None:
        """Return the archive of a partition, or None if nothing of it has been archived yet."""
        directory = partition_directory(archive, topic, partition)
        path = directory / MANIFEST
        try:
            manifest = ArchiveManifest.unpack(path.read_bytes(), path)
        except FileNotFoundError:
            if not directory.parent.is_dir():
                raise InvalidConfiguration(f"{archive} has no archive of topic {topic!r}") from None
            if has_files(directory):
                raise Damaged("the manifest is missing: restore it from a backup", file=path) from None
            return None
        if manifest.id != topic_id:
            raise InvalidConfiguration(
                f"{directory} is the archive of another topic named {topic!r}: give another directory"
            )
        return cls(directory, manifest)

    @classmethod
    def of(cls, archive: str | None, topic: Topic, partition: int) -> PartitionArchive | None:
        """Return the archive of a topic's partition for its readers, or None if they gave no archive."""
        if archive is None:
            return None
        if topic.info.config.compact:
            raise InvalidConfiguration(
                f"topic {topic.name!r} is compacted now: read it without the option archive, since deleted keys would "
                f"come back from the archive"
            )
        return cls.find(archive, topic.name, topic.info.uuid.hex(), partition)

    def replace(self, manifest: ArchiveManifest) -> None:
        """Make `manifest` the one that counts, durably."""
        REAL_DISK.replace(self.directory / MANIFEST, manifest.pack())
        self.manifest = manifest

    # Reading.

    @property
    def start(self) -> int:
        """The first offset that is archived."""
        return self.manifest.start

    @property
    def end(self) -> int:
        """The offset after the last one that is archived."""
        return self.manifest.end

    def batches(
        self, start: int, end: int, schema: Schema, columns: Sequence[str], on_lost: OnLost
    ) -> Iterator[pa.RecordBatch]:
        """The records with `start` <= offset < `end` as the log would give them: all of them, or an error."""
        reached = start
        for file in self.manifest.files:
            if file.end <= start or file.start >= end:
                continue
            if file.start > reached:
                on_lost(reached, file.start)
            yield from _read(self.directory / file.name, max(start, file.start), min(end, file.end), schema, columns)
            reached = file.end
        if reached < end:
            on_lost(reached, end)

    def offset_at(self, timestamp: int, schema: Schema) -> int | None:
        """The least archived offset whose record is not older than `timestamp` (nanoseconds); None if all are older."""
        for file in self.manifest.files:
            if file.newest_ns is not None and file.newest_ns >= timestamp:
                return _offset_at(self.directory / file.name, timestamp, schema)
        return None

    def resolve(self, position: Start, schema: Schema) -> int | None:
        """Return the archived offset that a position means, or None if the log has to resolve it."""
        if position == "earliest":
            return self.start
        if isinstance(position, Time):
            return self.offset_at(position.ns, schema)
        if isinstance(position, int) and self.start <= position < self.end:
            return position
        return None

    def verify(self, file: ArchivedFile) -> None:
        """Raise Damaged unless a file has the bytes that were archived."""
        path = self.directory / file.name
        size, checksum = fingerprint(path)
        if (size, checksum) != (file.bytes, file.crc32c):
            raise Damaged(
                f"the file has {size} bytes with checksum {checksum}, not {file.bytes} with {file.crc32c}", file=path
            )


def partition_directory(archive: str, topic: str, partition: int) -> Path:
    """Return the directory of a partition. Its name gives readers of plain Parquet a column with the number."""
    return Path(archive) / topic / f"partition={partition}"


def has_files(directory: Path) -> bool:
    """Return whether there are archived files, with a manifest or without."""
    return any(directory.glob("*.parquet"))


def fingerprint(path: Path) -> tuple[int, int]:
    """The size of a file and the checksum of its bytes."""
    size = checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            checksum = crc32c(chunk, checksum)
    return size, checksum


# Columns. Times are in microseconds, which every reader of Parquet knows, and beside them in nanoseconds as numbers.


def parquet_schema(schema: Schema) -> pa.Schema:
    """The columns of an archive of records with this schema."""
    time = schema.system("timestamp")
    exact = f"{time}_ns"
    if exact in schema.payload.names:
        raise InvalidConfiguration(
            f"a topic with a column {exact!r} cannot be archived: the archive adds a column of this name"
        )
    columns = []
    for field in schema.full:
        if field.name == time:
            columns += [pa.field(time, pa.timestamp("us", "UTC"), False), pa.field(exact, pa.int64(), False)]
        else:
            columns.append(field)
    return pa.schema(columns)


def to_parquet(table: pa.Table, schema: Schema) -> pa.Table:
    """Records of the log with the columns of an archive."""
    time = schema.system("timestamp")
    number = table.column_names.index(time)
    exact = pc.cast(table[time], pa.int64())
    rounded = pc.cast(table[time], pa.timestamp("us", "UTC"), safe=False)
    table = table.set_column(number, time, rounded).add_column(number + 1, f"{time}_ns", exact)
    return table.cast(parquet_schema(schema))


def from_parquet(table: pa.Table, wanted: pa.Schema, schema: Schema) -> pa.Table:
    """The `wanted` columns of the log from those of an archive. Older files lack columns that came later."""
    time = schema.system("timestamp")
    arrays = []
    for field in wanted:
        name = f"{time}_ns" if field.name == time else field.name
        if name in table.column_names:
            column = table[name]
            arrays.append(column if column.type == field.type else column.cast(field.type))
        else:
            arrays.append(pa.nulls(table.num_rows, field.type))
    return pa.table(arrays, schema=wanted)


def _opened(path: Path) -> pq.ParquetFile:
    import pyarrow.parquet as pq  # here, as every process of Spark imports this file, and few read archives

    return pq.ParquetFile(path, page_checksum_verification=True)


def _read(path: Path, start: int, end: int, schema: Schema, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    offset, time = schema.system("offset"), schema.system("timestamp")
    wanted = schema.project(list(columns))
    try:
        with _opened(path) as file:
            stored = file.schema_arrow.names
            names = [f"{time}_ns" if name == time else name for name in columns]
            chosen = [offset, *(name for name in names if name in stored and name != offset)]
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                bounds = group.column(stored.index(offset)).statistics
                if not group.num_rows or bounds.max < start or bounds.min >= end:
                    continue
                table = file.read_row_group(number, columns=chosen, use_threads=False)
                if bounds.min < start or bounds.max >= end:
                    within = pc.and_(pc.greater_equal(table[offset], start), pc.less(table[offset], end))
                    table = table.filter(within)
                yield from from_parquet(table, wanted, schema).to_batches()
    except (pa.ArrowException, OSError) as error:
        raise Damaged(f"a file of the archive cannot be read: {error}", file=path) from error


def _offset_at(path: Path, timestamp: int, schema: Schema) -> int | None:
    offset, exact = schema.system("offset"), f"{schema.system('timestamp')}_ns"
    with _opened(path) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, columns=[offset, exact], use_threads=False)
            matches = table.filter(pc.greater_equal(table[exact], timestamp))
            if matches.num_rows:
                least: int = matches[offset][0].as_py()
                return least
    return None
