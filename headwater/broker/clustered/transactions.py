"""Transactions in a cluster, over the wire.

Frames are staged at the leaders of the partitions that they are for. The coordinator of the writer, or of the group,
decides, and has the leaders write what is decided: see `headwater.cluster.transactions.deciding`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from headwater.broker.clustered.groups import ClusterGroups, Coordination
from headwater.broker.core import Core, topic_of
from headwater.broker.limits.admission import Frames
from headwater.broker.rpc.call import Call, Refused, check_readable
from headwater.broker.rpc.transactions import check_request_id, pack_answer
from headwater.broker.security.access import BROKER
from headwater.cluster.internal import Coordinators
from headwater.cluster.node import ClusterNode
from headwater.cluster.replication.carrier import Portion
from headwater.cluster.replication.replica import NotLeading
from headwater.cluster.transactions.deciding import Decider, Verdict, WriterCoordinator
from headwater.cluster.transactions.stages import Stages
from headwater.cluster.transactions.transaction_log import PartitionWrites, StageRange, TransactionRequest
from headwater.core.errors import (
    BrokerUnavailable,
    HeadwaterError,
    InvalidConfiguration,
    InvalidRecord,
    NotLeader,
    PartitionDeleted,
    PermissionDenied,
    StoreError,
    TransactionAborted,
    UnknownTopic,
    UntrustedFrame,
)
from headwater.core.names import GROUPS, WRITERS, check_name
from headwater.core.options import GIB, MIB
from headwater.log import Frame
from headwater.streams.topic import TopicPartition
from headwater.streams.transaction import STAGES_KEPT
from headwater.v1 import broker_pb2 as pb
from headwater.wire.deciding import coordinated
from headwater.wire.packing import Framed

_log = logging.getLogger(__name__)
_AT_ONCE: Final = 4 * MIB
"""So many bytes of frames are staged with one write and one sync."""
_LARGEST: Final = GIB
"""What a transaction may write to one partition: replicas copy it in one piece."""
_HOLDING: Final = 20.0
"""How long the leaders of partitions are looked for before a decision. Seconds."""
_CALL: Final = 30.0
"""How long a leader may take to write what is decided, before it is asked again. Seconds."""
_DROPPING: Final = 5.0
_AGAIN: Final = 0.05
_CLEANING: Final = 60.0
_PLACES: Final = 10_000
_Place = tuple[TopicPartition, bytes]
"""A partition, and the uuid of its topic."""


class ClusterTransactions:
    """The methods about transactions, in a cluster."""

    def __init__(self, core: Core, node: ClusterNode, groups: ClusterGroups) -> None:
        self._core = core
        self._store = core.store
        self._node = node
        self._groups = groups
        now_ns = core.store.elapsed.now_ns
        groups.decider_of = lambda one: Decider(
            one.key, one.rules.transaction_log, one, self._apply, self._hold, now_ns
        )
        self._stages = Stages(node)
        node.begin(self._clean())
        self._writers = Coordinators(node, WRITERS, lambda log: WriterCoordinator(log, self._apply, self._hold, now_ns))

    # Staging.

    async def stage(self, requests: AsyncIterator[Framed[pb.StageRequest]], call: Call) -> pb.Staged:
        gathered = _Gathered()
        sealed = False
        try:
            async for request in requests:
                check_readable(request)
                call.check("write", "topic", request.message.topic)
                place = await self._led_here(request.message)
                size = request.message.ByteSize() + sum(map(len, request.frames))
                hold = await call.hold_request(size)
                try:
                    frames = await self._core.read(self._admitted, request, call)
                    if gathered.add(place, frames, size):
                        await self._write(gathered)
                finally:
                    hold.give_back()
            await self._write(gathered)
            for staged_at, ranges in gathered.ranges.items():
                await self._stages.acknowledged(*staged_at, ranges)
            sealed = True
        finally:
            if not sealed:
                self._give_up(gathered)
        return pb.Staged(token=self._token(gathered), records=gathered.records)

    async def _led_here(self, request: pb.StageRequest) -> _Place:
        """The partition that is meant, if it is led here; raises NotLeader, UnknownTopic and PartitionDeleted."""
        place = TopicPartition(request.topic, request.partition)
        topic = self._node.membership.view.topics.get(place.topic)
        if topic is None or request.topic_uuid not in (b"", topic.info.uuid):
            topic = await self._node.topics.get(place.topic)  # this broker may not have heard of the newer one
            if request.topic_uuid not in (b"", topic.info.uuid):
                raise PartitionDeleted(f"topic {place.topic!r}")
        if place.partition >= topic.info.partitions:
            topic = await self._node.topics.get(place.topic)
        if place.partition >= topic.info.partitions:
            raise InvalidConfiguration(
                f"topic {place.topic!r} has partitions 0 to {topic.info.partitions - 1}, not {place.partition}"
            )
        await self._stages.open(place, topic.info.uuid)
        return place, topic.info.uuid

    def _admitted(self, request: Framed[pb.StageRequest], call: Call) -> list[Frame]:
        """In a thread."""
        message, data = request
        info = topic_of(self._store, message)
        frames = Frames(self._core, call.caller, message.topic_uuid, lambda: data).frames(info)
        for frame in frames:
            if frame.identity is not None:
                raise UntrustedFrame("a staged frame has no producer: it gets the identity of its transaction")
            if frame.length > info.config.max_frame_bytes:
                raise InvalidRecord(
                    f"{info.name}/{message.partition}: a frame of {frame.length} bytes is over the limit of "
                    f"{info.config.max_frame_bytes} (max_frame_bytes)"
                )
        return frames

    async def _write(self, gathered: _Gathered) -> None:
        for place, frames in gathered.take():
            gathered.ranges.setdefault(place, []).append(await self._stages.append(*place, frames))

    def _give_up(self, gathered: _Gathered) -> None:
        for place, ranges in gathered.ranges.items():
            try:
                self._stages.drop(*place, ranges)
            except HeadwaterError:
                continue  # another one leads: there it goes when it is old

    def _token(self, gathered: _Gathered) -> bytes:
        outputs = [
            [place.topic, uuid.hex(), place.partition, ranges] for (place, uuid), ranges in gathered.ranges.items()
        ]
        content = [outputs, gathered.records, gathered.bytes, self._store._clock.now_ns()]
        return self._core.secrets.seal(json.dumps(content, separators=(",", ":")).encode())

    def _shares(self, tokens: Iterable[pb.Staged], call: Call) -> tuple[PartitionWrites, ...]:
        """What is staged under these tokens; raises StoreError for one that this cluster has not made, or long ago."""
        found: dict[tuple[str, bytes, int], list[StageRange]] = {}
        sizes: dict[tuple[str, bytes, int], int] = {}
        for one in tokens:
            outputs, _, size, staged_ns = json.loads(self._core.secrets.unseal(one.token))
            if self._store.elapsed.age_ns(staged_ns) > STAGES_KEPT * 1e9:
                raise TransactionAborted("what the transaction has staged is more than a day old: stage it again")
            for topic, uuid, number, ranges in outputs:
                call.check("write", "topic", topic)
                key = (topic, bytes.fromhex(uuid), int(number))
                found.setdefault(key, []).extend(StageRange(*each) for each in ranges)
                sizes[key] = sizes.get(key, 0) + size
        if len(found) > _PLACES or max(sizes.values(), default=0) > _LARGEST:
            raise InvalidRecord(
                f"a transaction writes to {_PLACES} partitions at most, and {_LARGEST} bytes to each: make it smaller"
            )
        return tuple(PartitionWrites(*place, tuple(ranges)) for place, ranges in found.items())

    async def drop_stages(self, request: pb.DropStagesRequest, call: Call) -> pb.DropStagesResponse:
        elsewhere: dict[TopicPartition, pb.DropStagesRequest] = {}
        for one in request.staged:
            try:
                shares = self._shares([one], call)
            except TransactionAborted:
                continue  # it goes by itself
            for topic, uuid, number, ranges in shares:
                place = TopicPartition(topic, number)
                try:
                    self._stages.drop(place, uuid, ranges)
                except NotLeader:
                    elsewhere.setdefault(place, pb.DropStagesRequest()).staged.append(one)
        for place, passed_on in elsewhere.items() if not call.by_broker else ():
            try:
                await self._node.call_leader(place, "DropStages", passed_on, _DROPPING)
            except (NotLeader, BrokerUnavailable) as error:
                _log.debug("%s/%d: what is dropped stays until it is old: %s", *place, error)
        return pb.DropStagesResponse()

    # Deciding.

    async def commit_transaction(
        self, request: pb.CommitTransactionRequest, call: Call
    ) -> pb.CommitTransactionResponse:
        shares = self._shares(request.staged, call)
        check_request_id(request.request_id)
        if request.group:
            return await self._commit_progress(request, shares, call)
        if request.inputs:
            raise StoreError("positions are a group's: name it")
        if request.writer:  # whoever may use a name can make what is numbered under it count as done
            call.check("write", "group", request.writer)
            check_name("writer", request.writer)
        wanted = _wanted(request, shares)
        coordinator = await self._writers.of(coordinated(request)[1])
        try:
            verdict = await coordinator.decider.commit(wanted)
        except NotLeading:
            raise NotLeader(*coordinator.place, None) from None
        return _answer(shares, verdict, 0)

    async def _commit_progress(
        self, request: pb.CommitTransactionRequest, shares: tuple[PartitionWrites, ...], call: Call
    ) -> pb.CommitTransactionResponse:
        """Decide together with the positions of a consumer, in the log of its group."""
        call.check("read", "group", request.group)
        for one in request.inputs:
            call.check("read", "topic", one.topic)
        if request.writer:
            raise InvalidConfiguration("a transaction has a consumer or a writer with a sequence, not both")
        coordinator = await self._groups.coordinators.of(request.group)
        assert coordinator.decider is not None, "it is made with the coordinator"
        progress = self._groups.progress(request, call.caller)
        try:
            wanted = TransactionRequest(request.request_id, shares)
            verdict = await coordinator.decider.commit(wanted, progress.advance, progress.check)
        except NotLeading:
            raise NotLeader(*coordinator.place, None) from None
        return _answer(shares, verdict, progress.generation())

    async def _hold(self, shares: tuple[PartitionWrites, ...]) -> None:
        """Make sure, at the leaders of their partitions, that shares are staged; raises TransactionAborted."""
        await asyncio.gather(*(self._hold_one(share) for share in shares))

    async def _hold_one(self, share: PartitionWrites) -> None:
        deadline = time.monotonic() + _HOLDING
        place = TopicPartition(share.topic, share.partition)
        request = _packed(share, b"", [Portion(0, share.ranges)])
        while True:
            try:
                await self._check_there(share)
                if self._node.leads(place):
                    self._stages.hold(place, share.uuid, share.ranges)
                else:
                    await self._node.call_leader(place, "HoldStages", request, _HOLDING)
                return
            except (UnknownTopic, PartitionDeleted):
                return  # what is for a deleted topic goes with it
            except (NotLeader, BrokerUnavailable) as error:
                if time.monotonic() > deadline:
                    raise TransactionAborted(f"nothing was decided: {error}") from error
            await asyncio.sleep(_AGAIN)

    async def _apply(self, share: PartitionWrites, writer: bytes, portions: Sequence[Portion]) -> Sequence[int | None]:
        """Have the leader of a partition write what is decided; raises UnknownTopic, PartitionDeleted and others."""
        await self._check_there(share)
        place = TopicPartition(share.topic, share.partition)
        if self._node.leads(place):
            return await self._stages.apply(place, share.uuid, writer, portions)
        request = _packed(share, writer, portions)
        found: pb.ApplyStagesResponse = await self._node.call_leader(place, "ApplyStages", request, _CALL)
        return [one.base_offset if one.HasField("base_offset") else None for one in found.applied]

    async def _check_there(self, share: PartitionWrites) -> None:
        """Raise UnknownTopic or PartitionDeleted if the topic was deleted: not by what this broker has heard of."""
        known = self._node.membership.view.topics.get(share.topic)
        if known is not None and known.info.uuid == share.uuid:
            return
        if (await self._node.topics.get(share.topic)).info.uuid != share.uuid:
            raise PartitionDeleted(f"topic {share.topic!r}")
        raise self._node.not_leader(TopicPartition(share.topic, share.partition))

    async def roll_forward(self, request: pb.RollForwardRequest, call: Call) -> pb.RollForwardResponse:
        if request.group:
            call.check("read", "group", request.group)
            return pb.RollForwardResponse()  # positions are set with the decision; records follow by themselves
        call.check("admin", "broker", BROKER)
        deciders = _deciders(self._writers.all(), self._groups.coordinators.all()).values()
        if request.dry_run:
            return pb.RollForwardResponse(transactions=sum(len(one.undone) for one in deciders))
        try:
            return pb.RollForwardResponse(transactions=sum([await one.settle() for one in deciders]))
        except NotLeading:
            raise Refused("another broker coordinates some of it now: try again") from None

    # Between brokers.

    async def hold_stages(self, request: pb.StagesRequest, call: Call) -> pb.HoldStagesResponse:
        _check_broker(call)
        place = TopicPartition(request.partition.topic, request.partition.partition)
        for portion in _portions(request):
            self._stages.hold(place, request.partition.topic_uuid, portion.ranges)
        return pb.HoldStagesResponse()

    async def apply_stages(self, request: pb.StagesRequest, call: Call) -> pb.ApplyStagesResponse:
        _check_broker(call)
        place = TopicPartition(request.partition.topic, request.partition.partition)
        applying = self._stages.apply(place, request.partition.topic_uuid, request.writer, _portions(request))
        # Whoever gives up waiting does not stop it in the middle.
        bases = await asyncio.shield(asyncio.ensure_future(applying))
        return pb.ApplyStagesResponse(applied=[pb.AppliedPortion(base_offset=base) for base in bases])

    async def list_undone(self, request: pb.ListUndoneRequest, call: Call) -> pb.ListUndoneResponse:
        _check_broker(call)
        return await self._undone_here(request)

    async def _undone_here(self, request: pb.ListUndoneRequest) -> pb.ListUndoneResponse:
        key = (request.partition.topic_uuid, request.partition.partition)
        answer = pb.ListUndoneResponse()
        sure = await asyncio.gather(self._writers.confirmed(), self._groups.coordinators.confirmed())
        for (topic, number), decider in _deciders(*sure).items():
            answer.coordinated.append(pb.TopicPartition(topic=topic, partition=number))
            for share in (share for ruling in decider.undone for share in ruling.shares):
                if (share.uuid, share.partition) == key:
                    answer.undone.extend(pb.StageRange(**found._asdict()) for found in share.ranges)
        return answer

    # Cleaning.

    async def _clean(self) -> None:
        """Remove stages that nobody needs, for ever."""
        while True:
            await asyncio.sleep(min(self._store.defaults.steward.interval, _CLEANING))
            for place in self._node.staged():
                try:
                    await self._stages.free(place, self._undone)
                except (HeadwaterError, OSError) as error:
                    _log.debug("%s/%d: stages are not looked after: %s", *place, error)

    async def _undone(self, place: TopicPartition, uuid: bytes) -> list[StageRange] | None:
        """What is decided and not written yet, if all who coordinate tell."""
        where = pb.TopicPartition(topic=place.topic, topic_uuid=uuid, partition=place.partition)
        request = pb.ListUndoneRequest(partition=where)
        answers = [await self._undone_here(request)]
        for broker in self._node.membership.view.members.keys() - {self._node.broker}:
            with suppress(HeadwaterError):
                answers.append(await self._node.call_broker(broker, "ListUndone", request, _DROPPING))
        told = {(one.topic, one.partition) for answer in answers for one in answer.coordinated}
        for topic in (WRITERS, GROUPS):
            try:
                partitions = (await self._node.topics.get(topic)).info.partitions
            except UnknownTopic:
                continue
            if any((topic, number) not in told for number in range(partitions)):
                return None
        return [StageRange(one.epoch, one.start, one.end) for answer in answers for one in answer.undone]


def _deciders(
    writers: Mapping[int, WriterCoordinator], groups: Mapping[int, Coordination]
) -> dict[TopicPartition, Decider]:
    """Those who decide, and where."""
    found = {TopicPartition(WRITERS, number): one.decider for number, one in writers.items()}
    for number, other in groups.items():
        if other.decider is not None:
            found[TopicPartition(GROUPS, number)] = other.decider
    return found


class _Gathered:
    """What one call stages: frames that are not written yet, and where the others are."""

    def __init__(self) -> None:
        self._frames: dict[_Place, list[Frame]] = {}
        self._waiting = 0
        self.ranges: dict[_Place, list[StageRange]] = {}
        self.records = 0
        self.bytes = 0

    def add(self, place: _Place, frames: list[Frame], size: int) -> bool:
        """Keep frames; whether there are so many that they are to be written."""
        self._frames.setdefault(place, []).extend(frames)
        self.records += sum(frame.record_count for frame in frames)
        self.bytes += size
        self._waiting += size
        return self._waiting >= _AT_ONCE

    def take(self) -> list[tuple[_Place, list[Frame]]]:
        """What is to be written."""
        found, self._frames, self._waiting = self._frames, {}, 0
        return [(place, frames) for place, frames in found.items() if frames]


def _wanted(request: pb.CommitTransactionRequest, shares: tuple[PartitionWrites, ...]) -> TransactionRequest:
    if not request.writer:
        if request.HasField("sequence") or request.HasField("owner") or request.takeover:
            raise InvalidConfiguration("a numbered transaction has a writer: name it")
        return TransactionRequest(request.request_id, shares)
    if not request.HasField("sequence"):
        raise InvalidConfiguration("a named transaction has a writer and a sequence: give both, or neither")
    if request.takeover and not request.HasField("owner"):
        raise InvalidConfiguration("a writer is taken over by an owner: name it")
    owner = request.owner if request.HasField("owner") else None
    return TransactionRequest(request.request_id, shares, request.writer, request.sequence, owner, request.takeover)


def _answer(shares: Iterable[PartitionWrites], verdict: Verdict, generation: int) -> pb.CommitTransactionResponse:
    if verdict.repeated:
        return pb.CommitTransactionResponse(repeated=True)
    places = [(share.topic, share.uuid, share.partition) for share in shares]
    return pack_answer(places, {key: base for key, base in verdict.bases.items() if base is not None}, generation)


def _packed(share: PartitionWrites, writer: bytes, portions: Iterable[Portion]) -> pb.StagesRequest:
    return pb.StagesRequest(
        partition=pb.TopicPartition(topic=share.topic, topic_uuid=share.uuid, partition=share.partition),
        writer=writer,
        portions=[
            pb.StagedPortion(number=number, ranges=[pb.StageRange(**found._asdict()) for found in ranges])
            for number, ranges in portions
        ],
    )


def _portions(request: pb.StagesRequest) -> list[Portion]:
    return [
        Portion(portion.number, [StageRange(one.epoch, one.start, one.end) for one in portion.ranges])
        for portion in request.portions
    ]


def _check_broker(call: Call) -> None:
    if not call.by_broker:
        raise PermissionDenied(call.caller.name, "admin", "broker", BROKER)
