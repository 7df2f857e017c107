"""The identity of a broker's directory: which broker of which cluster it belongs to, and a uuid of its own.

A broker that comes back with another uuid has lost its disk: it must not be taken for one that has what it once had.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headwater.core.errors import Damaged, InvalidConfiguration, WriteFailed
from headwater.log.entropy import random_bytes
from headwater.log.files.disk import REAL_DISK, Disk

IDENTITY_FILE: Final = "cluster.json"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """The directory of a broker of a cluster, which may have no number yet."""

    cluster: str
    broker: int | None
    store: bytes
    """Random: another uuid is another disk."""


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """A broker of a cluster, and the uuid of its directory."""

    cluster: str
    broker: int
    store: bytes


def directory_identity(directory: Path, cluster: str, disk: Disk = REAL_DISK) -> DirectoryIdentity:
    """The identity of a directory, with the number of its broker if it has one; made if there is none.

    Raises InvalidConfiguration if it belongs to another cluster.
    """
    path = directory / IDENTITY_FILE
    try:
        identity = _read(path)
    except FileNotFoundError:
        identity = DirectoryIdentity(cluster, None, random_bytes(16))
        _write(path, identity, disk)
    if identity.cluster != cluster:
        owner = "a broker" if identity.broker is None else f"broker {identity.broker}"
        raise InvalidConfiguration(
            f"{directory} belongs to {owner} of the cluster {identity.cluster!r}, not of {cluster!r}: start that "
            f"broker with it, or give this one an empty directory"
        )
    return identity


def identity_of(directory: Path, cluster: str, broker: int, disk: Disk = REAL_DISK) -> BrokerIdentity:
    """The owner of the directory: this broker from now on, if nobody owns it yet; else it must be the same."""
    path = directory / IDENTITY_FILE
    try:
        identity = _read(path)
    except FileNotFoundError:
        identity = DirectoryIdentity(cluster, None, random_bytes(16))
    if identity.broker is None and identity.cluster == cluster:
        identity = DirectoryIdentity(cluster, broker, identity.store)
        _write(path, identity, disk)
    if (identity.cluster, identity.broker) != (cluster, broker):
        raise InvalidConfiguration(
            f"{directory} belongs to broker {identity.broker} of the cluster {identity.cluster!r}, not to broker "
            f"{broker} of {cluster!r}: start that broker with it, or give this one an empty directory"
        )
    return BrokerIdentity(cluster, broker, identity.store)


def _write(path: Path, identity: DirectoryIdentity, disk: Disk) -> None:
    content = {
        "format": _FORMAT,
        "cluster": identity.cluster,
        "broker": identity.broker,
        "store": identity.store.hex(),
    }
    try:
        disk.replace(path, json.dumps(content, indent=2).encode() + b"\n")
        disk.sync_directory(path.parent)
    except OSError as error:
        raise WriteFailed(path, error) from error


def _read(path: Path) -> DirectoryIdentity:
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != _FORMAT:
            raise Damaged(f"written by a newer version (format {content['format']})", file=path)
        broker = None if content["broker"] is None else int(content["broker"])
        return DirectoryIdentity(str(content["cluster"]), broker, bytes.fromhex(content["store"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"not the identity of a broker: {error}; restore it from a backup", file=path) from error
