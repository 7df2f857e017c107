"""The keys that a cluster has in etcd, and what stands in them.

Everything is below `/headwater/<name of the cluster>/`, so that several clusters can share one etcd. Values are JSON:
people look at them with etcdctl when something is wrong.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from headwater.cluster.control.metadata import Move, PartitionState
from headwater.core.errors import Damaged, HeadwaterError
from headwater.core.schema import Schema
from headwater.streams.catalog import TOPIC_FILE, TopicInfo

DEFAULT_CLUSTER: Final = "main"

PartitionKey = tuple[bytes, int]
"""A partition: the uuid of its topic, which a topic made again under the same name does not share, and its number."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BrokerMember:
    """A broker that is alive: it holds the lease under which it is registered.

    Its incarnation is the revision at which the registration was created, so that a broker which was started again, or
    whose lease had ended, is another one. `store` is the uuid of its directory: another one is another disk.
    """

    id: int
    incarnation: int
    address: str
    store: bytes
    version: str = ""
    lease: int = 0
    session: str = ""
    """Random: by it, a broker knows its own registration again when the answer to it was lost."""
    draining: bool = False
    """True if it is about to leave: others are to lead in its place."""

    def to_json(self) -> bytes:
        """The value that is registered; the incarnation and the lease are etcd's to say."""
        return _written(
            {
                "address": self.address,
                "store": self.store.hex(),
                "version": self.version,
                "session": self.session,
                "draining": self.draining,
            }
        )

    @classmethod
    def from_json(cls, content: bytes, broker: int, incarnation: int, lease: int = 0) -> BrokerMember:
        """The broker that has registered this; raises Damaged."""

        def read(fields: dict[str, Any]) -> BrokerMember:
            store = bytes.fromhex(fields["store"])
            about = (str(fields["address"]), store, str(fields["version"]))
            return cls(broker, incarnation, *about, lease, str(fields["session"]), bool(fields["draining"]))

        return _read("the registration of a broker", content, read)


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic of the cluster: as every broker that holds a replica makes it, and how often it is kept."""

    info: TopicInfo
    schemas: tuple[Schema, ...]
    """The schemas that `info.schemas` names, in the same order."""
    replication: int
    min_insync: int
    """So many replicas must have a record before it is acknowledged to producers that ask for all."""
    next_min_insync: int = 0
    """The minimum in place of `min_insync` as soon as every partition has so many replicas in sync; 0 if none."""
    staged: bool = False
    """True if transactions have written to it, so that each of its partitions has a stage log."""

    def to_json(self) -> bytes:
        """The content of its key."""
        content = {
            "topic": json.loads(self.info.to_json()),
            "schemas": [b64encode(schema.serialize()).decode() for schema in self.schemas],
            "replication": self.replication,
            "min_insync": self.min_insync,
            **({"next_min_insync": self.next_min_insync} if self.next_min_insync else {}),
            **({"staged": True} if self.staged else {}),
        }
        return _written(content)

    @classmethod
    def from_json(cls, content: bytes, name: str) -> ClusterTopic:
        """The topic that a key describes; raises Damaged."""

        def read(fields: dict[str, Any]) -> ClusterTopic:
            info = TopicInfo.from_json(_written(fields["topic"]), Path("etcd") / name / TOPIC_FILE)
            schemas = tuple(Schema.deserialize(b64decode(schema)) for schema in fields["schemas"])
            if tuple(schema.id for schema in schemas) != info.schemas:
                raise ValueError("its schemas are not those that it names")
            minima = int(fields["min_insync"]), int(fields.get("next_min_insync", 0))
            return cls(info, schemas, int(fields["replication"]), *minima, bool(fields.get("staged")))

        return _read("the description of a topic", content, read)


def state_to_json(state: PartitionState) -> bytes:
    """The content of a partition's key."""
    content: dict[str, Any] = {
        "epoch": state.epoch,
        "forced_epoch": state.forced_epoch,
        "leader": state.leader,
        "leader_incarnation": state.leader_incarnation,
        "in_sync": {str(broker): incarnation for broker, incarnation in state.in_sync.items()},
        "replicas": list(state.replicas),
    }
    if state.move is not None:
        content["move"] = {"to": list(state.move.to), "back": list(state.move.back)}
    return _written(content)


def state_from_json(content: bytes) -> PartitionState:
    """The reverse; raises Damaged."""

    def brokers(listed: Any) -> tuple[int, ...]:
        return tuple(int(broker) for broker in listed)

    def read(fields: dict[str, Any]) -> PartitionState:
        move = fields.get("move")
        return PartitionState(
            brokers(fields["replicas"]),
            {int(broker): int(incarnation) for broker, incarnation in fields["in_sync"].items()},
            int(fields["leader"]),
            int(fields["leader_incarnation"]),
            int(fields["epoch"]),
            int(fields.get("forced_epoch", 0)),
            None if move is None else Move(brokers(move["to"]), brokers(move["back"])),
        )

    return _read("the state of a partition", content, read)


def _written(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _read(expected: str, content: bytes, read: Callable[[dict[str, Any]], _T]) -> _T:
    try:
        return read(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError, HeadwaterError) as error:
        raise Damaged(f"not {expected}: {error}") from error


class KeySubject(NamedTuple):
    """The subject of a key: its kind, and the rest of its name."""

    kind: str
    name: str

    @property
    def partition(self) -> PartitionKey:
        """For a partition's key: which one. Raises ValueError."""
        uuid, _, number = self.name.partition("/")
        return bytes.fromhex(uuid), int(number)


class Keys:
    """The names of a cluster's keys."""

    def __init__(self, cluster: str = DEFAULT_CLUSTER) -> None:
        self.prefix = f"/headwater/{cluster}/"
        self.controller = f"{self.prefix}controller"
        """The key of the controller, under a lease."""
        self.secret = f"{self.prefix}secret"
        """The key of the secret that brokers sign with, so that one knows again what another has given out."""
        self.all_brokers = f"{self.prefix}brokers/"
        self.all_partitions = f"{self.prefix}partitions/"

    def broker(self, broker: int) -> str:
        """The key at which a living broker is registered."""
        return f"{self.all_brokers}{broker}"

    def store(self, broker: int) -> str:
        """The uuid of the directory that a broker was last seen with; it stays when the broker goes."""
        return f"{self.prefix}stores/{broker}"

    def leaving(self, broker: int) -> str:
        """Says that a broker is to hold nothing any more; it stays until it is taken back."""
        return f"{self.prefix}leaving/{broker}"

    def levelled(self, broker: int) -> str:
        """Says that replicas were levelled after a broker had joined, or that an operator has cancelled that."""
        return f"{self.prefix}levelled/{broker}"

    def kept(self, broker: int) -> str:
        """Says that an operator wants a broker that is gone to keep its replicas; it stays until the broker is back."""
        return f"{self.prefix}kept/{broker}"

    def user(self, name: str) -> str:
        """The rights of a user."""
        return f"{self.prefix}access/users/{name}"

    def token(self, identity: str) -> str:
        """The key of a token's hash: the token itself is never kept."""
        return f"{self.prefix}access/tokens/{identity}"

    def topic(self, name: str) -> str:
        """A topic's description."""
        return f"{self.prefix}topics/{name}"

    def partition(self, key: PartitionKey) -> str:
        """A partition's state."""
        return f"{self.all_partitions}{key[0].hex()}/{key[1]}"

    def subject(self, key: str) -> KeySubject:
        """The subject of a key."""
        kind, _, name = key.removeprefix(self.prefix).partition("/")
        return KeySubject(kind, name)
