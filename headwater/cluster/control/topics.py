"""The topics of a cluster: made, changed and deleted by compare-and-swap of one key each.

The broker that makes a topic writes its description and no more. The controller makes its partitions, and those who are
to hold a replica see that and make it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from headwater.cluster.control.metadata import NOBODY
from headwater.cluster.control.view import Changes, ClusterView
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import Delete, EtcdItem, Put, WriteGuard
from headwater.cluster.etcd.keys import ClusterTopic
from headwater.core.config import DEFAULT_REPLICATION
from headwater.core.errors import (
    EtcdUnavailable,
    InvalidConfiguration,
    StoreError,
    TooFewBrokers,
    TopicExists,
    UnknownTopic,
)

_WAITING: Final = 30.0


class ClusterTopics:
    """Makes, changes and deletes topics. It belongs to one event loop. Every method raises EtcdUnavailable."""

    def __init__(self, etcd: Etcd, view: ClusterView) -> None:
        self._etcd = etcd
        self._view = view
        self._where = f"the cluster {view.keys.prefix.split('/')[2]!r}"

    async def replicas_of_new(self, name: str, wanted: int | None) -> int:
        """The number of replicas of a new topic: as many as are wanted, else three, or one for each of fewer brokers.

        Raises TooFewBrokers if there are not brokers enough. etcd is asked, as this broker may not have heard of
        all yet: a topic that is made as soon as a cluster serves is kept as often as one that is made a second later.
        It is asked once: a broker may be gone a moment later, and comes back or is replaced.
        """
        keys = self._view.keys
        alive = {item.key for item in (await self._etcd.read(keys.all_brokers)).items}
        living = len(alive - {keys.broker(broker) for broker in self._view.leaving})
        replicas = min(living, DEFAULT_REPLICATION) if wanted is None else wanted
        if not 1 <= replicas <= living:
            raise TooFewBrokers(name, replicas, living)
        return replicas

    async def create(self, topic: ClusterTopic, timeout: float = _WAITING) -> ClusterTopic:
        """Add a topic, and wait until all its partitions are led; raises TopicExists."""
        if not 1 <= topic.min_insync <= topic.replication:
            raise InvalidConfiguration(
                f"topic {topic.info.name!r} has {topic.replication} replicas, so its min_insync must be from 1 to "
                f"{topic.replication}, not {topic.min_insync}"
            )
        name = self._view.keys.topic(topic.info.name)
        while True:
            try:
                if await self._etcd.write([WriteGuard(name, created=0)], [Put(name, topic.to_json())]):
                    break
            except EtcdUnavailable as error:
                if not error.unknown:
                    raise
            item = await self._etcd.get(name)
            if item is not None:
                known = self._read(item)
                if known.info.uuid != topic.info.uuid:
                    raise TopicExists(topic.info.name, self._where)
                break  # by the write whose answer was lost
        await self.led(topic, timeout)
        return topic

    async def led(self, topic: ClusterTopic, timeout: float = _WAITING) -> None:
        """Wait until every partition of a topic has a leader, as this broker sees it."""
        keys = [(topic.info.uuid, number) for number in range(topic.info.partitions)]

        def all_led() -> bool:
            partitions = (self._view.partitions.get(key) for key in keys)
            return all(partition is not None and partition[0].leader != NOBODY for partition in partitions)

        changed = asyncio.Event()

        def wake(_: Changes) -> None:
            changed.set()

        self._view.on_change(wake)
        try:
            async with asyncio.timeout(timeout):
                while not all_led():
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            raise StoreError(
                f"topic {topic.info.name!r} was created, but some of its partitions have no leader after "
                f"{timeout:g} s: `hw cluster status` shows which"
            ) from None
        finally:
            self._view.off_change(wake)

    async def get(self, name: str) -> ClusterTopic:
        """A topic as it is now, not as this broker has last seen it; raises UnknownTopic."""
        return self._read(await self._item(name))

    async def change(self, name: str, change: Callable[[ClusterTopic], ClusterTopic]) -> ClusterTopic:
        """Replace a topic's description by what `change` makes of it; raises UnknownTopic."""
        while True:
            item = await self._item(name)
            before = self._read(item)
            after = change(before)
            if after == before:  # also when a write whose answer was lost has happened
                return after
            try:
                if await self._etcd.write(
                    [WriteGuard(item.key, changed=item.changed)], [Put(item.key, after.to_json())]
                ):
                    return after
            except EtcdUnavailable as error:
                if not error.unknown:
                    raise

    async def delete(self, name: str) -> ClusterTopic:
        """Remove a topic; raises UnknownTopic. The controller removes its partitions, and the brokers its records."""
        deleting: ClusterTopic | None = None
        while True:
            try:
                item = await self._item(name)
            except UnknownTopic:
                if deleting is None:
                    raise
                return deleting  # by the write whose answer was lost
            topic = self._read(item)
            if deleting is not None and topic.info.uuid != deleting.info.uuid:
                return deleting
            deleting = topic
            try:
                if await self._etcd.write([WriteGuard(item.key, changed=item.changed)], [Delete(item.key)]):
                    return deleting
            except EtcdUnavailable as error:
                if not error.unknown:
                    raise

    async def _item(self, name: str) -> EtcdItem:
        item = await self._etcd.get(self._view.keys.topic(name))
        if item is None:
            raise UnknownTopic(name, self._where)
        return item

    def _read(self, item: EtcdItem) -> ClusterTopic:
        return ClusterTopic.from_json(item.value, self._view.keys.subject(item.key).name)
