"""A checkpoint of Spark, as its files say: which query it is of, how far it has come. It is only read here."""

from __future__ import annotations

import json
from pathlib import Path

from headwater.spark.offsets import ID, Offsets, TopicOffsets, from_json


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


def _topics(line: str) -> Offsets:
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(content, dict) or not all(isinstance(topic, dict) and ID in topic for topic in content.values()):
        return {}
    return from_json(content)
