"""The RPCs about consumer groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from headwater.broker.backend import NamedMember, NamedPartition, NewMember, NewPosition
from headwater.broker.core import Core
from headwater.broker.rpc.call import Call
from headwater.broker.rpc.carrying import Carrying
from headwater.broker.rpc.messages import pack_partitions, pack_record
from headwater.core.errors import HeadwaterError, InvalidConfiguration
from headwater.streams.pattern import TopicFilter
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import pack_error

COMMITS_AT_ONCE: Final = 1000
"""The most commits that one call takes."""
_TOGETHER: Final = 0.5
"""Commits that have come in one call wait so many seconds for each other."""
_POLLED_RECORDS: Final = 500


class GroupMethods:
    """The methods about groups."""

    def __init__(self, core: Core, carrying: Carrying) -> None:
        self._groups = core.backend.groups
        self._carried_commit = carrying.method("Commit", self.commit)

    async def list_groups(self, request: pb.ListGroupsRequest, call: Call) -> pb.ListGroupsResponse:  # noqa: ARG002
        names = await self._groups.names()
        return pb.ListGroupsResponse(groups=[name for name in names if call.sees(name, "group")])

    async def describe_group(self, request: pb.DescribeGroupRequest, call: Call) -> pb.Group:
        call.check("read", "group", request.group)
        group = await self._groups.describe(request.group)
        if group is None:
            return pb.Group(name=request.group)
        partitions = sorted(tp for tp in group.target.keys() | group.owners.keys() if call.sees(tp.topic))
        positions = list(group.positions.values())
        if not call.sees_everything:
            names = await self._groups.topic_names({position.topic for position in positions})
            positions = [
                position for position in positions if position.topic in names and call.sees(names[position.topic])
            ]
        return pb.Group(
            name=request.group,
            generation=group.generation,
            members=[
                pb.Member(
                    id=member_id,
                    topics=filter(call.sees, member.topics),
                    joined_ns=member.joined_ns,
                    client=member.client,
                    static=member.static,
                )
                for member_id, member in group.members.items()
            ],
            partitions=[
                pb.Ownership(
                    topic=partition.topic,
                    partition=partition.partition,
                    owner=group.owners.get(partition, ""),
                    target=group.target.get(partition, ""),
                )
                for partition in partitions
            ],
            positions=[
                pb.Position(
                    topic_uuid=position.topic,
                    partition=position.partition,
                    offset=position.offset,
                    generation=position.generation,
                    committed_ns=position.committed_ns,
                    commits=position.commits,
                )
                for position in positions
            ],
        )

    # Members.

    async def join_group(self, request: pb.JoinGroupRequest, call: Call) -> pb.JoinGroupResponse:
        call.check("read", "group", request.group)
        wanted = TopicFilter(list(request.topics))
        for name in (*wanted.names, *wanted.patterns):
            call.check("read", "topic", name)
        member = NewMember(
            list(request.topics),
            call.caller.name,
            request.member_id,
            request.client,
            request.static,
            request.session_timeout_ms / 1000,
        )
        joined = await self._groups.join(request.group, member)
        return pb.JoinGroupResponse(
            member_id=joined.member_id,
            generation=joined.generation,
            session_timeout_ms=round(joined.session_timeout * 1000),
            heartbeat_interval_ms=round(joined.heartbeat_interval * 1000),
        )

    async def settle_group(self, request: pb.SettleGroupRequest, call: Call) -> pb.SettleGroupResponse:
        call.check("read", "group", request.group)
        holding = [TopicPartition(named.topic, named.partition) for named in request.holding]
        interval = request.max_poll_interval_ms / 1000 or None
        generation, rebalanced = await self._groups.rebalance(_member(request, call), interval, holding)
        return pb.SettleGroupResponse(
            generation=generation,
            owned=pack_partitions(rebalanced.owned),
            leaving=pack_partitions(rebalanced.leaving),
            taken=pack_partitions(rebalanced.taken),
            waiting=rebalanced.waiting,
        )

    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:
        call.check("read", "group", request.group)
        wait = call.patience(request.max_wait_ms)
        generation = await self._groups.heartbeat(
            _member(request, call), request.generation, wait, polled=request.polled
        )
        return pb.HeartbeatResponse(generation=generation)

    async def leave_group(self, request: pb.LeaveGroupRequest, call: Call) -> pb.LeaveGroupResponse:
        call.check("read", "group", request.group)
        await self._groups.leave(_member(request, call))
        return pb.LeaveGroupResponse()

    # Positions.

    async def commit(self, request: pb.CommitRequest, call: Call) -> pb.CommitResponse:
        call.check("read", "group", request.group)
        _check_topics(request.positions, call)
        refused = await self._groups.commit(_member(request, call), new_positions(request.positions))
        return pb.CommitResponse(refused=pack_partitions(refused))

    async def commit_all(self, request: pb.CommitAllRequest, call: Call) -> pb.CommitAllResponse:
        if len(request.commits) > COMMITS_AT_ONCE:
            raise InvalidConfiguration(f"a call has at most {COMMITS_AT_ONCE} commits")
        tasks = [asyncio.create_task(self._outcome(commit, call)) for commit in request.commits]
        try:
            if tasks:
                # A commit whose log waits for a replica keeps the others waiting for no longer than this.
                await asyncio.wait(tasks, timeout=_TOGETHER)
            return pb.CommitAllResponse(
                outcomes=[task.result() if task.done() else pb.CommitOutcome() for task in tasks]
            )
        finally:
            for task in tasks:
                task.cancel()

    async def _outcome(self, request: pb.CommitRequest, call: Call) -> pb.CommitOutcome:
        try:
            return pb.CommitOutcome(response=await self._carried_commit(request, call))
        except HeadwaterError as error:
            return pb.CommitOutcome(error=pack_error(error))

    async def reset_group(self, request: pb.ResetGroupRequest, call: Call) -> pb.ResetGroupResponse:
        call.check("read" if request.clamp else "write", "group", request.group)
        _check_topics(request.positions, call)
        await self._groups.reset(request.group, new_positions(request.positions), clamp=request.clamp)
        return pb.ResetGroupResponse()

    async def expire_group(self, request: pb.ExpireGroupRequest, call: Call) -> pb.ExpireGroupResponse:
        call.check("write", "group", request.group)
        expired = await self._groups.expire(request.group, request.before_ns, dry_run=request.dry_run)
        return pb.ExpireGroupResponse(expired=expired)

    # Plain records.

    async def poll(self, request: pb.PollRequest, call: Call) -> pb.PollResponse:
        call.check("read", "group", request.group)

        def check(topic: str) -> None:
            call.check("read", "topic", topic)

        max_records = min(request.max_records or _POLLED_RECORDS, _POLLED_RECORDS * 20)
        wait = call.patience(request.max_wait_ms)
        polled = await self._groups.poll(_member(request, call), max_records, wait, check, again=request.again)
        return pb.PollResponse(
            generation=polled.generation,
            partitions=[
                pb.PolledPartition(
                    topic=entry.partition.topic,
                    partition=entry.partition.partition,
                    topic_uuid=entry.partition.topic_uuid,
                    records=map(pack_record, entry.records),
                    next_offset=entry.next_offset,
                    lag=entry.lag,
                )
                for entry in polled.partitions
            ],
        )


def _member(
    request: pb.SettleGroupRequest | pb.HeartbeatRequest | pb.LeaveGroupRequest | pb.CommitRequest | pb.PollRequest,
    call: Call,
) -> NamedMember:
    return NamedMember(request.group, request.member_id, call.caller.name)


def new_positions(positions: Iterable[pb.Advance]) -> list[NewPosition]:
    """The positions of a request."""
    return [
        NewPosition(
            NamedPartition(position.topic, position.partition, position.topic_uuid),
            position.offset,
            position.known_generation if position.HasField("known_generation") else None,
        )
        for position in positions
    ]


def _check_topics(positions: Iterable[pb.Advance], call: Call) -> None:
    for position in positions:
        call.check("read", "topic", position.topic)
