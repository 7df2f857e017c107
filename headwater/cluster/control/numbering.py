"""Numbering: a broker that nobody has numbered takes a number that is free, and keeps it in its directory.

etcd keeps for each number the uuid of the directory that has it, for good. By that key a broker takes a number, and by
it knows the number again if it died before the directory had it: so no number is taken twice, or lost.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from headwater.cluster.control.identity import BrokerIdentity, DirectoryIdentity, directory_identity, identity_of
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import EtcdItem, Put, WriteGuard
from headwater.cluster.etcd.keys import Keys, state_from_json
from headwater.cluster.replication.following import DiskThreads
from headwater.core.errors import Damaged, EtcdUnavailable

_log = logging.getLogger(__name__)
_FIRST: Final = 1


async def numbered_identity(
    etcd: Etcd, threads: DiskThreads, directory: Path, cluster: str, broker: int | None
) -> BrokerIdentity:
    """The identity of a broker's directory. Without a number it has the one that it has taken before, or a free one.

    Raises EtcdUnavailable and EtcdRefused if a number has to be taken, InvalidConfiguration if the directory belongs to
    another broker or cluster, and WriteFailed.
    """
    if broker is None:
        known: DirectoryIdentity = await threads.write(directory_identity, directory, cluster)
        broker = known.broker
        if broker is None:
            broker = await take_number(etcd, Keys(cluster), known.store)
            _log.info("the broker of %s takes the number %d", directory, broker)
    numbered: BrokerIdentity = await threads.write(identity_of, directory, cluster, broker)
    return numbered


async def take_number(etcd: Etcd, keys: Keys, store: bytes) -> int:
    """The number of the directory with this uuid: the one that it has, or the least that no broker has ever had."""
    while True:
        items = (await etcd.read(keys.prefix)).items
        value = store.hex().encode()
        used: set[int] = set()
        for item in items:
            numbers = _numbers(keys, item)
            if item.value == value and keys.subject(item.key).kind == "stores" and numbers:
                return min(numbers)  # also by a write whose answer was lost
            used |= numbers
        number = next(number for number in range(_FIRST, len(used) + _FIRST + 1) if number not in used)
        guards = [WriteGuard(keys.store(number), created=0), WriteGuard(keys.broker(number), created=0)]
        try:
            await etcd.write(guards, [Put(keys.store(number), value)])
        except EtcdUnavailable as error:
            if not error.unknown:
                raise


def _numbers(keys: Keys, item: EtcdItem) -> set[int]:
    """The brokers that a key tells of."""
    subject = keys.subject(item.key)
    try:
        if subject.kind in ("stores", "brokers", "leaving"):
            return {int(subject.name)}
        if subject.kind == "partitions":
            state = state_from_json(item.value)
            return {*state.replicas, *state.wanted}
    except (ValueError, Damaged):
        pass  # somebody else has written there
    return set()
