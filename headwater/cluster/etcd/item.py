"""Items in etcd, and guarded writes: those happen only while what they are based on holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headwater.cluster.etcd import etcd_pb2 as pb
from headwater.core.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class EtcdItem:
    """A key's value, and the revisions at which it came into being and was last changed."""

    key: str
    value: bytes
    created: int
    changed: int
    lease: int = 0

    @classmethod
    def of(cls, pair: pb.KeyValue) -> EtcdItem:
        """The item in etcd's own form."""
        return cls(name_of(pair), pair.value, pair.create_revision, pair.mod_revision, pair.lease)


def name_of(pair: pb.KeyValue) -> str:
    """A key as text: Headwater writes no others, and whatever else is there is shown somehow."""
    return pair.key.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class WriteGuard:
    """A condition of a write: one of these. A revision of 0 is that of a key that is not there."""

    key: str
    created: int | None = None
    changed: int | None = None
    version: int | None = None
    value: bytes | None = None

    def packed(self) -> pb.Compare:
        """The guard as etcd takes it."""
        key = self.key.encode()
        if self.created is not None:
            return pb.Compare(target=pb.Compare.CREATE, key=key, create_revision=self.created)
        if self.changed is not None:
            return pb.Compare(target=pb.Compare.MOD, key=key, mod_revision=self.changed)
        if self.version is not None:
            return pb.Compare(target=pb.Compare.VERSION, key=key, version=self.version)
        if self.value is not None:
            return pb.Compare(target=pb.Compare.VALUE, key=key, value=self.value)
        raise InvalidConfiguration(f"a guard of {self.key} must say what it guards by")


class Put(NamedTuple):
    """Write a key; under a lease, with which it ends, if that is not 0."""

    key: str
    value: bytes
    lease: int = 0

    def packed(self) -> pb.RequestOp:
        """The change as etcd takes it."""
        return pb.RequestOp(request_put=pb.PutRequest(key=self.key.encode(), value=self.value, lease=self.lease))


class Delete(NamedTuple):
    """Remove a key, or all that begin with it."""

    key: str
    prefix: bool = False

    def packed(self) -> pb.RequestOp:
        """The change as etcd takes it."""
        key = self.key.encode()
        end = end_of(key) if self.prefix else b""
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key, range_end=end))


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with a prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
