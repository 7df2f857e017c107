"""Groups over the wire: the rules are those of the store's groups, and run here."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

from headwater.broker.core import Core
from headwater.broker.rpc.arrivals import GROUP, Key
from headwater.broker.rpc.call import Call, Refused
from headwater.broker.rpc.plain import to_records
from headwater.broker.rpc.sessions import Session, Sessions, sessions_of
from headwater.broker.security.access import Caller
from headwater.core.errors import HeadwaterError, InvalidConfiguration, StaleMember, StoreClosed, UnknownTopic
from headwater.core.options import HOUR, MIB
from headwater.streams.group import Commit, GroupInfo, TopicKey
from headwater.streams.membership import Member, Settled
from headwater.streams.pattern import TopicFilter
from headwater.streams.ports import GroupCoordinator
from headwater.streams.subscription import partitions_of
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import pack_error

_P = ParamSpec("_P")
_R = TypeVar("_R")
_log = logging.getLogger(__name__)
_MEMBER_ID: Final = re.compile(r"[0-9a-f]{32}")
_SWEEP: Final = 0.5
"""How often the dead are looked for. Seconds."""
_LONGEST_SESSION: Final = HOUR
"""Whatever a member asks for: the partitions of one that is gone have to be read by someone."""
_MAX_POLL_INTERVAL: Final = 300.0
COMMITS_AT_ONCE: Final = 1000
"""The most that one call takes."""
_TOGETHER: Final = 0.5
"""How long commits that have come in one call wait for each other. Seconds."""
_POLLED_BYTES: Final = MIB
_POLLED_RECORDS: Final = 500


class Groups:
    """The methods about groups."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._topic_names: dict[bytes, str] = {}
        self._problems: set[str] = set()
        """What kept it from looking after the groups the last time, and is told: what lasts is not told again."""

    # Where they are kept.

    async def _look(self, group: str, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:  # noqa: ARG002
        """Do something that looks at a group."""
        return await self._core.read(work, *args, **kwargs)

    async def _change(self, group: str, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:  # noqa: ARG002
        """Do something that may change a group."""
        return await self._core.write(work, *args, **kwargs)

    def described(self) -> dict[str, GroupInfo]:
        """In any thread: the groups that are kept here. One that cannot be read now is left out."""
        found: dict[str, GroupInfo] = {}
        for name in self._store.group_names():
            with suppress(HeadwaterError):
                found[name] = self._store.group(name).describe()
        return found

    def generation(self, name: str) -> int:
        """In any thread: the generation of a group; 0 when it is not kept here."""
        return self._group(name).generation() if self._has(name) else 0

    def polled(self, name: str, member_id: str, caller: str, known: int) -> int:  # noqa: ARG002 - where it is known better
        """In any thread: note that a member has polled; the group's generation, or what the member knows of it."""
        if not self._has(name):
            return 0
        group = self._group(name)
        group.polled_by(member_id, caller)
        return group.generation()

    def _has(self, name: str) -> bool:
        return self._store.has_group(name)

    def _group(self, name: str) -> Sessions:
        """A group, made if need be."""
        return sessions_of(self._store, name)

    def _known(self, name: str) -> Sessions:
        """A group that there is; raises StaleMember when there is none: then nobody can be a member of it."""
        if not self._has(name):
            raise StaleMember(f"there is no group {name!r}: join it first")
        return self._group(name)

    def _uuid_of(self, topic: str) -> bytes:
        return self._store.describe_topic(topic).uuid

    def _names_of(self, uuids: Iterable[bytes]) -> dict[bytes, str]:
        """The names of topics by their uuids, without those that are gone. A topic keeps both for as long as it is."""
        wanted = set(uuids)
        if not wanted <= self._topic_names.keys():
            found: dict[bytes, str] = {}
            for name in self._store.topic_names():
                with suppress(UnknownTopic):  # deleted since its name was read
                    found[self._uuid_of(name)] = name
            self._topic_names = found
        known = self._topic_names
        return {uuid: known[uuid] for uuid in wanted if uuid in known}

    # Looking at them.

    async def list_groups(self, request: pb.ListGroupsRequest, call: Call) -> pb.ListGroupsResponse:  # noqa: ARG002
        found = await self._core.read(self._store.group_names)
        return pb.ListGroupsResponse(groups=[name for name in found if call.sees(name, "group")])

    async def describe_group(self, request: pb.DescribeGroupRequest, call: Call) -> pb.Group:
        call.check("read", "group", request.group)
        return await self._look(request.group, self._describe, request.group, call)

    def _describe(self, name: str, call: Call) -> pb.Group:
        if not self._has(name):
            return pb.Group(name=name)
        found = self._group(name).describe()
        places = sorted(place for place in found.target.keys() | found.owners.keys() if call.sees(place.topic))
        positions = list(found.positions.values())
        if not call.sees_everything:
            names = self._names_of(one.topic for one in positions)
            positions = [one for one in positions if one.topic in names and call.sees(names[one.topic])]
        return pb.Group(
            name=name,
            generation=found.generation,
            members=[
                pb.Member(
                    id=key,
                    topics=filter(call.sees, one.topics),
                    joined_ns=one.joined_ns,
                    client=one.client,
                    static=one.static,
                )
                for key, one in found.members.items()
            ],
            partitions=[
                pb.Ownership(
                    topic=place.topic,
                    partition=place.partition,
                    owner=found.owners.get(place, ""),
                    target=found.target.get(place, ""),
                )
                for place in places
            ],
            positions=[
                pb.Position(
                    topic_uuid=one.topic,
                    partition=one.partition,
                    offset=one.offset,
                    generation=one.generation,
                    committed_ns=one.committed_ns,
                )
                for one in positions
            ],
        )

    # Members.

    async def join_group(self, request: pb.JoinGroupRequest, call: Call) -> pb.JoinGroupResponse:
        call.check("read", "group", request.group)
        wanted = TopicFilter(list(request.topics))
        for name in (*wanted.names, *wanted.patterns):
            call.check("read", "topic", name)
        if request.member_id and not _MEMBER_ID.fullmatch(request.member_id):
            raise InvalidConfiguration("the id of a member is 16 bytes, in hexadecimal")
        answer = await self._change(request.group, self._join, request, call.caller)
        self._tell(request.group)
        return answer

    def _join(self, request: pb.JoinGroupRequest, caller: Caller) -> pb.JoinGroupResponse:
        config = self._core.config
        timeout = min(request.session_timeout_ms / 1000 or config.session_timeout, _LONGEST_SESSION)
        group = self._group(request.group)
        member_id = request.member_id
        if not member_id or not group.has_session(member_id):  # else it was, and has not heard of it
            member_id = group.join(
                list(request.topics), self._partitions_of, request.client, member_id or None, static=request.static
            )
            group.begin_session(member_id, timeout)
        group.session(member_id, caller.name)
        return pb.JoinGroupResponse(
            member_id=member_id,
            generation=group.generation(),
            session_timeout_ms=round(timeout * 1000),
            heartbeat_interval_ms=round(min(config.heartbeat_interval, timeout / 3) * 1000),
        )

    def _partitions_of(self, member: Member) -> list[TopicPartition]:
        return partitions_of(self._store, member)

    async def settle_group(self, request: pb.SettleGroupRequest, call: Call) -> pb.SettleGroupResponse:
        call.check("read", "group", request.group)
        holding = [TopicPartition(place.topic, place.partition) for place in request.holding]
        interval = request.max_poll_interval_ms / 1000 or _MAX_POLL_INTERVAL
        before, generation, settled = await self._change(
            request.group, self._settle, request.group, request.member_id, call.caller, interval, holding
        )
        if generation != before:
            self._tell(request.group)
        return pb.SettleGroupResponse(
            generation=generation,
            owned=_packed(settled.owned),
            leaving=_packed(settled.leaving),
            taken=_packed(settled.taken),
            waiting=settled.waiting,
        )

    def _settle(
        self, name: str, member_id: str, caller: Caller, interval: float, holding: Iterable[TopicPartition]
    ) -> tuple[int, int, Settled]:
        group = self._known(name)
        session = group.session(member_id, caller.name)
        session.max_poll_interval = interval
        group.heard(member_id, polled=True)
        before = group.generation()
        generation, settled = group.settle(member_id, self._partitions_of, interval, holding)
        return before, generation, settled

    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:
        call.check("read", "group", request.group)
        deadline = time.monotonic() + call.patience(request.max_wait_ms)
        with self._core.arrivals.expecting([(request.group, GROUP)]) as waiter:
            while True:
                waiter.clear()
                answer = await self._look(request.group, self._heartbeat, request, call.caller)
                left = deadline - time.monotonic()
                if answer.generation != request.generation or left <= 0 or self._core.draining.is_set():
                    return answer
                await waiter.wait(left)

    def _heartbeat(self, request: pb.HeartbeatRequest, caller: Caller) -> pb.HeartbeatResponse:
        if not request.member_id:
            return pb.HeartbeatResponse(generation=self.generation(request.group))
        group = self._known(request.group)
        group.session(request.member_id, caller.name)
        group.heard(request.member_id, polled=request.polled)
        return pb.HeartbeatResponse(generation=group.generation())

    async def leave_group(self, request: pb.LeaveGroupRequest, call: Call) -> pb.LeaveGroupResponse:
        call.check("read", "group", request.group)
        await self._change(request.group, self._leave, request, call.caller)
        self._tell(request.group)
        return pb.LeaveGroupResponse()

    def _leave(self, request: pb.LeaveGroupRequest, caller: Caller) -> None:
        if not self._has(request.group):
            return
        group = self._group(request.group)
        if group.has_session(request.member_id):  # who was taken out has left, and whose group is gone too
            group.session(request.member_id, caller.name)
            group.leave(request.member_id, self._partitions_of)

    # Positions.

    async def commit(self, request: pb.CommitRequest, call: Call) -> pb.CommitResponse:
        call.check("read", "group", request.group)
        _check_topics(request.positions, call)
        return await self._change(request.group, self._commit, request, call.caller)

    async def commit_all(self, request: pb.CommitAllRequest, call: Call) -> pb.CommitAllResponse:
        if len(request.commits) > COMMITS_AT_ONCE:
            raise InvalidConfiguration(f"a call has at most {COMMITS_AT_ONCE} commits")
        tasks = [asyncio.create_task(self._outcome(one, call)) for one in request.commits]
        try:
            if tasks:
                # One whose log waits for a replica keeps the others waiting for no longer than this.
                await asyncio.wait(tasks, timeout=_TOGETHER)
            return pb.CommitAllResponse(outcomes=[one.result() if one.done() else pb.CommitOutcome() for one in tasks])
        finally:
            for one in tasks:
                one.cancel()

    async def _outcome(self, request: pb.CommitRequest, call: Call) -> pb.CommitOutcome:
        try:
            return pb.CommitOutcome(response=await self.commit(request, call))
        except HeadwaterError as error:
            return pb.CommitOutcome(error=pack_error(error))

    def _commit(self, request: pb.CommitRequest, caller: Caller) -> pb.CommitResponse:
        group = self._group(request.group)
        commits, known = self.commits_of(group, request.positions)
        if request.member_id and not group.has_session(request.member_id):
            return pb.CommitResponse(refused=_packed(commits))
        if request.member_id:
            group.session(request.member_id, caller.name)
            group.heard(request.member_id, polled=False)
        refused = group.commit(request.member_id or None, commits, known=None if request.member_id else known)
        return pb.CommitResponse(refused=_packed(refused))

    def commits_of(
        self, group: GroupCoordinator, positions: Iterable[pb.Advance]
    ) -> tuple[dict[TopicPartition, Commit], dict[TopicKey, int]]:
        """The positions to set, and for non-members the generation of each position that they go on from.

        Rights are checked by the names of topics, and positions are kept by their uuids. So a name and a uuid that
        belong to different topics are refused.
        """
        positions = list(positions)
        if self._core.access.enforced:
            names = self._names_of(one.topic_uuid for one in positions if one.topic_uuid)
            for one in positions:
                if names.get(one.topic_uuid, one.topic) != one.topic:
                    raise InvalidConfiguration(f"a position in topic {one.topic!r} has the uuid of another topic")
        commits: dict[TopicPartition, Commit] = {}
        known: dict[TopicKey, int] = {}
        for one in positions:
            uuid = one.topic_uuid or self._uuid_of(one.topic)
            if len(uuid) != 16 or one.offset < 0:
                raise InvalidConfiguration("a position has a topic's uuid of 16 bytes and an offset from 0 on")
            key = (uuid, one.partition)
            commits[TopicPartition(one.topic, one.partition)] = Commit(key, one.offset)
            known[key] = one.known_generation if one.HasField("known_generation") else self._present(group, key)
        return commits, known

    def _present(self, group: GroupCoordinator, key: TopicKey) -> int:
        """The generation for those who do not say which one they know: the position's own."""
        found = group.position(key)
        return group.generation() if found is None else found.generation

    async def reset_group(self, request: pb.ResetGroupRequest, call: Call) -> pb.ResetGroupResponse:
        call.check("read" if request.clamp else "write", "group", request.group)
        _check_topics(request.positions, call)
        await self._change(request.group, self._reset, request)
        self._tell(request.group)
        return pb.ResetGroupResponse()

    def _reset(self, request: pb.ResetGroupRequest) -> None:
        group = self._group(request.group)
        commits, _ = self.commits_of(group, request.positions)
        if request.clamp:
            group.clamp(commits)
        else:
            group.reset(commits)

    async def expire_group(self, request: pb.ExpireGroupRequest, call: Call) -> pb.ExpireGroupResponse:
        call.check("write", "group", request.group)
        expired = await self._change(request.group, self._expire, request)
        self._tell(request.group)
        return pb.ExpireGroupResponse(expired=expired)

    def _expire(self, request: pb.ExpireGroupRequest) -> bool:
        if not self._has(request.group):
            return False
        return self._group(request.group).expire(request.before_ns, dry_run=request.dry_run)

    # What the brokers of a cluster ask each other.

    async def list_readers(self, request: pb.ListReadersRequest, call: Call) -> pb.ListReadersResponse:  # noqa: ARG002
        raise Refused("the broker is in no cluster")

    # Plain records.

    async def poll(self, request: pb.PollRequest, call: Call) -> pb.PollResponse:
        call.check("read", "group", request.group)
        deadline = time.monotonic() + call.patience(request.max_wait_ms)
        while True:
            places = await self._change(request.group, self._assigned, request, call.caller)
            for place in places:  # rights may have changed since the member joined
                call.check("read", "topic", place.topic)
            keys: list[Key] = [*places, (request.group, GROUP)]
            with self._core.arrivals.expecting(keys) as waiter:
                answer = await self._core.read(self._poll, request, call.caller)
                left = deadline - time.monotonic()
                if answer.partitions or left <= 0 or self._core.draining.is_set():
                    return answer
                # Partitions that others have yet to give up come without anything being told of it.
                await waiter.wait(min(left, 1.0))

    def _assigned(self, request: pb.PollRequest, caller: Caller) -> list[TopicPartition]:
        """What is the member's by now. What it must give up it has given up with its last poll."""
        group = self._known(request.group)
        session = group.session(request.member_id, caller.name)
        interval = session.max_poll_interval or _MAX_POLL_INTERVAL
        _, _, settled = self._settle(request.group, request.member_id, caller, interval, ())
        for place in set(session.reading) - (settled.owned - settled.taken):
            del session.reading[place]
        return sorted(settled.owned)

    def _poll(self, request: pb.PollRequest, caller: Caller) -> pb.PollResponse:
        group = self._known(request.group)
        session = group.session(request.member_id, caller.name)
        left = most_records(request)
        answer = pb.PollResponse(generation=group.generation())
        owners = group.describe().owners
        places = [place for place, owner in owners.items() if owner == request.member_id]
        # The one that was read longest ago comes first.
        turns = {place: turn for turn, place in enumerate(session.reading)}
        for place in sorted(places, key=lambda one: turns.get(one, -1)):
            polled = self._read(group, session, place, left) if left else None
            if polled is not None:
                left -= len(polled.records)
                answer.partitions.append(polled)
        return answer

    def _read(self, group: Sessions, session: Session, place: TopicPartition, limit: int) -> pb.PolledPartition | None:
        try:
            info = self._store.describe_topic(place.topic)
        except UnknownTopic:
            return None  # the next time that the member settles, it is no longer there
        partition = self._store.partition(info, place.partition)
        start, end, _ = partition.bounds()
        uuid, offset = session.reading.pop(place, (b"", -1))
        if uuid != info.uuid:
            position = group.position((info.uuid, place.partition))
            offset = start if position is None else min(position.offset, end)
        offset = max(offset, start)
        records: list[pb.Record] = []
        if offset < end:
            for record in to_records(partition.read(offset, max_bytes=_POLLED_BYTES), offset):
                records.append(record)
                if len(records) == limit:
                    break
            offset = records[-1].offset + 1 if records else end
        session.reading[place] = (info.uuid, offset)
        return (
            pb.PolledPartition(
                topic=place.topic,
                partition=place.partition,
                topic_uuid=info.uuid,
                records=records,
                next_offset=offset,
                lag=max(end - offset, 0),
            )
            if records
            else None
        )

    # The dead.

    async def sweep(self) -> None:
        """Take dead members out, for ever, so that the others notice without having to look for them."""
        while True:
            await asyncio.sleep(_SWEEP)
            for name in await self._core.read(self._take_dead_out):
                self._tell(name)

    def _take_dead_out(self) -> list[str]:
        changed: list[str] = []
        problems: set[str] = set()
        try:
            for name in self._store.group_names():
                try:
                    if self._group(name).take_dead_out(self._partitions_of):
                        changed.append(name)
                except StoreClosed:
                    return changed
                except (HeadwaterError, OSError) as error:
                    problems.add(f"group {name!r} cannot be looked after: {error}")
        except (HeadwaterError, OSError) as error:
            problems.add(f"groups cannot be looked after: {error}")
        for problem in problems - self._problems:
            _log.error(problem)
        self._problems = problems
        return changed

    def _tell(self, group: str) -> None:
        self._core.arrivals.tell([(group, GROUP)])


def most_records(request: pb.PollRequest) -> int:
    """How many records a poll gets at most."""
    return min(request.max_records or _POLLED_RECORDS, _POLLED_RECORDS * 20)


def _check_topics(positions: Iterable[pb.Advance], call: Call) -> None:
    for one in positions:
        call.check("read", "topic", one.topic)


def _packed(places: Iterable[TopicPartition]) -> list[pb.TopicPartition]:
    return [pb.TopicPartition(topic=place.topic, partition=place.partition) for place in sorted(places)]
