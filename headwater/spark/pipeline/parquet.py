"""A table that is a directory of Parquet files and nothing else, for readers that know nothing of Spark.

A batch is decided by one small file beside the table, which names its data files; then they are moved into the table. A
driver that dies in between is followed by one that moves the rest. So each row is there once, whoever looks: never from
a task that was killed, and never again from a batch that Spark repeats.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from headwater.core.errors import InvalidConfiguration, StoreError
from headwater.log.files.disk import REAL_DISK, TEMPORARY, Disk
from headwater.spark.pipeline.staging import DataFile, TableStaging, private_directory

_DECIDED: Final = "decided.json"
_SPARK: Final = "_spark_metadata"


@dataclass(frozen=True, slots=True)
class Decided:
    """The last batch that counts, of which query; and the files of it that are still to be moved."""

    query: str | None
    batch: int
    files: list[tuple[str, str]]


class ParquetTable:
    """The writing side of a directory of Parquet. One query writes to it."""

    def __init__(self, path: Path, disk: Disk = REAL_DISK) -> None:
        self.path = path
        self.private = private_directory(path)
        self._disk = disk

    def open(self, query: str | None, last_batch: int | None) -> None:
        """Bring the directory in order for a query, before it writes: what was decided is there, and nothing else.

        `last_batch` is the last one that the query's checkpoint knows to be done.
        """
        self._disk.make_directory(self.path)
        self._disk.make_directory(self.private)
        for path in self.private.glob(f"*{TEMPORARY}"):
            self._disk.unlink(path)
        decided = self._read()
        theirs = (self.path / _SPARK).is_dir()
        if (theirs and query is None) or (decided is not None and decided.query not in (None, query)):
            raise InvalidConfiguration(_foreign(self.path))
        if theirs and query is not None:
            decided = self._adopt(query)
        if decided is None and last_batch is not None:
            raise InvalidConfiguration(
                f"{self.private / _DECIDED} is missing: it says which batches the table {self.path} has, and without "
                f"it rows could be written twice. Restore it, or begin anew (hw pipeline reset --tables)"
            )
        if decided is None:
            self._write(Decided(None, -1, []))
        elif decided.query is not None:
            self._carry_out(decided)
            TableStaging(self.private, decided.query, self._disk).clear()

    def publish(self, files: Sequence[DataFile], query: str, batch: int) -> bool:
        """Add staged files to the table, unless this batch is there; whether they were added."""
        decided = self._read() or Decided(None, -1, [])
        if decided.query not in (None, query):
            raise StoreError(f"{_foreign(self.path)}: another query has written to it since this one began")
        self._carry_out(decided)
        if new := decided.batch < batch:
            decided = Decided(query, batch, [(file.name, file.path) for file in files])
            self._write(decided)
            self._carry_out(decided)
        TableStaging(self.private, query, self._disk).clear()
        return new

    def _carry_out(self, decided: Decided) -> None:
        """Move what is still to be moved, and note that it is done: doing it twice does no harm."""
        if decided.files and decided.query is not None:
            TableStaging(self.private, decided.query, self._disk).move(decided.files, self.path)
            self._write(Decided(decided.query, decided.batch, []))

    def _read(self) -> Decided | None:
        try:
            content = json.loads((self.private / _DECIDED).read_bytes())
            return Decided(content["query"], content["batch"], [(name, path) for name, path in content["files"]])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{self.private / _DECIDED} is damaged: restore it from a backup ({error})") from error

    def _write(self, decided: Decided) -> None:
        self._disk.replace(self.private / _DECIDED, json.dumps(asdict(decided)).encode())
        self._disk.sync_directory(self.private)

    def _adopt(self, query: str) -> Decided:
        """Take over from Spark's own sink, whose log says which files count. The others go: no reader can tell them.

        Its log is moved away last, so that a death in between is followed by the same again.
        """
        log = self.path / _SPARK
        batches = [path for path in log.iterdir() if path.name.partition(".")[0].isdecimal()]
        counted = {Path(name).name for path in batches for name in _added(path)}
        for path in sorted(self.path.rglob("part-*.parquet")):
            if path.name not in counted:
                self._disk.unlink(path)
        for path in sorted((*self.path.rglob(".part-*.crc"), *log.glob(".*.crc"))):
            self._disk.unlink(path)
        last = max((int(path.name.partition(".")[0]) for path in batches), default=-1)
        decided = Decided(query, last, [])
        self._write(decided)
        self._disk.rename(log, self.private / _SPARK)
        self._disk.sync_directory(self.path)
        return decided


def _added(log: Path) -> list[str]:
    """The paths of the files that one batch of Spark's log adds."""
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()[1:] if line]
    return [unquote(urlsplit(entry["path"]).path) for entry in entries if entry.get("action", "add") == "add"]


def _foreign(path: Path) -> str:
    return (
        f"{path} has the output of another checkpoint, so every row would be in it twice: "
        f"choose another directory, or remove this one (hw pipeline reset --tables)"
    )
