"""A checkpoint of Spark, as its files say: which query it is of, how far it has come.

Spark writes it. Here it is read, and cleaned of what a driver left that died before its first batch.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from headwater.core.errors import InvalidConfiguration, OpenFailed
from headwater.spark.offsets import ID, Offsets, TopicOffsets, from_json

_log = logging.getLogger(__name__)
_LOGS: Final = ("offsets", "commits")
"""The folders with a file for each batch. Spark writes the offsets of a batch before it begins with it."""
_UNFINISHED: Final = re.compile(r"\.+[0-9]+\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp(\.crc)?")
"""The name of a file of a batch until it is written, and of its checksum."""


class Checkpoint:
    """The directory that Spark keeps for one query."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def query(self) -> str | None:
        """The id of the query, which stays the same as long as the checkpoint does; None before its first start."""
        try:
            return str(json.loads((self.path / "metadata").read_text(encoding="utf-8"))["id"])
        except (OSError, ValueError, KeyError):
            return None

    @property
    def last_batch(self) -> int | None:
        """The last batch that is done."""
        try:
            return max(int(path.name) for path in (self.path / "commits").iterdir() if path.name.isdecimal())
        except (OSError, ValueError):
            return None

    def clean(self) -> list[Path]:
        """Remove what a driver left that died while it wrote its first offsets; return these files.

        Spark takes them for files of another query, and refuses to start. Nothing is removed once a batch has begun:
        then Spark goes on from there. No query may run on the checkpoint meanwhile. Raises OpenFailed.
        """
        names = {log: list(_files(self.path / log)) for log in _LOGS}
        if any(file.name.isdecimal() for files in names.values() for file in files):
            return []
        removed = [file for files in names.values() for file in files if _UNFINISHED.fullmatch(file.name)]
        for file in removed:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise OpenFailed(file, error) from error
        if removed:
            _log.warning(
                "%s: removed %s, left by a driver that died before its first batch; the query begins where it should",
                self.path,
                ", ".join(str(file.relative_to(self.path)) for file in removed),
            )
        return removed

    def done(self) -> Offsets | None:
        """Return the query's position in the topics that it reads, or None if no batch is done."""
        batch = self.last_batch
        if batch is None:
            return None
        try:
            lines = (self.path / "offsets" / str(batch)).read_text(encoding="utf-8").split("\n")
        except OSError:
            return None
        positions: dict[tuple[str, str], dict[int, int]] = {}
        for line in lines:
            # One line for each source; those of files and the one about the batch look different. A source that is in
            # the query twice is as far as the one that is behind.
            for name, topic in _topics(line).items():
                known = positions.setdefault((name, topic.id), {})
                for number, offset in topic.partitions.items():
                    known[number] = min(offset, known.get(number, offset))
        return {name: TopicOffsets(uuid, partitions) for (name, uuid), partitions in positions.items()}


def clean_checkpoint(location: str | os.PathLike[str]) -> list[Path]:
    """Remove what keeps Spark from starting a query after its driver died before the first batch; return these files.

    A driver that dies while it writes its first offsets leaves a temporary file. Every later start then fails with
    `STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY`. Call this before `start()`, with the `checkpointLocation`, while no
    query runs on it. Once a batch has begun it removes nothing, so neither output nor progress is ever lost.

    Raises InvalidConfiguration if the checkpoint is not in a directory of this machine.
    """
    text = os.fspath(location)
    parts = urlsplit(text)
    if parts.scheme == "file":
        text = unquote(parts.path)
    elif "://" in text:
        raise InvalidConfiguration(
            f"{text} is not a directory of this machine: remove the files offsets/.0.*.tmp there by hand"
        )
    return Checkpoint(Path(text)).clean()


def _files(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise OpenFailed(folder, error) from error


def _topics(line: str) -> Offsets:
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(content, dict) or not all(isinstance(topic, dict) and ID in topic for topic in content.values()):
        return {}
    return from_json(content)
