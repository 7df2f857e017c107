"""Staging: data files of a table, kept where no reader of the table looks until they are whole and durable.

A task that dies leaves its file there, and a file that counts is moved to the table by the driver alone. So a reader of
the table's directory meets whole files only, whichever process is killed and whichever task is done again.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.log.files.disk import REAL_DISK, Disk

_INSIDE: Final = "_headwater"
_STAGED: Final = "staged"


def private_directory(table: Path) -> Path:
    """The directory for what readers of `table` must not meet.

    It lies beside the table, because some readers refuse a directory that has anything but Parquet in it. Where nothing
    can be renamed from there to here, it lies within, under a name that most readers pass over.
    """
    inside, beside = table / _INSIDE, table.with_name(f".{table.name}.headwater")
    if inside.is_dir() or beside.is_dir():
        return inside if inside.is_dir() else beside
    above = next(parent for parent in beside.parents if parent.exists())
    return inside if os.path.ismount(table) or not os.access(above, os.W_OK) else beside


@dataclass(frozen=True, slots=True)
class DataFile:
    """A staged file, by the name that it is staged under, and the path that it gets in the table."""

    name: str
    path: str
    """Within the table."""
    rows: int
    size: int


class TableStaging:
    """The staged files of one query."""

    def __init__(self, private: Path, query: str, disk: Disk = REAL_DISK) -> None:
        self.directory = private / _STAGED / query
        self.disk = disk

    def create(self, schema: pa.Schema, folder: str = "") -> StagedFile:
        """A new file, for rows that belong to a folder of the table."""
        self.disk.make_directory(self.directory)
        return StagedFile(self.directory, schema, folder, self.disk)

    def seal(self) -> None:
        """Make the names of finished files durable."""
        self.disk.sync_directory(self.directory)

    def move(self, files: Iterable[tuple[str, str]], table: Path) -> None:
        """Move files to their places in the table, whole as they are. Those that are there already stay."""
        changed = set()
        for name, path in files:
            source, target = self.directory / name, table / path
            self.disk.make_directory(target.parent)
            if source.exists():
                self.disk.rename(source, target)
            elif not target.exists():
                raise FileNotFoundError(f"staged file {source} is missing: it was to be moved to {target}")
            changed.add(target.parent)
        for directory in sorted(changed):
            self.disk.sync_directory(directory)

    def clear(self) -> None:
        """Remove what tasks have left that died, or whose work did not count."""
        if self.directory.is_dir():
            for path in sorted(self.directory.iterdir()):
                self.disk.unlink(path)


class StagedFile:
    """A file of Parquet that is being written."""

    def __init__(self, directory: Path, schema: pa.Schema, folder: str, disk: Disk) -> None:
        self._name = uuid4().hex
        self._path = str(Path(folder, f"part-{self._name}.parquet"))
        self._schema = schema
        self._rows = 0
        self._file = _DiskFile(disk, directory / self._name)
        self._buffer = io.BufferedWriter(self._file, 1024 * 1024)
        self._writer: Any = pq.ParquetWriter(self._buffer, schema, compression="zstd")

    def write(self, columns: list[pa.Array]) -> None:
        """Add rows."""
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def finish(self) -> DataFile:
        """Write the rest, and return when the device has all of it."""
        self._writer.close()
        self._buffer.flush()
        self._file.sync()
        size = self._file.tell()
        self._file.let_go()
        return DataFile(self._name, self._path, self._rows, size)

    def abandon(self) -> None:
        """Write no more. The rows written so far stay staged until they are cleared."""
        self._file.let_go()


class _DiskFile(io.RawIOBase):
    """A new file behind a disk, for pyarrow to write to."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._fd = disk.create(path)
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._fd >= 0:  # else pyarrow puts an end to a file that was abandoned
            self._disk.writev(self._fd, [view], self._position, len(view))
            self._position += len(view)
        return len(view)

    def sync(self) -> None:
        """Return when the device has what was written."""
        self._disk.sync(self._fd)

    def let_go(self) -> None:
        """Close the descriptor."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)
