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
class BrokerIdentity:
    """A broker of a cluster, and the uuid of its directory."""

    cluster: str
    broker: int
    store: bytes


def identity_of(directory: Path, cluster: str, broker: int, disk: Disk = REAL_DISK) -> BrokerIdentity:
    """The owner of the directory: this broker from now on, if nobody owns it yet; else it must be the same."""
    path = directory / IDENTITY_FILE
    try:
        found = _read(path)
    except FileNotFoundError:
        found = BrokerIdentity(cluster, broker, random_bytes(16))
        content = {"format": _FORMAT, "cluster": cluster, "broker": broker, "store": found.store.hex()}
        try:
            disk.replace(path, json.dumps(content, indent=2).encode() + b"\n")
            disk.sync_directory(directory)
        except OSError as error:
            raise WriteFailed(path, error) from error
    if (found.cluster, found.broker) != (cluster, broker):
        raise InvalidConfiguration(
            f"{directory} belongs to broker {found.broker} of the cluster {found.cluster!r}, not to broker {broker} of "
            f"{cluster!r}: start it as that one, or with an empty directory"
        )
    return found


def _read(path: Path) -> BrokerIdentity:
    try:
        found = json.loads(path.read_bytes())
        if found["format"] != _FORMAT:
            raise Damaged(f"written by a newer version (format {found['format']})", file=path)
        return BrokerIdentity(str(found["cluster"]), int(found["broker"]), bytes.fromhex(found["store"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"not the identity of a broker: {error}; restore it from a backup", file=path) from error
