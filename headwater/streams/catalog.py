"""The catalog: which topics there are and how they are set up.

On disk a topic is a directory with a `topic.json`. A topic comes into being by one rename of a finished directory and
goes by one rename away, so it is there or not, never half. Topics made again under an old name have another uuid.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from headwater.core.config import TopicConfig
from headwater.core.errors import (
    Damaged,
    HeadwaterError,
    InvalidConfiguration,
    OpenFailed,
    TopicExists,
    UnknownTopic,
    WriteFailed,
)
from headwater.core.names import check_name
from headwater.log.files.disk import TEMPORARY, Disk, read_plain
from headwater.log.files.open_files import open_file
from headwater.log.files.refusals import opening, writing

TOPIC_FILE: Final = "topic.json"
_FORMAT: Final = 1
_UNFINISHED: Final = ".new-"
_DELETED: Final = ".deleted-"
_SETTLED_NS: Final = 100_000_000
"""A file that was changed just now may change again within one tick of its clock, and even get the same inode."""
MAX_PARTITIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """How a topic is set up. `schemas` are the ids of its schemas, the oldest first; the last is written with."""

    name: str
    uuid: bytes
    partitions: int
    schemas: tuple[int, ...]
    config: TopicConfig
    created_ns: int

    def to_json(self) -> bytes:
        """The content of `topic.json`."""
        content = {
            "format": _FORMAT,
            "name": self.name,
            "uuid": self.uuid.hex(),
            "partitions": self.partitions,
            "schemas": [f"{schema:016x}" for schema in self.schemas],
            "config": asdict(self.config),
            "created_ns": self.created_ns,
        }
        return json.dumps(content, indent=2).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes, where: Path) -> TopicInfo:
        """The topic that a `topic.json` describes; raises Damaged."""
        try:
            found: dict[str, Any] = json.loads(content)
            if found["format"] != _FORMAT:
                raise Damaged(f"written by a newer version (format {found['format']})", file=where)
            if found["name"] != where.parent.name:
                raise ValueError(f"it is about {found['name']!r}; topics are not copied or renamed by hand")
            known = {field.name for field in fields(TopicConfig)}
            info = cls(
                found["name"],
                bytes.fromhex(found["uuid"]),
                int(found["partitions"]),
                tuple(int(schema, 16) for schema in found["schemas"]),
                TopicConfig(**{name: value for name, value in found["config"].items() if name in known}),
                int(found["created_ns"]),
            )
            if len(info.uuid) != 16 or not info.schemas or not 1 <= info.partitions <= MAX_PARTITIONS:
                raise ValueError("the uuid, the schemas or the partitions are wrong")
            return info
        except (ValueError, KeyError, TypeError, AttributeError, InvalidConfiguration) as error:
            raise Damaged(f"not the description of a topic: {error}", file=where) from error


class Catalog(ABC):
    """The topics of a store."""

    @abstractmethod
    def names(self) -> list[str]:
        """Every topic's name, sorted, internal ones too."""

    @abstractmethod
    def get(self, name: str) -> TopicInfo:
        """The topic as it is now; raises UnknownTopic."""

    @abstractmethod
    def create(self, info: TopicInfo) -> TopicInfo:
        """Add a topic, or raise TopicExists; of two who try at once, one succeeds."""

    @abstractmethod
    def change(self, name: str, change: Callable[[TopicInfo], TopicInfo]) -> TopicInfo:
        """Replace a topic's description by what `change` makes of it, with nobody else changing it meanwhile."""

    @abstractmethod
    def delete(self, name: str) -> TopicInfo:
        """Remove a topic with all its records."""

    @abstractmethod
    def sweep(self, *, dry_run: bool = False) -> int:
        """Remove what processes that died while they made or deleted a topic have left behind; of how many topics."""


