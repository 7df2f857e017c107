"""A backend of one's own: a store in an SQLite file, opened by `hw.open("sqlite://events.db")`.

    python -m examples.sqlite_store /tmp/somewhere

A package offers its scheme by an entry point, and `hw.open` finds it:

    [project.entry-points."headwater.stores"]
    sqlite = "examples.sqlite_store:open_sqlite"

The classes that users hold are written against the ports in `headwater/streams/ports.py`; a backend implements
`StoreBackend`. This one begins with the parts for memory, and overrides what it keeps elsewhere: topics, positions,
and a journal of each partition, which is replayed when the partition is opened. That has its limits:

- A log has to fit in memory, and its journal shrinks only when the topic is deleted.
- One process has the file open at a time, and one store in it.
- Each append is durable when it returns, whatever the topic's mode. Positions are not synced, as in a directory.
- A transaction that a crash interrupts can be in some of its partitions only, because its ledger is in memory.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import headwater as hw
from headwater.core.errors import OpenFailed, StoreInUse
from headwater.core.presets import DEFAULT, Preset
from headwater.core.schema import Schema
from headwater.embedded.memory_catalog import MemoryCatalog
from headwater.embedded.memory_group import MemoryGroup
from headwater.embedded.memory_store import MemoryBackend
from headwater.log import Appended, CompactionReport, Frame, MemoryPartition
from headwater.log.clock import REAL_CLOCK, Clock
from headwater.log.format.frame import StoredFrame, read_header
from headwater.streams.catalog import TopicInfo, partition_uuid
from headwater.streams.configuring import partition_config
from headwater.streams.group import TopicKey
from headwater.streams.position import Position

SCHEME = "sqlite://"
TABLES = """
CREATE TABLE IF NOT EXISTS topics (name TEXT PRIMARY KEY, content BLOB);
CREATE TABLE IF NOT EXISTS schemas (topic BLOB, id TEXT, content BLOB, PRIMARY KEY (topic, id));
CREATE TABLE IF NOT EXISTS journal (
    number INTEGER PRIMARY KEY, topic BLOB, partition INTEGER, operation TEXT, content, now_ns INTEGER
);
CREATE INDEX IF NOT EXISTS journal_of_partition ON journal (topic, partition, number);
CREATE TABLE IF NOT EXISTS positions (
    name TEXT, topic BLOB, partition INTEGER, sequence INTEGER, position INTEGER, committed_ns INTEGER,
    generation INTEGER, PRIMARY KEY (name, topic, partition)
);
"""


class Database:
    """One connection to the file, for all threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.RLock()
        try:
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.executescript(f"BEGIN EXCLUSIVE; {TABLES} COMMIT;")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StoreInUse(f"{path} cannot be opened: another store has it open") from None
            raise OpenFailed(path, OSError(str(error))) from error

    def write(self, statement: str, *values: Any, durable: bool = True) -> None:
        """Execute a statement, and sync it if it is to be `durable`; raises StoreError where the disk refuses it."""
        try:
            with self._mutex:
                if not self._connection.in_transaction:
                    self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._connection.execute(statement, values)
        except sqlite3.Error as error:
            raise hw.StoreError(f"{self.path}: {error}; nothing was written") from error

    def read(self, query: str, *values: Any) -> list[Any]:
        """Return all rows."""
        try:
            with self._mutex:
                return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise hw.StoreError(f"{self.path}: {error}; check the file with PRAGMA integrity_check") from error

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make several statements happen together or not at all."""
        with self._mutex:
            self.write("BEGIN")
            try:
                yield
            except BaseException:
                self.write("ROLLBACK")
                raise
            self.write("COMMIT")

    def close(self) -> None:
        """Give the file back."""
        with self._mutex:
            self._connection.close()


class SqliteCatalog(MemoryCatalog):
    """Topics in memory as in the file: a change is written before anyone sees it."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        for name, content in database.read("SELECT name, content FROM topics"):
            info = TopicInfo.from_json(content, Path(name) / "topic.json")
            self._topics[name] = info
            for (schema,) in database.read("SELECT content FROM schemas WHERE topic = ?", info.uuid):
                self.schemas(info).put(Schema.deserialize(schema))

    def create(self, info: TopicInfo, schema: Schema) -> None:
        super().create(info, schema)
        try:
            self._save(self.get(info.name))
        except BaseException:
            super().delete(info.name)
            raise

    def _change(self, name: str, change: Callable[[TopicInfo], TopicInfo]) -> TopicInfo:
        def saved(info: TopicInfo) -> TopicInfo:
            changed = change(info)
            self._save(changed)
            return changed

        return super()._change(name, saved)

    def _save(self, info: TopicInfo) -> None:
        with self._database.together():
            for schema_id in info.schemas:
                schema = self.schemas(info).get(schema_id)
                if not schema.raw:
                    row = (info.uuid, f"{schema_id:016x}", schema.serialize())
                    self._database.write("INSERT OR IGNORE INTO schemas VALUES (?, ?, ?)", *row)
            self._database.write("INSERT OR REPLACE INTO topics VALUES (?, ?)", info.name, info.to_json())

    def delete(self, name: str) -> bytes:
        uuid = self.get(name).uuid
        with self._database.together():
            self._database.write("DELETE FROM topics WHERE name = ?", name)
            for table in ("schemas", "journal"):
                self._database.write(f"DELETE FROM {table} WHERE topic = ?", uuid)
        return super().delete(name)


