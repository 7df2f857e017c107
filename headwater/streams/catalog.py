"""The description of a topic, as every catalog has it. Topics made again under an old name have another uuid."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from headwater.core.config import TopicConfig
from headwater.core.errors import Damaged, InvalidConfiguration

TOPIC_FILE: Final = "topic.json"
_FORMAT: Final = 1
MAX_PARTITIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """The description of a topic. `schemas` are the ids of its schemas, the oldest first; the last is written with."""

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
        """Return the topic that a `topic.json` describes; raises Damaged."""
        try:
            document: dict[str, Any] = json.loads(content)
            if document["format"] != _FORMAT:
                raise Damaged(f"written by a newer version (format {document['format']})", file=where)
            if document["name"] != where.parent.name:
                raise ValueError(f"it describes topic {document['name']!r}: topics cannot be copied or renamed by hand")
            known = {field.name for field in fields(TopicConfig)}
            info = cls(
                document["name"],
                bytes.fromhex(document["uuid"]),
                int(document["partitions"]),
                tuple(int(schema, 16) for schema in document["schemas"]),
                TopicConfig(**{name: value for name, value in document["config"].items() if name in known}),
                int(document["created_ns"]),
            )
            if len(info.uuid) != 16 or not info.schemas or not 1 <= info.partitions <= MAX_PARTITIONS:
                raise ValueError("the uuid, the schemas or the partitions are wrong")
            return info
        except (ValueError, KeyError, TypeError, AttributeError, InvalidConfiguration) as error:
            raise Damaged(f"not the description of a topic: {error}", file=where) from error


def grown(info: TopicInfo, partitions: int) -> TopicInfo:
    """Return the topic with more partitions; fewer would lose records, and is refused."""
    whole = isinstance(partitions, int) and not isinstance(partitions, bool)
    if not whole or not info.partitions <= partitions <= MAX_PARTITIONS:
        raise InvalidConfiguration(
            f"topic {info.name!r} has {info.partitions} partitions: their number can rise to {MAX_PARTITIONS}, not fall"
        )
    return replace(info, partitions=partitions)


def partition_uuid(topic: bytes, number: int) -> bytes:
    """Return the identity of a topic's partition, the same wherever it is stored."""
    return bytes(a ^ b for a, b in zip(topic, number.to_bytes(16, "big"), strict=True))