class MemoryCatalog(Catalog):
    """Topics that exist in this process only."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._topics: dict[str, TopicInfo] = {}

    def names(self) -> list[str]:
        return sorted(self._topics)

    def get(self, name: str) -> TopicInfo:
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopic(name, "memory") from None

    def create(self, info: TopicInfo) -> TopicInfo:
        with self._mutex:
            if info.name in self._topics:
                raise TopicExists(info.name, "memory")
            self._topics[info.name] = info
            return info

    def change(self, name: str, change: Callable[[TopicInfo], TopicInfo]) -> TopicInfo:
        with self._mutex:
            self._topics[name] = change(self.get(name))
            return self._topics[name]

    def delete(self, name: str) -> TopicInfo:
        with self._mutex:
            info = self.get(name)
            del self._topics[name]
            return info

    def sweep(self, *, dry_run: bool = False) -> int:  # noqa: ARG002 - nothing half-done outlives the process
        return 0


class DirectoryCatalog(Catalog):
    """Topics in the subdirectories of a directory."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.directory = directory
        self._root = os.fspath(directory)
        self._disk = disk
        self._cache: dict[str, tuple[tuple[int, int], TopicInfo]] = {}

    def path(self, name: str) -> Path:
        """Where a topic's files are."""
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
            found = os.stat(file)
            identity = (found.st_ino, found.st_mtime_ns)
            if cached is not None and cached[0] == identity:
                return cached[1]
            path = Path(file)
            info = TopicInfo.from_json(read_plain(path), path)
        except (FileNotFoundError, NotADirectoryError):
            raise UnknownTopic(name, str(self.directory)) from None
        except OSError as error:
            raise OpenFailed(Path(file), error) from error
        if time.time_ns() - found.st_mtime_ns > _SETTLED_NS:
            self._cache[name] = (identity, info)
        return info

    def create(self, info: TopicInfo, prepare: Callable[[Path], None] = lambda _: None) -> TopicInfo:
        """As everywhere; `prepare` puts more into the topic's directory before it can be seen."""
        with self._held(fcntl.LOCK_SH):
            unfinished = self.directory / f"{_UNFINISHED}{info.uuid.hex()}"
            try:
                self._disk.make_directory(unfinished)
                prepare(unfinished)
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
                self._remove(info)  # a power loss might: who is told of an error must not find it later
                raise WriteFailed(self.path(info.name), error) from error
        return info

    def change(self, name: str, change: Callable[[TopicInfo], TopicInfo]) -> TopicInfo:
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

    def delete(self, name: str) -> TopicInfo:
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
        return info

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
        with self._held(fcntl.LOCK_EX | fcntl.LOCK_NB) as alone, opening(self.directory):
            leftovers = [
                entry.path
                for entry in os.scandir(self.directory)
                if entry.name.startswith(_DELETED) or (alone and entry.name.startswith(_UNFINISHED))
            ]
            for path in leftovers if not dry_run else ():
                shutil.rmtree(path, ignore_errors=True)
        return len(leftovers)

    def sweep_files(self) -> None:
        """Remove the files that processes which died while they changed a topic have left behind."""
        for name in self.names():
            if any(file.endswith(TEMPORARY) for file in os.listdir(self.path(name))):
                with suppress(UnknownTopic), self._locked(name):
                    for leftover in self.path(name).glob(f"*{TEMPORARY}"):
                        self._disk.unlink(leftover)

    @contextmanager
    def _held(self, operation: int) -> Iterator[bool]:
        """A lock on the directory itself, or False. Who makes a topic shares it: who has it alone sweeps the dead."""
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
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def grown(info: TopicInfo, partitions: int) -> TopicInfo:
    """The topic with more partitions; fewer would lose records, and is refused."""
    whole = isinstance(partitions, int) and not isinstance(partitions, bool)
    if not whole or not info.partitions <= partitions <= MAX_PARTITIONS:
        raise InvalidConfiguration(
            f"topic {info.name!r} has {info.partitions} partitions: their number can rise to {MAX_PARTITIONS}, not fall"
        )
    return replace(info, partitions=partitions)


def partition_uuid(topic: bytes, number: int) -> bytes:
    """The identity of a topic's partition, the same wherever it is stored."""
    return bytes(a ^ b for a, b in zip(topic, number.to_bytes(16, "big"), strict=True))
