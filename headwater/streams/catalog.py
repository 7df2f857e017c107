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
MAX_REPLICATION: Final = 100


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """The description of a topic. `schemas` are the ids of its schemas, the oldest first; the last is written with."""

    name: str
    uuid: bytes
    partitions: int
    schemas: tuple[int, ...]
    config: TopicConfig
    created_ns: int
    replication: int | None = None
    """The number of brokers that keep each partition (the replication factor); None if the store is in no cluster.

    For a topic that is to be created, None is as the brokers are configured."""
    min_insync: int | None = None
    """The number of in-sync replicas that must have a record before it is acknowledged; None as above."""

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


def check_replication(name: str, replication: int | None, min_insync: int | None) -> None:
    """Raise InvalidConfiguration unless a topic can have so many replicas, and need so many of them in sync."""
    for option, value in (("replication", replication), ("min_insync", min_insync)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and 1 <= value <= MAX_REPLICATION):
            raise InvalidConfiguration(
                f"topic {name!r}: {option} must be a whole number from 1 to {MAX_REPLICATION}, not {value!r:.60}"
            )
    if replication is not None and min_insync is not None and min_insync > replication:
        raise InvalidConfiguration(
            f"topic {name!r}: min_insync must be from 1 to {replication}, the number of replicas, not {min_insync}"
        )


def check_kept_once(name: str, replication: int | None, min_insync: int | None) -> None:
    """Raise InvalidConfiguration if a topic wants more than the one copy that a store outside of a cluster keeps."""
    check_replication(name, replication, min_insync)
    if (replication or 1) > 1 or (min_insync or 1) > 1:
        raise InvalidConfiguration(
            f"topic {name!r} cannot have {max(replication or 1, min_insync or 1)} replicas: this store keeps one copy "
            f"of each topic. Brokers of a cluster keep more; leave out replication and min_insync elsewhere"
        )


def partition_uuid(topic: bytes, number: int) -> bytes:
    """Return the identity of a topic's partition, the same wherever it is stored."""
    return bytes(a ^ b for a, b in zip(topic, number.to_bytes(16, "big"), strict=True))
