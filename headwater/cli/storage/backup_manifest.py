"""The manifest of a backup: its content, and each file's checksum. It is written last, so it vouches for all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from headwater.core.errors import Damaged, HeadwaterError
from headwater.log.elapsed import CLOCK_FILE

FILE: Final = "manifest.json"
STORE: Final = "store"
"""The directory of the copied store in a backup. It can be opened, checked and read like any other store."""
_FORMAT: Final = 1
_LEFT_OUT: Final = ("store.lock", "steward.lock", "topic.lock", "lock", CLOCK_FILE)
"""Files of the moment, which every opening makes anew."""
_BLOCK: Final = 1 << 20


@dataclass(slots=True)
class BackupManifest:
    """The content of a backup. Offsets are the same as in the store that was backed up."""

    source: str
    created_ns: int
    topics: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    """Of each topic the partitions: where each starts and ends."""
    groups: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Of each group its positions: topic, partition and offset."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Every file below `store`: its size and its checksum (BLAKE2b, 32 bytes)."""

    @property
    def records(self) -> int:
        """The number of offsets in the backup."""
        return sum(
            partition["end"] - partition["start"] for partitions in self.topics.values() for partition in partitions
        )

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(file["bytes"] for file in self.files.values())

    @classmethod
    def load(cls, backup: Path) -> BackupManifest:
        """Return the manifest of a backup; raises an error that says what the directory is instead."""
        path = backup / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            unfinished = (backup / STORE).is_dir()
            why = "is a backup that was not finished: run hw backup again" if unfinished else "is not a backup"
            raise HeadwaterError(f"{backup} {why}") from None
        except ValueError as error:
            raise Damaged(f"the manifest is damaged: {error}", file=path) from None
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise Damaged("the manifest has a version that this hw does not know", file=path)
        checksum = content.pop("checksum", None)
        if checksum != _checksum(content):
            raise Damaged("the manifest does not match its own checksum", file=path)
        return cls(**content)

    def save(self, backup: Path) -> None:
        """Write it: whole, durable, or not at all."""
        content = asdict(self)
        content = {"format": _FORMAT, **content, "checksum": _checksum(content)}
        unfinished = backup / f"{FILE}.tmp"
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(backup / FILE)
        sync_directory(backup)

    def take_files(self, backup: Path, on_bytes: Callable[[int], None]) -> None:
        """Note every file of the store as it is."""
        root = backup / STORE
        for path in sorted(file for file in root.rglob("*") if file.is_file() and file.name not in _LEFT_OUT):
            size, digest = digest_of(path, on_bytes)
            self.files[str(path.relative_to(root))] = {"bytes": size, "blake2b": digest}


def digest_of(path: Path, on_bytes: Callable[[int], None]) -> tuple[int, str]:
    """The size and the checksum of a file."""
    digest, size = hashlib.blake2b(digest_size=32), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
            on_bytes(len(block))
    return size, digest.hexdigest()


def copy_file(source: Path, target: Path, expected: dict[str, Any], on_bytes: Callable[[int], None]) -> None:
    """Copy a file durably, if its checksum is that of the manifest; raises Damaged otherwise, and leaves nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.part")
    digest, size = hashlib.blake2b(digest_size=32), 0
    try:
        opened = source.open("rb")
    except FileNotFoundError:
        raise Damaged("a file of the backup is missing", file=source) from None
    with opened, unfinished.open("wb") as out:
        while block := opened.read(_BLOCK):
            digest.update(block)
            size += len(block)
            out.write(block)
            on_bytes(len(block))
        out.flush()
        os.fsync(out.fileno())
    if (size, digest.hexdigest()) != (expected["bytes"], expected["blake2b"]):
        unfinished.unlink()
        raise Damaged("a file of the backup does not match its checksum", file=source)
    unfinished.replace(target)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=32).hexdigest()
