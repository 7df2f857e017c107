"""The view: what a broker knows of its cluster, kept up to date by one watch on all of the cluster's keys.

It is a copy and can be late, never wrong about the past: what it shows was so at its `revision`. A broker that acts on
it does so by writes that etcd refuses when something has changed since.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from headwater.cluster.control.metadata import Members, PartitionState, Proposal
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import EtcdItem, Put, WriteGuard
from headwater.cluster.etcd.keys import BrokerMember, ClusterTopic, Keys, PartitionKey, state_from_json, state_to_json
from headwater.cluster.etcd.watch import Look
from headwater.core.errors import Damaged, EtcdRefused, EtcdUnavailable

_log = logging.getLogger(__name__)
_PAUSE: Final = 0.5


class Office(NamedTuple):
    """The controller, and the revision since which it is: by that, its writes are guarded."""

    broker: int
    incarnation: int
    since: int

    @staticmethod
    def to_json(broker: int, incarnation: int) -> bytes:
        """The value that a broker writes to become it."""
        return json.dumps({"broker": broker, "incarnation": incarnation}).encode()

    @classmethod
    def of(cls, item: EtcdItem) -> Office:
        """The reverse; raises ValueError."""
        content = json.loads(item.value)
        return cls(int(content["broker"]), int(content["incarnation"]), item.created)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of the view: brokers by their ids, topics by their names, partitions by their keys."""

    members: frozenset[int] = frozenset()
    topics: frozenset[str] = frozenset()
    partitions: frozenset[PartitionKey] = frozenset()
    controller: bool = False
    access: bool = False


