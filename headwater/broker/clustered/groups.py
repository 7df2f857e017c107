"""The groups of a cluster: each is kept by the broker that leads its partition of an internal topic.

Other brokers say which one that is. Rules run in the event loop: all that they need is in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from headwater.broker.arrivals import GROUP
from headwater.broker.backend import NamedMember, NamedPartition, PolledPartition
from headwater.broker.clustered.coordinator import Coordination, Coordinator, LoggedSessions
from headwater.broker.clustered.peers import GroupReader, GroupReaders, Peers
from headwater.broker.clustered.polling import ClusterPolling, Start
from headwater.broker.runtime import Runtime
from headwater.broker.sessions import Session
from headwater.cluster.control.metadata import NOBODY
from headwater.cluster.etcd.keys import PartitionKey
from headwater.cluster.internal import Coordinators, InternalLog
from headwater.cluster.node import ClusterNode
from headwater.cluster.replication.replica import NotLeading
from headwater.cluster.transactions.deciding import Decider
from headwater.core.errors import BrokerUnavailable, HeadwaterError, NotLeader, StaleMember, StoreError, UnknownTopic
from headwater.core.names import GROUPS
from headwater.streams.group import GroupInfo
from headwater.streams.membership import Member
from headwater.streams.pattern import TopicFilter
from headwater.streams.store import Store
from headwater.streams.topic import TopicPartition

_R = TypeVar("_R")
_log = logging.getLogger(__name__)
_SWEEP: Final = 0.5
"""Seconds between two looks for dead members."""


def check_without_groups(store: Store) -> None:
    """Raise StoreError if the store has groups of its own: a cluster would not know them."""
    if store.group_names():
        raise StoreError(
            f"{store} has groups of a standalone broker, in {GROUPS}, but a cluster keeps groups in a topic: "
            f"move that directory away, or begin with an empty one"
        )


class CoordinatedGroups:
    """The groups that this broker coordinates. See `GroupHome`."""

    def __init__(
        self, runtime: Runtime, node: ClusterNode, peers: Peers, polling: ClusterPolling, session_timeout: float
    ) -> None:
        """Members get this timeout, in seconds, if they do not ask for another one."""
        self._runtime = runtime
        self._node = node
        self._peers = peers
        self._polling = polling
        self._session_timeout = session_timeout
        self.decider_of: Callable[[Coordination], Decider] | None = None
        """Makes the decider of the transactions of consumers."""
        self.coordinators: Coordinators[Coordination] = Coordinators(node, GROUPS, self._coordination)
        node.readers = self.readers

    def _coordination(self, log: InternalLog) -> Coordination:
        rules = Coordinator(self._node.store._clock, self._session_timeout, log.epoch)
        coordination = Coordination(log, rules, self._tell)
        if self.decider_of is not None:
            coordination.decider = self.decider_of(coordination)
        return coordination

    def _tell(self, group: str) -> None:
        self._runtime.arrivals.tell([(group, GROUP)])

    async def change(self, group: str, work: Callable[[], _R]) -> _R:
        """See GroupHome."""
        coordination = await self.coordinators.of(group)
        try:
            return await coordination.do(work)
        except NotLeading:
            # Nobody knows what came of it: the caller asks again.
            raise NotLeader(*coordination.partition, None) from None

    look = change

    async def confirm(self, group: str) -> None:
        """See GroupHome. Readers resume from a position: it has to be the last one that was set."""
        coordination = await self.coordinators.of(group)
        try:
            await coordination.confirm()
        except NotLeading:
            raise NotLeader(*coordination.partition, None) from None

    async def names(self) -> list[str]:
        """See GroupHome."""
        return sorted({name for answer in await self._ask_all() for name in answer.groups})

    def forget_empty(self, group: str) -> None:
        """See GroupHome."""
        self.coordinators.at(group).rules.forget_empty()

    def described(self) -> Mapping[str, GroupInfo]:
        """See GroupHome."""
        kept = [coordination.rules.groups.copy() for coordination in self.coordinators.all().values()]
        return {name: group.describe() for groups in kept for name, group in groups.items()}

    def generation(self, group: str) -> int:
        """See GroupHome."""
        try:
            return self.get(group).generation() if self.has(group) else 0
        except NotLeader:
            return 0

    def polled(self, group: str, member_id: str, owner: str, known: int) -> int:  # noqa: ARG002
        """Return `known`: members call the coordinator themselves. They seldom read from the same broker."""
        return known

    # For rules.

    def has(self, name: str) -> bool:
        """See GroupShelf."""
        return name in self.coordinators.at(name).rules.groups

    def get(self, name: str) -> LoggedSessions:
        """See GroupShelf."""
        return self.coordinators.at(name).rules.group(name)

    def topic_uuid(self, topic: str) -> bytes:
        """See GroupShelf."""
        cluster_topic = self._node.membership.view.topics.get(topic)
        if cluster_topic is None:
            raise UnknownTopic(topic, f"the cluster {self._node.cluster!r}")
        return cluster_topic.info.uuid

    def topic_names(self, uuids: Iterable[bytes]) -> Mapping[bytes, str]:
        """See GroupShelf."""
        wanted = set(uuids)
        topics = list(self._node.membership.view.topics.items())
        return {topic.info.uuid: name for name, topic in topics if topic.info.uuid in wanted}

    def partitions_of(self, member: Member) -> list[TopicPartition]:
        """See GroupShelf."""
        wanted = TopicFilter(member.topics)
        return [
            TopicPartition(name, number)
            for name, topic in sorted(self._node.membership.view.topics.items())
            if wanted(name)
            for number in range(topic.info.partitions)
        ]

    # Polling.

    async def read_for(
        self, member: NamedMember, partitions: Sequence[TopicPartition], max_records: int, wait: float
    ) -> Sequence[PolledPartition]:
        """See GroupHome."""
        if not self.has(member.group):
            raise StaleMember(f"group {member.group!r} does not exist: join it first")
        group = self.get(member.group)
        session = group.session(member.member_id, member.owner)
        starts = {tp: start for tp in partitions if (start := self._start(group, session, tp)) is not None}
        polled: list[PolledPartition] = []
        for partition, fetched in (await self._polling.fetch(starts, max_records, wait)).items():
            uuid, asked = starts[partition]
            fetched_records = fetched.records or ()
            records, others = fetched_records[:max_records], fetched_records[max_records:]
            offset = asked if fetched.next_offset is None else fetched.next_offset
            if others:
                offset = others[0].offset
            max_records -= len(records)
            # The one that was read longest ago comes first.
            session.reading.pop(partition, None)
            session.reading[partition] = (uuid, offset)
            if records:
                lag = max(fetched.bounds.end - offset, 0)
                polled.append(PolledPartition(NamedPartition(*partition, uuid), records, offset, lag))
        return polled

    def _start(self, group: LoggedSessions, session: Session, partition: TopicPartition) -> Start | None:
        """The place where a member goes on; None if the topic is gone."""
        topic = self._node.membership.view.topics.get(partition.topic)
        if topic is None:
            return None
        uuid, offset = session.reading.get(partition, (b"", 0))
        if uuid == topic.info.uuid:
            return uuid, offset
        position = group.position((topic.info.uuid, partition.partition))
        return topic.info.uuid, 0 if position is None else position.offset

    # Progress of groups, for leaders that delete.

    async def readers_here(self) -> GroupReaders:
        """The progress of the groups that are coordinated here, if it is sure that no other broker does by now."""
        numbers: list[int] = []
        names: list[str] = []
        readers: list[GroupReader] = []
        topics = self._node.membership.view.topics
        for number, coordination in (await self.coordinators.confirmed()).items():
            numbers.append(number)
            for name, group in coordination.rules.groups.items():
                names.append(name)
                info = group.describe()
                keys = list(info.positions)
                static = [tp for member in info.members.values() if member.static for tp in self.partitions_of(member)]
                for partition in (*info.owners, *static):
                    topic = topics.get(partition.topic)
                    if topic is not None:
                        keys.append((topic.info.uuid, partition.partition))
                for key in dict.fromkeys(keys):
                    position = info.positions.get(key)
                    readers.append(GroupReader(name, key, None if position is None else position.offset))
        return GroupReaders(numbers, names, readers)

    async def _ask_all(self) -> list[GroupReaders]:
        """The answers of all coordinators; raises NotLeader if no broker coordinates some partition now."""
        view = self._node.membership.view
        try:
            topic = view.topics.get(GROUPS) or await self._node.topics.get(GROUPS)
        except UnknownTopic:
            return []
        numbers = range(topic.info.partitions)
        states = [view.partitions.get((topic.info.uuid, number)) for number in numbers]
        leaders = {state[0].leader for state in states if state is not None} - {NOBODY, self._node.broker}
        asked = map(self._peers.group_readers, leaders)
        answers: list[GroupReaders] = []
        for answer in await asyncio.gather(self.readers_here(), *asked, return_exceptions=True):
            if isinstance(answer, GroupReaders):
                answers.append(answer)
            elif not isinstance(answer, BrokerUnavailable):
                raise answer
        missing = set(numbers) - {number for answer in answers for number in answer.coordinated}
        if missing:
            raise NotLeader(GROUPS, min(missing), None)
        return answers

    async def readers(self) -> dict[PartitionKey, int] | None:
        """The offset before which all groups are done, for each partition that groups read; None if it is not known."""
        try:
            answers = await self._ask_all()
        except HeadwaterError as error:
            _log.warning(
                "the positions of some groups are unknown, so records that groups may need are kept: %s", error
            )
            return None
        offsets: dict[PartitionKey, int] = {}
        for reader in (reader for answer in answers for reader in answer.readers):
            offset = reader.offset or 0
            offsets[reader.key] = max(min(offset, offsets.get(reader.key, offset)), 0)
        return offsets

    async def positions(self) -> dict[str, dict[PartitionKey, int]]:
        """The positions of all groups; raises NotLeader if they are not known."""
        positions: dict[str, dict[PartitionKey, int]] = {}
        for answer in await self._ask_all():
            for name in answer.groups:
                positions.setdefault(name, {})
            for reader in answer.readers:
                if reader.offset is not None:
                    positions[reader.group][reader.key] = reader.offset
        return positions

    # Dead members.

    async def sweep(self) -> None:
        """Take dead members out, and now and then positions and groups that nobody needs any more, for ever."""
        interval = self._node.store.defaults.steward.interval
        cleaned = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(_SWEEP)
            cleaning = asyncio.get_running_loop().time() - cleaned > interval
            if cleaning:
                cleaned = asyncio.get_running_loop().time()
            for coordination in self.coordinators.all().values():
                for name in list(coordination.rules.groups):
                    self._node.begin(self._sweep_group(coordination, name, cleaning))

    async def _sweep_group(self, coordination: Coordination, name: str, cleaning: bool) -> None:
        group = coordination.rules.groups.get(name)
        if group is None or not (cleaning or group.has_dead()):
            return
        try:
            if await coordination.do(lambda: group.take_dead_out(self.partitions_of)):
                self._tell(name)
            if cleaning:
                await coordination.do(lambda: self._clean(coordination, group))
        except NotLeading:
            return

    def _clean(self, coordination: Coordination, group: LoggedSessions) -> None:
        """Forget what has expired of a group, and then groups of which nothing is left."""
        store = self._node.store
        unused = store.elapsed.is_older(store.defaults.steward.group_expiry)
        group.expire_unused(unused)
        group.prune({topic.info.uuid for topic in self._node.membership.view.topics.values()}, unused)
        coordination.rules.forget_empty()