class ReplayClock(Clock):
    """Tells the time at which an entry of a journal was written."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.time_ns = clock.now_ns()

    def now_ns(self) -> int:
        return self.time_ns

    def boot_ns(self) -> int:
        return self._clock.boot_ns()

    def boot_id(self) -> str:
        return self._clock.boot_id()


class SqlitePartition(MemoryPartition):
    """A log in memory, and each change of it as a row of the journal."""

    def __init__(self, database: Database, topic: bytes, number: int, **parts: Any) -> None:
        super().__init__(**parts, uuid=partition_uuid(topic, number))
        self._database = database
        self._key = (topic, number)
        clock = self._clock
        self._clock = self._replayed = ReplayClock(clock)
        rows = "SELECT operation, content, now_ns FROM journal WHERE topic = ? AND partition = ? ORDER BY number"
        for operation, content, now_ns in database.read(rows, *self._key):
            self._replayed.time_ns = now_ns
            match operation:
                case "append":
                    super()._append(self._frames(content))
                case "truncate":
                    super().truncate(content)
                case "delete_before":
                    super().delete_before(content)
                case "roll":
                    super().roll()
                case "compact":
                    super().compact()
        self._clock = clock

    def _frames(self, content: bytes) -> tuple[Frame, ...]:
        """Return the frames of one append."""
        frames: list[Frame] = []
        data, position = pa.py_buffer(content), 0
        while position < len(content):
            header = read_header(memoryview(content)[position:])
            stored = StoredFrame(header, data.slice(position, header.length), self.schemas.get(header.schema_id))
            frames.append(stored.unstamped())
            position += header.length
        return tuple(frames)

    def _note(self, operation: str, content: Any = None) -> None:
        if self._clock is not self._replayed:
            row = (*self._key, operation, content, self._clock.now_ns())
            self._database.write("INSERT INTO journal VALUES (NULL, ?, ?, ?, ?, ?)", *row)

    def _append(self, group: tuple[Frame, ...]) -> Appended:
        with self._open():
            appended = super()._append(group)
            if not appended.duplicate:
                try:
                    stored = self._segments[-1].frames[-len(group) :]
                    self._note("append", b"".join(frame.data for frame in stored))
                except BaseException:
                    super().truncate(appended.base_offset)
                    raise
            return appended

    def roll(self) -> bool:
        with self._open():
            rolled = super().roll()
            if rolled:
                self._note("roll")
            return rolled

    def truncate(self, offset: int) -> None:
        with self._open():
            super().truncate(offset)
            self._note("truncate", offset)

    def delete_before(self, offset: int) -> None:
        with self._open():
            super().delete_before(offset)
            self._note("delete_before", offset)

    def compact(self) -> CompactionReport:
        with self._open():
            report = super().compact()
            if report.rewritten:
                self._note("compact")
            return report


class SqliteGroup(MemoryGroup):
    """A group whose members are in memory, and whose positions are in the file."""

    def __init__(self, database: Database, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self._database = database
        for row in database.read("SELECT * FROM positions WHERE name = ?", name):
            position = Position(*row[1:])
            self._positions[position.topic, position.partition] = position

    def _set(self, key: TopicKey, offset: int, generation: int, before: Position | None = None) -> None:
        super()._set(key, offset, generation, before)
        row = (self.name, *self._positions[key])
        statement = "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._database.write(statement, *row, durable=False)

    def _unset(self, key: TopicKey) -> None:
        super()._unset(key)
        condition = "name = ? AND topic = ? AND partition = ?"
        self._database.write(f"DELETE FROM positions WHERE {condition}", self.name, *key, durable=False)


class SqliteBackend(MemoryBackend):
    """Topics, partitions and positions in an SQLite file; members and transactions in memory."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(clock, partial(self._open_group, clock=clock))
        self.catalog = SqliteCatalog(database)
        self._database = database

    def __str__(self) -> str:
        return f"{SCHEME}{self._database.path}"

    def _open_group(self, name: str, clock: Clock) -> SqliteGroup:
        return SqliteGroup(self._database, name, clock)

    def open_partition(self, info: TopicInfo, number: int) -> SqlitePartition:
        parts = {"config": partition_config(info.config), "schemas": self.catalog.schemas(info)}
        return SqlitePartition(self._database, info.uuid, number, **parts, clock=self.clock, elapsed=self.elapsed)

    def has_group(self, name: str) -> bool:
        return name in self.group_names()

    def group_names(self) -> list[str]:
        stored = self._database.read("SELECT DISTINCT name FROM positions")
        return sorted({name for (name,) in stored}.union(super().group_names()))

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._database.close()


def open_sqlite(where: str, defaults: Preset = DEFAULT, /, *, clock: Clock = REAL_CLOCK) -> hw.Store:
    """Open the store of an address, `sqlite://` and the path of the file, which is made if need be."""
    path = Path(where.removeprefix(SCHEME))
    return hw.Store(SqliteBackend(Database(path), clock), defaults)


def main(directory: Path) -> None:
    """Write to a store in an SQLite file, and read it after it was opened again."""
    directory.mkdir(parents=True, exist_ok=True)
    address = f"{SCHEME}{directory / 'events.db'}"
    with open_sqlite(address) as store:
        store.create_topic("orders", exist_ok=True)
        with store.producer("orders") as out:
            out.send(b"two teas", key=b"cust-7")
    with open_sqlite(address) as store, store.consumer("orders", group="billing") as inbox:
        for record in inbox.poll(timeout=10):
            sys.stdout.write(f"{record.key!r} ordered {record.value!r}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