class ClusterView:
    """The cluster as of a revision of etcd. It belongs to one event loop: nothing changes while nobody awaits."""

    def __init__(self, etcd: Etcd, keys: Keys) -> None:
        self.keys = keys
        self.revision = 0
        """Of etcd, when it was as it is seen here; 0 before the first look."""
        self.controller: Office | None = None
        self._etcd = etcd
        self._items: dict[str, EtcdItem] = {}
        self._members: dict[int, BrokerMember] = {}
        self._topics: dict[str, ClusterTopic] = {}
        self._by_uuid: dict[bytes, ClusterTopic] = {}
        self._partitions: dict[PartitionKey, tuple[PartitionState, int]] = {}
        self._noted: dict[str, set[int]] = {"leaving": set(), "levelled": set(), "kept": set()}
        """Brokers that have a key of each of these kinds."""
        self._access: dict[str, bytes] = {}
        self._callbacks: list[Callable[[Changes], None]] = []
        self._moved = asyncio.Event()

    @property
    def members(self) -> Mapping[int, BrokerMember]:
        """The brokers that are alive, by their ids."""
        return MappingProxyType(self._members)

    @property
    def alive(self) -> Members:
        """The same with no more than their incarnations."""
        return {member.id: member.incarnation for member in list(self._members.values())}

    @property
    def leaving(self) -> frozenset[int]:
        """The brokers that are to hold nothing any more, alive or not."""
        return frozenset(self._noted["leaving"])

    @property
    def levelled(self) -> frozenset[int]:
        """The brokers that replicas were levelled for after they had joined."""
        return frozenset(self._noted["levelled"])

    @property
    def kept(self) -> frozenset[int]:
        """The brokers that are gone, and whose replicas stay there all the same."""
        return frozenset(self._noted["kept"])

    @property
    def access(self) -> Mapping[str, bytes]:
        """Users and tokens: `users/<name>` and `tokens/<id>`, each with the value of its key."""
        return MappingProxyType(self._access)

    @property
    def topics(self) -> Mapping[str, ClusterTopic]:
        """The topics, by their names."""
        return MappingProxyType(self._topics)

    @property
    def partitions(self) -> Mapping[PartitionKey, tuple[PartitionState, int]]:
        """The state of every partition, and the revision at which it was last changed."""
        return MappingProxyType(self._partitions)

    def topic_revision(self, name: str) -> int:
        """The revision at which a topic was last changed; 0 when there is none of that name."""
        item = self._items.get(self.keys.topic(name))
        return 0 if item is None else item.changed

    def topic_of(self, uuid: bytes) -> ClusterTopic | None:
        """The topic with a uuid; None when it was deleted."""
        return self._by_uuid.get(uuid)

    def on_change(self, callback: Callable[[Changes], None]) -> None:
        """Call this in the event loop whenever something has changed, with what; the view shows it already."""
        self._callbacks.append(callback)

    def off_change(self, callback: Callable[[Changes], None]) -> None:
        """Call it no more."""
        self._callbacks.remove(callback)

    async def seen(self) -> None:
        """Wait until there is something to see: the first look at etcd."""
        await self.reach(1)

    async def reach(self, revision: int) -> None:
        """Wait until what is seen is of this revision, or later; it must be that of a change of the cluster's keys."""
        while self.revision < revision:
            await self._moved.wait()

    async def follow(self) -> None:
        """Keep up with etcd, for ever: it outlasts restarts, compactions and outages of etcd."""
        async with aclosing(self._etcd.follow(self.keys.prefix)) as looks:
            async for look in looks:
                self._take(look)

    async def refresh(self) -> None:
        """Look at etcd now: what is seen then includes everything that was written before, answered or not."""
        self._take(await self._etcd.read(self.keys.prefix))

    def _take(self, look: Look) -> None:
        """Take in what was seen, unless it is older than what is known: two looks can overtake each other."""
        if look.revision <= self.revision:
            return
        if look.complete:
            gone: Iterable[str] = self._items.keys() - {item.key for item in look.items}
            changed = self._apply(gone, look.items, look.revision)
        else:
            since = self.revision
            gone = [key for key, revision in look.removed.items() if revision > since]
            changed = self._apply(gone, [item for item in look.items if item.changed > since], look.revision)
        if changed != Changes():
            for callback in list(self._callbacks):
                try:
                    callback(changed)
                except Exception:  # noqa: BLE001 - a broker that sees nothing any more is worse
                    _log.exception("a callback has failed to handle a change of the cluster; the view goes on")

    async def propose(self, key: PartitionKey, proposal: Proposal) -> bool | None:
        """Ask etcd for a change of a partition: True when it was taken, False when it was refused for sure.

        While there is no answer it is asked for again, which does no harm: it is taken at most once. None when an
        answer was lost and the partition has changed since, by this or by another change: what it is now counts.
        A partition that has not changed was not what was in its way, but a broker: none is ever again who it was, so
        that what was lost can do nothing any more.
        """
        guards = [WriteGuard(self.keys.partition(key), changed=proposal.revision)]
        guards += [WriteGuard(self.keys.broker(broker), created=since) for broker, since in proposal.alive.items()]
        change = [Put(self.keys.partition(key), state_to_json(proposal.state))]
        lost = False
        while True:
            try:
                if await self._etcd.write(guards, change):
                    return True
                if lost:
                    await self.refresh()
                known = self._partitions.get(key)
                return None if lost and (known is None or known[1] != proposal.revision) else False
            except EtcdUnavailable as error:
                lost = lost or error.unknown
            except EtcdRefused as error:
                _log.error("etcd refuses a change of partition %d of topic %s: %s", key[1], key[0].hex(), error)
                if not lost:
                    return False
            known = self._partitions.get(key)
            if known is None or known[1] > proposal.revision:
                return None if lost else False
            await asyncio.sleep(_PAUSE * (0.5 + random.random()))

    # News from etcd.

    def _apply(self, removed: Iterable[str], items: Iterable[EtcdItem], revision: int) -> Changes:
        members: set[int] = set()
        topics: set[str] = set()
        partitions: set[PartitionKey] = set()
        controller = access = False
        changed: dict[str, EtcdItem | None] = dict.fromkeys(removed) | {item.key: item for item in items}
        for key, item in changed.items():
            if item == self._items.get(key):
                continue
            subject = self.keys.subject(key)
            try:
                if subject.kind == "brokers":
                    members.add(self._put_member(int(subject.name), item))
                elif subject.kind == "topics":
                    topics.add(self._put_topic(subject.name, item))
                elif subject.kind == "partitions":
                    partitions.add(self._put_partition(subject.partition, item))
                elif subject.kind in self._noted:
                    members.add(_put(self._noted[subject.kind], int(subject.name), item))
                elif subject.kind == "access":
                    self._access.pop(subject.name, None)
                    if item is not None:
                        self._access[subject.name] = item.value
                    access = True
                elif subject.kind == "controller":
                    self.controller = None if item is None else Office.of(item)
                    controller = True
            except (Damaged, ValueError, KeyError, TypeError) as error:
                # Somebody else has written there. The state before stays; nobody elects a leader by nonsense.
                _log.error("%s in etcd cannot be read, and is ignored: %s", key, error)
                continue
            if item is None:
                self._items.pop(key, None)
            else:
                self._items[key] = item
        self.revision = revision
        self._moved.set()
        self._moved = asyncio.Event()
        return Changes(frozenset(members), frozenset(topics), frozenset(partitions), controller, access)

    def _put_member(self, broker: int, item: EtcdItem | None) -> int:
        if item is None:
            self._members.pop(broker, None)
        else:
            self._members[broker] = BrokerMember.from_json(item.value, broker, item.created, item.lease)
        return broker

    def _put_topic(self, name: str, item: EtcdItem | None) -> str:
        topic = None if item is None else ClusterTopic.from_json(item.value, name)
        before = self._topics.pop(name, None)
        if before is not None:
            del self._by_uuid[before.info.uuid]
        if topic is not None:
            self._topics[name] = self._by_uuid[topic.info.uuid] = topic
        return name

    def _put_partition(self, key: PartitionKey, item: EtcdItem | None) -> PartitionKey:
        if item is None:
            self._partitions.pop(key, None)
        else:
            self._partitions[key] = (state_from_json(item.value), item.changed)
        return key


def _put(brokers: set[int], broker: int, item: EtcdItem | None) -> int:
    """Add a broker to a set that etcd has a key for each of, or take it out."""
    if item is None:
        brokers.discard(broker)
    else:
        brokers.add(broker)
    return broker
