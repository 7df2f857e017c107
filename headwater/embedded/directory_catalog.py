"""The catalog of a store in a directory.

A topic is a directory with a `topic.json`. It comes into being by one rename of a finished directory and goes by one
rename away, so it is there or not, never half.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from headwater.core.errors import HeadwaterError, OpenFailed, PartitionDeleted, TopicExists, UnknownTopic, WriteFailed
from headwater.core.names import check_name
from headwater.core.schema import Schema
from headwater.log import SchemaDirectory, Schemas
from headwater.log.files.disk import TEMPORARY, Disk, read_plain
from headwater.log.files.open_files import open_file
from headwater.log.files.refusals import opening, writing
from headwater.streams.catalog import TOPIC_FILE, TopicInfo, check_kept_once
from headwater.streams.topic import altered, evolved

_SCHEMAS: Final = "schemas"
_UNFINISHED: Final = ".new-"
_DELETED: Final = ".deleted-"
_SETTLED_NS: Final = 100_000_000
"""A file that was changed just now may change again within one tick of its clock, and even get the same inode."""


class DirectoryCatalog:
    """Topics in the subdirectories of a directory."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.directory = directory
        self._root = os.fspath(directory)
        self._disk = disk
        self._schemas: dict[bytes, Schemas] = {}
        self._cache: dict[str, tuple[tuple[int, int], TopicInfo]] = {}

    def path(self, name: str) -> Path:
        """Return the directory of a topic."""
        return self.directory / name

    def names(self) -> list[str]:
        with opening(self.directory), os.scandir(self.directory) as entries:
            return sorted(
                entry.name
                for entry in entries
                if not entry.name.startswith(".") and os.path.exists(os.path.join(entry.path, TOPIC_FILE))
            )

    def get(self, name: str) -> TopicInfo:
        # For every batch that is written: a path in text and a name that is known cost a third of the time.
        cached = self._cache.get(name)
        if cached is None:
            check_name("topic", name, internal=True)
        file = f"{self._root}/{name}/{TOPIC_FILE}"
        try:
            status = os.stat(file)
            identity = (status.st_ino, status.st_mtime_ns)
            if cached is not None and cached[0] == identity:
                return cached[1]
            path = Path(file)
            info = TopicInfo.from_json(read_plain(path), path)
        except (FileNotFoundError, NotADirectoryError):
            raise UnknownTopic(name, str(self.directory)) from None
        except OSError as error:
            raise OpenFailed(Path(file), error) from error
        if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
            self._cache[name] = (identity, info)
        return info

    recall = refresh = get

    def schemas(self, info: TopicInfo) -> Schemas:
        schemas = self._schemas.get(info.uuid)
        if schemas is None:
            schemas = self._schemas[info.uuid] = SchemaDirectory(self.path(info.name) / _SCHEMAS, self._disk)
        return schemas

    def create(self, info: TopicInfo, schema: Schema) -> None:
        check_kept_once(info.name, info.replication, info.min_insync)
        with self._held(fcntl.LOCK_SH):
            unfinished = self.directory / f"{_UNFINISHED}{info.uuid.hex()}"
            try:
                self._disk.make_directory(unfinished)
                SchemaDirectory(unfinished / _SCHEMAS, self._disk).put(schema)
                self._disk.replace(unfinished / TOPIC_FILE, info.to_json())
                self._disk.sync_directory(unfinished)
                # A directory cannot be renamed over one that has files: this is where the first one wins.
                self._disk.rename(unfinished, self.path(info.name))
            except OSError as error:
                shutil.rmtree(unfinished, ignore_errors=True)
                if self.path(info.name).exists():
                    raise TopicExists(info.name, str(self.directory)) from None
                if isinstance(error, HeadwaterError):
                    raise
                raise WriteFailed(self.path(info.name), error) from error
            try:
                self._disk.sync_directory(self.directory)
            except OSError as error:
                self._remove(info)  # a power loss might: a caller that was told of an error must not find it later
                raise WriteFailed(self.path(info.name), error) from error

    def alter(
        self,
        name: str,
        partitions: int | None,
        options: Mapping[str, Any],
        replication: int | None = None,
        min_insync: int | None = None,
    ) -> TopicInfo:
        return self.change(name, lambda info: altered(info, partitions, options, replication, min_insync))

    def evolve(self, name: str, schema: Schema) -> TopicInfo:
        return self.change(name, lambda info: evolved(info, schema, self.schemas(info)))

    def change(self, name: str, change: Callable[[TopicInfo], TopicInfo]) -> TopicInfo:
        """Replace a topic's description by what `change` makes of it, with nobody else changing it meanwhile."""
        with self._locked(name):
            info = self.get(name)
            changed = change(info)
            if changed != info:
                self._replace(changed, info)
            return changed

    def _replace(self, info: TopicInfo, before: TopicInfo) -> None:
        """Describe a topic anew, durably, or as before."""
        path = self.path(info.name)
        with writing(path):
            self._disk.replace(path / TOPIC_FILE, info.to_json())
            try:
                self._disk.sync_directory(path)
            except OSError:
                with suppress(OSError):
                    self._disk.replace(path / TOPIC_FILE, before.to_json())
                raise

    def delete(self, name: str) -> bytes:
        with self._locked(name):
            info = self.get(name)
            with writing(self.path(name)):
                gone = self._rename_away(info)
                try:
                    self._disk.sync_directory(self.directory)
                except OSError:
                    with suppress(OSError):
                        self._disk.rename(gone, self.path(name))
                    raise
        shutil.rmtree(gone, ignore_errors=True)
        return info.uuid

    def make_log_directory(self, info: TopicInfo, log: str) -> Path:
        """Return the directory of one of the topic's logs, created if need be.

        Raises UnknownTopic, and PartitionDeleted if another topic has the name by now. Only this call creates it, while
        nobody can delete the topic: a directory left in the place of a deleted topic would keep its name taken.
        """
        path = self.path(info.name) / log
        if not path.is_dir():
            with self._locked(info.name), opening(path):
                if self.get(info.name).uuid != info.uuid:
                    raise PartitionDeleted(f"topic {info.name!r}")
                self._disk.make_directory(path)
        return path

    def _rename_away(self, info: TopicInfo) -> Path:
        gone = self.directory / f"{_DELETED}{info.uuid.hex()}"
        self._disk.rename(self.path(info.name), gone)
        return gone

    def _remove(self, info: TopicInfo) -> None:
        """Take back a topic that was made just now, as far as that can be done."""
        with suppress(OSError):
            shutil.rmtree(self._rename_away(info), ignore_errors=True)

    def drop(self, name: str, logs: Iterable[str], uuid: bytes) -> None:
        """Remove the directories of some logs of a topic, which has this uuid, in this order; the topic stays."""
        for log in logs:
            path = self.path(name) / log
            if path.exists():
                gone = self.directory / f"{_DELETED}{uuid.hex()}-{log}"
                self._disk.rename(path, gone)
                self._disk.sync_directory(self.path(name))
                shutil.rmtree(gone, ignore_errors=True)

    def sweep(self, *, dry_run: bool = False) -> int:
        if not dry_run:
            self._sweep_files()
        return self.sweep_topics(dry_run=dry_run)

    def sweep_topics(self, *, dry_run: bool = False) -> int:
        """Remove what is left of topics that were made or deleted by processes that died; return their number."""
        with self._held(fcntl.LOCK_EX | fcntl.LOCK_NB) as alone, opening(self.directory):
            leftovers = [
                entry.path
                for entry in os.scandir(self.directory)
                if entry.name.startswith(_DELETED) or (alone and entry.name.startswith(_UNFINISHED))
            ]
            for path in leftovers if not dry_run else ():
                shutil.rmtree(path, ignore_errors=True)
        return len(leftovers)

    def _sweep_files(self) -> None:
        """Remove files that were left behind by processes that died while they changed a topic."""
        for name in self.names():
            if any(file.endswith(TEMPORARY) for file in os.listdir(self.path(name))):
                with suppress(UnknownTopic), self._locked(name):
                    for leftover in self.path(name).glob(f"*{TEMPORARY}"):
                        self._disk.unlink(leftover)

    @contextmanager
    def _held(self, operation: int) -> Iterator[bool]:
        """A lock on the directory itself, or False. Creators of topics share it; a sweep has it alone."""
        with opening(self.directory):
            fd = open_file(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(fd, operation)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        self.get(name)
        path = self.path(name) / "topic.lock"
        try:
            with opening(path):
                fd = open_file(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            raise UnknownTopic(name, str(self.directory)) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not _is_at(path, fd):
                raise UnknownTopic(name, str(self.directory))
            yield
        finally:
            os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    """Return whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
