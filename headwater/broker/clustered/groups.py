"""Groups over the wire, in a cluster: each is kept by the broker that leads its partition of an internal topic.

Others say who that is. The rules are those of every group, and run in the event loop: all that they need is in memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, ParamSpec, TypeVar

from headwater.broker.clustered.polling import ClusterPolling, Start
from headwater.broker.coordinator import Coordinator, LoggedSessions
from headwater.broker.core import Core
from headwater.broker.rpc.call import Call
from headwater.broker.rpc.groups import Groups, most_records
from headwater.broker.rpc.reading import Reading
from headwater.broker.rpc.sessions import Session
from headwater.broker.security.access import BROKER, Caller
from headwater.cluster.control.metadata import NOBODY
from headwater.cluster.etcd.keys import ClusterTopic, PartitionKey
from headwater.cluster.internal import Coordinators, InternalLog, Record
from headwater.cluster.node import ClusterNode
from headwater.cluster.replication.replica import NotLeading
from headwater.cluster.transactions.deciding import Decider, Note
from headwater.core.errors import (
    BrokerUnavailable,
    HeadwaterError,
    NotLeader,
    PermissionDenied,
    StoreError,
    UnknownTopic,
)
from headwater.core.names import GROUPS
from headwater.core.options import MIB
from headwater.log import Appended
from headwater.streams.group import Commit, GroupInfo
from headwater.streams.membership import Member
from headwater.streams.pattern import TopicFilter
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb

_P = ParamSpec("_P")
_R = TypeVar("_R")
_log = logging.getLogger(__name__)
_SWEEP: Final = 0.5
"""How often the dead are looked for. Seconds."""
_ASKING: Final = 5.0
_SNAPSHOT_BYTES: Final = 8 * MIB
"""When a log has grown to this, and to twice its last snapshot, everything is written anew and the rest removed."""


class Coordination:
    """A coordinator at work: its notes go to the log, and its answers wait for that. For the event loop."""

    def __init__(self, log: InternalLog, rules: Coordinator, tell: Callable[[str], None]) -> None:
        """`tell` is called with the names of groups that are to be looked at again."""
        self._log = log
        self._tell = tell
        self.rules = rules
        self.decider: Decider | None = None
        """Decides over transactions of consumers."""
        self._enough = _SNAPSHOT_BYTES
        self._shrinking: asyncio.Task[None] | None = None

    @property
    def place(self) -> TopicPartition:
        """Which partition of the internal topic it is."""
        return self._log.place

    @property
    def key(self) -> PartitionKey:
        """The same, with the topic's uuid in place of its name."""
        return self._log.key

    @property
    def good(self) -> bool:
        """Whether it serves, as far as is known here."""
        return self._log.good and self.rules.serves()

    def replay(self, records: list[Record]) -> None:
        """Take in what the log has, and begin to serve."""
        self.rules.replay(records)
        if self.decider is not None:
            self.decider.begin()

    def end(self) -> None:
        """Serve no more. Who waits for a change here goes elsewhere."""
        self.rules.end()
        if self.decider is not None:
            self.decider.end()
        for name in self.rules.groups:
            self._tell(name)

    async def do(self, rule: Callable[[], _R]) -> _R:
        """Apply a rule; returns, or raises, what came of it when everybody may know. Raises NotLeading."""
        return await self._begin(rule)

    def write(self, work: Callable[[Note], Any]) -> asyncio.Future[Any]:
        """Apply a rule that notes something of transactions as well, at once."""
        return self._begin(lambda: work(self.rules.note_transaction))

    def _begin(self, rule: Callable[[], _R]) -> asyncio.Future[_R]:
        future: asyncio.Future[_R] = asyncio.get_running_loop().create_future()

        def tell(outcome: Any) -> None:
            if future.done():
                return  # nobody waits for it any more
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
                future.exception()  # whoever waits is told; where nobody does, nobody misses it
            else:
                future.set_result(outcome)

        self.rules.do(rule, tell)
        self._write()
        return future

    def _write(self) -> None:
        notes = self.rules.take()
        if notes:
            noted = self.rules.noted
            self._log.append(notes).add_done_callback(lambda done: self._written(done, noted))

    def _written(self, done: asyncio.Future[Appended], noted: int) -> None:
        if done.cancelled() or done.exception() is not None:
            self.end()
            return
        self.rules.acknowledge(noted)
        if self._log.bytes > self._enough and (self._shrinking is None or self._shrinking.done()):
            self._shrinking = asyncio.create_task(self._shrink())

    async def _shrink(self) -> None:
        """Write everything anew, and remove what was before it."""
        try:
            await self.do(self.rules.forget_empty)
            before = self._log.bytes
            self.rules.snapshot()
            notes, noted = self.rules.take(), self.rules.noted
            appending = self._log.append(notes)
            appending.add_done_callback(lambda done: self._written(done, noted))
            appended = await appending
            await self._log.forget(appended.base_offset)
            self._log.bytes -= before
            self._enough = max(_SNAPSHOT_BYTES, 2 * self._log.bytes)
        except NotLeading:
            return
        except (HeadwaterError, OSError) as error:
            _log.error("%s cannot be made smaller: %s", self.place, error)

    async def confirm(self) -> None:
        """Return when it is sure that nobody else has coordinated meanwhile; raises NotLeading."""
        await self._log.confirm()


class ClusterGroups(Groups):
    """The methods about groups, in a cluster."""

    def __init__(self, core: Core, node: ClusterNode) -> None:
        super().__init__(core)
        if self._store.group_names():
            raise StoreError(
                f"{self._store} has groups that a broker on its own has kept, in {GROUPS}: a cluster keeps them in a "
                f"topic; move that directory away, or begin with an empty one"
            )
        self._node = node
        self.decider_of: Callable[[Coordination], Decider] | None = None
        """Makes who decides over the transactions of consumers."""
        self.coordinators: Coordinators[Coordination] = Coordinators(node, GROUPS, self._coordination)
        node.readers = self.readers
        self._polling = ClusterPolling(node, Reading(core, self))

    def _coordination(self, log: InternalLog) -> Coordination:
        rules = Coordinator(self._store._clock, self._core.config.session_timeout, log.epoch)
        found = Coordination(log, rules, self._tell)
        if self.decider_of is not None:
            found.decider = self.decider_of(found)
        return found

    # Where they are kept.

    async def _change(self, group: str, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        one = await self.coordinators.of(group)
        try:
            return await one.do(lambda: work(*args, **kwargs))
        except NotLeading:
            raise NotLeader(*one.place, None) from None  # nobody knows what came of it: to be asked for again

    _look = _change

    def described(self) -> dict[str, GroupInfo]:
        kept = [one.rules.groups.copy() for one in self.coordinators.all().values()]
        return {name: group.describe() for groups in kept for name, group in groups.items()}

    def generation(self, name: str) -> int:
        try:
            return super().generation(name)
        except NotLeader:
            return 0

    def polled(self, name: str, member_id: str, caller: str, known: int) -> int:  # noqa: ARG002
        return known  # members tell the coordinator by themselves, which is seldom the one that they fetch from

    def _has(self, name: str) -> bool:
        return name in self.coordinators.at(name).rules.groups

    def _known(self, name: str) -> LoggedSessions:
        found = super()._known(name)
        assert isinstance(found, LoggedSessions)
        return found

    def _group(self, name: str) -> LoggedSessions:
        return self.coordinators.at(name).rules.group(name)

    def _topic(self, name: str) -> ClusterTopic:
        found = self._node.membership.view.topics.get(name)
        if found is None:
            raise UnknownTopic(name, f"the cluster {self._node.cluster!r}")
        return found

    def _uuid_of(self, topic: str) -> bytes:
        return self._topic(topic).info.uuid

    def _names_of(self, uuids: Iterable[bytes]) -> dict[bytes, str]:
        wanted = set(uuids)
        topics = self._node.membership.view.topics.items()
        return {topic.info.uuid: name for name, topic in topics if topic.info.uuid in wanted}

    def _partitions_of(self, member: Member) -> list[TopicPartition]:
        wanted = TopicFilter(member.topics)
        return [
            TopicPartition(name, number)
            for name, topic in sorted(self._node.membership.view.topics.items())
            if wanted(name)
            for number in range(topic.info.partitions)
        ]

    def _expire(self, request: pb.ExpireGroupRequest) -> bool:
        expired = super()._expire(request)
        if expired and not request.dry_run:
            self.coordinators.at(request.group).rules.forget_empty()
        return expired

    # Looking at them.

    async def describe_group(self, request: pb.DescribeGroupRequest, call: Call) -> pb.Group:
        call.check("read", "group", request.group)
        one = await self.coordinators.of(request.group)
        try:
            # A position that is read is gone on from: it has to be the last that anybody has set.
            await one.confirm()
        except NotLeading:
            raise NotLeader(*one.place, None) from None
        return await super().describe_group(request, call)

    async def list_groups(self, request: pb.ListGroupsRequest, call: Call) -> pb.ListGroupsResponse:  # noqa: ARG002
        names = {name for answer in await self._ask_all() for name in answer.groups}
        return pb.ListGroupsResponse(groups=sorted(name for name in names if call.sees(name, "group")))

    # Plain records.

    async def poll(self, request: pb.PollRequest, call: Call) -> pb.PollResponse:
        call.check("read", "group", request.group)
        deadline = time.monotonic() + call.patience(request.max_wait_ms)
        most = most_records(request)
        while True:
            places = await self._change(request.group, self._assigned, request, call.caller)
            for place in places:  # rights may have changed since the member joined
                call.check("read", "topic", place.topic)
            group = self._known(request.group)
            session = group.session(request.member_id, call.caller.name)
            starts = {place: start for place in places if (start := self._start(group, session, place)) is not None}
            # Partitions that others have yet to give up come without anything being told of it.
            wait = max(min(deadline - time.monotonic(), 1.0), 0.0)
            found = await self._polling.fetch(starts, most, wait)
            answer = pb.PollResponse(generation=self.generation(request.group))
            for place, fetched in found.items():
                polled = _polled(place, fetched, starts[place][0], most)
                most -= len(polled.records)
                # The one that was read longest ago comes first.
                session.reading.pop(place, None)
                session.reading[place] = (polled.topic_uuid, polled.next_offset)
                if polled.records:
                    answer.partitions.append(polled)
            if answer.partitions or time.monotonic() >= deadline or self._core.draining.is_set():
                return answer

    def _start(self, group: LoggedSessions, session: Session, place: TopicPartition) -> Start | None:
        """Where a member goes on; None when the topic is gone."""
        topic = self._node.membership.view.topics.get(place.topic)
        if topic is None:
            return None
        uuid, offset = session.reading.get(place, (b"", 0))
        if uuid == topic.info.uuid:
            return uuid, offset
        position = group.position((topic.info.uuid, place.partition))
        return topic.info.uuid, 0 if position is None else position.offset

    # How far they are, for those who delete.

    async def list_readers(self, request: pb.ListReadersRequest, call: Call) -> pb.ListReadersResponse:  # noqa: ARG002
        if not call.by_broker:
            raise PermissionDenied(call.caller.name, "admin", "broker", BROKER)
        return await self._readers_here()

    async def _readers_here(self) -> pb.ListReadersResponse:
        answer = pb.ListReadersResponse()
        for number, one in (await self.coordinators.confirmed()).items():
            answer.coordinated.append(number)
            for name, group in one.rules.groups.items():
                answer.groups.append(name)
                found = group.describe()
                places = [(uuid, partition) for uuid, partition in found.positions]
                static = [place for one in found.members.values() if one.static for place in self._partitions_of(one)]
                for place in (*found.owners, *static):
                    topic = self._node.membership.view.topics.get(place.topic)
                    if topic is not None:
                        places.append((topic.info.uuid, place.partition))
                for key in dict.fromkeys(places):
                    position = found.positions.get(key)
                    offset = -1 if position is None else position.offset
                    answer.readers.append(pb.Reader(group=name, topic_uuid=key[0], partition=key[1], offset=offset))
        return answer

    async def _ask_all(self) -> list[pb.ListReadersResponse]:
        """What all coordinators say; raises NotLeader when there is a partition that nobody coordinates now."""
        view = self._node.membership.view
        try:
            topic = view.topics.get(GROUPS) or await self._node.topics.get(GROUPS)
        except UnknownTopic:
            return []
        numbers = range(topic.info.partitions)
        states = [view.partitions.get((topic.info.uuid, number)) for number in numbers]
        leaders = {state[0].leader for state in states if state is not None} - {NOBODY, self._node.broker}
        request = pb.ListReadersRequest()
        asked = [self._node.call_broker(leader, "ListReaders", request, _ASKING) for leader in leaders]
        found = []
        for answer in await asyncio.gather(self._readers_here(), *asked, return_exceptions=True):
            if isinstance(answer, pb.ListReadersResponse):
                found.append(answer)
            elif not isinstance(answer, BrokerUnavailable):
                raise answer
        missing = set(numbers) - {number for answer in found for number in answer.coordinated}
        if missing:
            raise NotLeader(GROUPS, min(missing), None)
        return found

    async def readers(self) -> dict[tuple[bytes, int], int] | None:
        """For each partition that groups read, before which offset all of them are done; None when nobody knows."""
        try:
            answers = await self._ask_all()
        except HeadwaterError as error:
            _log.warning("nobody knows how far all groups are, so nothing that they may need is deleted: %s", error)
            return None
        found: dict[tuple[bytes, int], int] = {}
        for one in (reader for answer in answers for reader in answer.readers):
            key = (one.topic_uuid, one.partition)
            found[key] = max(min(one.offset, found.get(key, one.offset)), 0)
        return found

    async def positions(self) -> dict[str, dict[PartitionKey, int]]:
        """How far each group is in each partition where it has a position; raises NotLeader when nobody knows."""
        found: dict[str, dict[PartitionKey, int]] = {}
        for answer in await self._ask_all():
            for name in answer.groups:
                found.setdefault(name, {})
            for one in answer.readers:
                if one.offset >= 0:
                    found[one.group][one.topic_uuid, one.partition] = one.offset
        return found

    # Transactions.

    def progress(self, request: pb.CommitTransactionRequest, caller: Caller) -> GroupProgress:
        """The positions that a consumer wants to be part of a transaction."""
        return GroupProgress(self, request, caller)

    # The dead.

    async def sweep(self) -> None:
        """Take dead members out, and now and then what nobody needs any more, for ever."""
        interval = self._store.defaults.steward.interval
        cleaned = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(_SWEEP)
            cleaning = asyncio.get_running_loop().time() - cleaned > interval
            if cleaning:
                cleaned = asyncio.get_running_loop().time()
            for one in self.coordinators.all().values():
                for name in list(one.rules.groups):
                    self._node.begin(self._sweep_group(one, name, cleaning))

    async def _sweep_group(self, one: Coordination, name: str, cleaning: bool) -> None:
        group = one.rules.groups.get(name)
        if group is None or not (cleaning or group.has_dead()):
            return
        try:
            if await one.do(lambda: group.take_dead_out(self._partitions_of)):
                self._tell(name)
            if cleaning:
                await one.do(lambda: self._clean(one, group))
        except NotLeading:
            return

    def _clean(self, one: Coordination, group: LoggedSessions) -> None:
        """Forget what is to be forgotten of a group, and then the group."""
        unused = self._store.elapsed.is_older(self._store.defaults.steward.group_expiry)
        group.expire_unused(unused)
        group.prune({topic.info.uuid for topic in self._node.membership.view.topics.values()}, unused)
        one.rules.forget_empty()


def _polled(place: TopicPartition, found: pb.FetchedPartition, uuid: bytes, most: int) -> pb.PolledPartition:
    """As many of the records as are wanted, and where to go on behind them."""
    records, others = found.records[:most], found.records[most:]
    offset = others[0].offset if others else found.next_offset
    return pb.PolledPartition(
        topic=place.topic,
        partition=place.partition,
        topic_uuid=uuid,
        records=records,
        next_offset=offset,
        lag=max(found.log_end - offset, 0),
    )


class GroupProgress:
    """The progress of a consumer in a transaction, which is decided where its group is kept."""

    def __init__(self, groups: ClusterGroups, request: pb.CommitTransactionRequest, caller: Caller) -> None:
        self._groups = groups
        self._request = request
        self._caller = caller

    def check(self) -> None:
        """Raise StaleMember if the positions cannot be set, as far as is known now."""
        self._decide()

    def advance(self) -> None:
        """Set the positions, as a rule of the group; raises StaleMember."""
        group, commits, generation = self._decide()
        group.carry_out(commits, generation)

    def _decide(self) -> tuple[LoggedSessions, dict[TopicPartition, Commit], int]:
        request = self._request
        group = self._groups._group(request.group)
        commits, known = self._groups.commits_of(group, request.inputs)
        if request.member_id and group.has_session(request.member_id):
            group.session(request.member_id, self._caller.name)
            group.heard(request.member_id, polled=False)
        member_id = request.member_id or None
        with group.deciding(member_id, commits, known=None if member_id else known) as generation:
            return group, commits, generation

    def generation(self) -> int:
        """The generation in which they were set."""
        group = self._groups._group(self._request.group)
        commits, _ = self._groups.commits_of(group, self._request.inputs)
        found = [group.position(key) for key, _ in commits.values()]
        return max((one.generation for one in found if one is not None), default=0)
