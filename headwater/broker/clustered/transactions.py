"""Transactions of a cluster.

Frames are staged at the leaders of the partitions that they are for. The coordinator of the writer, or of the group,
decides, and has the leaders write what is decided: see `headwater.cluster.transactions.deciding`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from headwater.broker.append_queue import AppendBatch
from headwater.broker.backend import (
    AppliedWrite,
    Authorise,
    CommittedTransaction,
    NamedMember,
    NamedPartition,
    NamedTopic,
    NewPosition,
    Refused,
    StageToken,
    TransactionCommit,
    TransactionStage,
)
from headwater.broker.clustered.coordinator import Coordination, LoggedSessions
from headwater.broker.clustered.groups import CoordinatedGroups
from headwater.broker.clustered.peers import Peers, UndoneWrites
from headwater.broker.group_rules import GroupRules
from headwater.broker.runtime import Runtime
from headwater.broker.security.secrets import Secrets
from headwater.broker.staging import check_request_id, check_staged
from headwater.broker.stored import topic_of
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
    StoreError,
    TransactionAborted,
    UnknownTopic,
)
from headwater.core.limits import check_frame_size
from headwater.core.names import GROUPS, WRITERS, check_name
from headwater.core.options import GIB, MIB
from headwater.log import Frame
from headwater.streams.group import Commit
from headwater.streams.topic import TopicPartition
from headwater.streams.transaction import STAGES_KEPT
from headwater.wire.deciding import coordinating_name

_log = logging.getLogger(__name__)
_AT_ONCE: Final = 4 * MIB
"""So many bytes of frames are staged with one write and one sync."""
_LARGEST: Final = GIB
"""The most that a transaction may write to one partition: replicas copy it in one piece."""
_HOLDING: Final = 20.0
"""Before a decision, leaders of partitions are looked for so many seconds."""
_AGAIN: Final = 0.05
_CLEANING: Final = 60.0
_PARTITIONS: Final = 10_000
"""The most partitions that a transaction may write to."""
_Staged = tuple[TopicPartition, bytes]
"""A partition, and the uuid of its topic."""


class ReplicatedStage:
    """Frames in the stage logs of partitions that are led here. See `TransactionStage`."""

    def __init__(self, runtime: Runtime, node: ClusterNode, stages: Stages, seal: Callable[[bytes], bytes]) -> None:
        """`seal` makes a token of its content."""
        self._runtime = runtime
        self._node = node
        self._stages = stages
        self._seal = seal
        self._frames: dict[_Staged, list[Frame]] = {}
        self._waiting = 0
        self._ranges: dict[_Staged, list[StageRange]] = {}
        self._records = 0
        self._bytes = 0
        self._sealed = False

    async def append(self, partition: NamedPartition, batch: AppendBatch, size: int) -> None:
        """See TransactionStage."""
        staged = await self._led_here(partition)
        frames = await self._runtime.read(self._admitted, partition, batch)
        self._frames.setdefault(staged, []).extend(frames)
        self._records += sum(frame.record_count for frame in frames)
        self._bytes += size
        self._waiting += size
        if self._waiting >= _AT_ONCE:
            await self._write()

    async def _led_here(self, partition: NamedPartition) -> _Staged:
        """The partition that is meant, if it is led here; raises NotLeader, UnknownTopic and PartitionDeleted."""
        topic = self._node.membership.view.topics.get(partition.topic)
        if topic is None or partition.topic_uuid not in (b"", topic.info.uuid):
            topic = await self._node.topics.get(partition.topic)  # this broker may not have heard of the newer one
            if partition.topic_uuid not in (b"", topic.info.uuid):
                raise PartitionDeleted(f"topic {partition.topic!r}")
        if partition.partition >= topic.info.partitions:
            topic = await self._node.topics.get(partition.topic)
        if partition.partition >= topic.info.partitions:
            raise InvalidConfiguration(
                f"topic {partition.topic!r} has partitions 0 to {topic.info.partitions - 1}, not {partition.partition}"
            )
        await self._stages.open(partition.tp, topic.info.uuid)
        return partition.tp, topic.info.uuid

    def _admitted(self, partition: NamedPartition, batch: AppendBatch) -> Sequence[Frame]:
        """In a thread."""
        info = topic_of(self._node.store, NamedTopic(partition.topic, partition.topic_uuid))
        frames = check_staged(batch.frames(info))
        for frame in frames:
            check_frame_size(info.config, frame.length, partition.tp)
        return frames

    async def _write(self) -> None:
        frames, self._frames, self._waiting = self._frames, {}, 0
        for staged, batch in frames.items():
            if batch:
                self._ranges.setdefault(staged, []).append(await self._stages.append(*staged, batch))

    async def seal(self) -> StageToken:
        """See TransactionStage."""
        await self._write()
        for staged, ranges in self._ranges.items():
            await self._stages.acknowledged(*staged, ranges)
        self._sealed = True
        outputs = [[tp.topic, uuid.hex(), tp.partition, ranges] for (tp, uuid), ranges in self._ranges.items()]
        content = [outputs, self._records, self._bytes, self._node.store._clock.now_ns()]
        return StageToken(self._seal(json.dumps(content, separators=(",", ":")).encode()), self._records)

    async def discard(self) -> None:
        """See TransactionStage."""
        for staged, ranges in self._ranges.items() if not self._sealed else ():
            with suppress(HeadwaterError):  # another broker leads: there it goes when it is old
                self._stages.drop(*staged, ranges)


class ClusterTransactions:
    """Transactions that any broker takes. See `TransactionService`."""

    def __init__(
        self,
        runtime: Runtime,
        node: ClusterNode,
        peers: Peers,
        groups: CoordinatedGroups,
        rules: GroupRules,
        secrets: Callable[[], Secrets],
    ) -> None:
        """`secrets` gets the secrets of the cluster."""
        self._runtime = runtime
        self._node = node
        self._peers = peers
        self._groups = groups
        self._rules = rules
        self._secrets = secrets
        now_ns = node.store.elapsed.now_ns
        groups.decider_of = lambda coordination: Decider(
            coordination.key, coordination.rules.transaction_log, coordination, self._apply, self._hold, now_ns
        )
        self.stages = Stages(node)
        node.begin(self._clean())
        self._writers = Coordinators(node, WRITERS, lambda log: WriterCoordinator(log, self._apply, self._hold, now_ns))

    # Staging.

    async def stage(self) -> TransactionStage:
        """See TransactionService."""
        return ReplicatedStage(self._runtime, self._node, self.stages, self._secrets().seal)

    def _writes(self, tokens: Iterable[bytes], authorise: Authorise) -> tuple[PartitionWrites, ...]:
        """The writes under these tokens; raises StoreError for one that this cluster has not made, or long ago."""
        writes: dict[tuple[str, bytes, int], list[StageRange]] = {}
        sizes: dict[tuple[str, bytes, int], int] = {}
        for token in tokens:
            outputs, _, size, staged_ns = json.loads(self._secrets().unseal(token))
            if self._node.store.elapsed.age_ns(staged_ns) > STAGES_KEPT * 1e9:
                raise TransactionAborted("the transaction's staged records are more than a day old: stage them again")
            for topic, uuid, number, ranges in outputs:
                authorise(topic)
                key = (topic, bytes.fromhex(uuid), int(number))
                writes.setdefault(key, []).extend(StageRange(*fields) for fields in ranges)
                sizes[key] = sizes.get(key, 0) + size
        if len(writes) > _PARTITIONS or max(sizes.values(), default=0) > _LARGEST:
            raise InvalidRecord(
                f"a transaction writes to {_PARTITIONS} partitions at most, and {_LARGEST} bytes to each: make it "
                f"smaller"
            )
        return tuple(PartitionWrites(*key, tuple(ranges)) for key, ranges in writes.items())

    async def drop(self, tokens: Sequence[bytes], authorise: Authorise, *, forwarded: bool) -> None:
        """See TransactionService."""
        elsewhere: dict[TopicPartition, list[bytes]] = {}
        for token in tokens:
            try:
                writes = self._writes([token], authorise)
            except TransactionAborted:
                continue  # it goes by itself
            for topic, uuid, number, ranges in writes:
                partition = TopicPartition(topic, number)
                try:
                    self.stages.drop(partition, uuid, ranges)
                except NotLeader:
                    elsewhere.setdefault(partition, []).append(token)
        for partition, passed_on in elsewhere.items() if not forwarded else ():
            try:
                await self._peers.drop_stages(partition, passed_on)
            except (NotLeader, BrokerUnavailable) as error:
                _log.debug("%s/%d: what is dropped stays until it is old: %s", *partition, error)

    # Deciding.

    async def commit(self, transaction: TransactionCommit, authorise: Authorise) -> CommittedTransaction:
        """See TransactionService."""
        writes = self._writes(transaction.staged, authorise)
        check_request_id(transaction.request_id)
        if transaction.progress is not None:
            return await self._commit_progress(transaction, transaction.progress, writes)
        if transaction.inputs:
            raise StoreError("a transaction that commits positions must name the consumer's group")
        if transaction.writer:
            check_name("writer", transaction.writer)
        wanted = _wanted(transaction, writes)
        coordinator = await self._writers.of(coordinating_name(transaction.writer, transaction.request_id))
        try:
            verdict = await coordinator.decider.commit(wanted)
        except NotLeading:
            raise NotLeader(*coordinator.partition, None) from None
        return _committed(writes, verdict, 0)

    async def _commit_progress(
        self, transaction: TransactionCommit, member: NamedMember, writes: tuple[PartitionWrites, ...]
    ) -> CommittedTransaction:
        """Decide together with the positions of a consumer, in the log of its group."""
        if transaction.writer:
            raise InvalidConfiguration("a transaction has a consumer or a writer with a sequence, not both")
        coordination = await self._groups.coordinators.of(member.group)
        assert coordination.decider is not None, "it is made with the coordinator"
        progress = GroupProgress(self._groups, self._rules, member, transaction.inputs)
        try:
            wanted = TransactionRequest(transaction.request_id, writes)
            verdict = await coordination.decider.commit(wanted, progress.advance, progress.check)
        except NotLeading:
            raise NotLeader(*coordination.partition, None) from None
        return _committed(writes, verdict, progress.generation())

    async def _hold(self, writes: tuple[PartitionWrites, ...]) -> None:
        """Make sure, at the leaders of their partitions, that writes are staged; raises TransactionAborted."""
        await asyncio.gather(*map(self._hold_partition, writes))

    async def _hold_partition(self, writes: PartitionWrites) -> None:
        deadline = time.monotonic() + _HOLDING
        partition = TopicPartition(writes.topic, writes.partition)
        while True:
            try:
                await self._check_topic_exists(writes)
                if self._node.leadership.leads(partition):
                    self.stages.hold(partition, writes.uuid, writes.ranges)
                else:
                    await self._peers.hold_stages(writes, _HOLDING)
                return
            except (UnknownTopic, PartitionDeleted):
                return  # what is for a deleted topic goes with it
            except (NotLeader, BrokerUnavailable) as error:
                if time.monotonic() > deadline:
                    raise TransactionAborted(f"nothing was decided: {error}") from error
            await asyncio.sleep(_AGAIN)

    async def _apply(self, writes: PartitionWrites, writer: bytes, portions: Sequence[Portion]) -> Sequence[int | None]:
        """Have the leader of a partition write what is decided; raises UnknownTopic, PartitionDeleted and others."""
        await self._check_topic_exists(writes)
        partition = TopicPartition(writes.topic, writes.partition)
        if self._node.leadership.leads(partition):
            return await self.stages.apply(partition, writes.uuid, writer, portions)
        return await self._peers.apply_stages(writes, writer, portions)

    async def _check_topic_exists(self, writes: PartitionWrites) -> None:
        """Raise UnknownTopic or PartitionDeleted if the topic was deleted: not by what this broker has heard of."""
        known = self._node.membership.view.topics.get(writes.topic)
        if known is not None and known.info.uuid == writes.uuid:
            return
        if (await self._node.topics.get(writes.topic)).info.uuid != writes.uuid:
            raise PartitionDeleted(f"topic {writes.topic!r}")
        raise self._node.leadership.not_leader(TopicPartition(writes.topic, writes.partition))

    async def roll_forward(self, group: str | None, *, dry_run: bool) -> int:
        """See TransactionService. Raises Refused if another broker coordinates some of it by now."""
        if group is not None:
            return 0  # positions are set with the decision; records follow by themselves
        deciders = _deciders(self._writers.all(), self._groups.coordinators.all()).values()
        if dry_run:
            return sum(len(decider.undone) for decider in deciders)
        try:
            return sum([await decider.complete() for decider in deciders])
        except NotLeading:
            raise Refused("another broker now coordinates some of the transactions: try again") from None

    # Cleaning.

    async def undone_here(self, key: tuple[bytes, int]) -> UndoneWrites:
        """The writes to a partition that are decided here, and not appended yet."""
        coordinated: list[TopicPartition] = []
        ranges: list[StageRange] = []
        sure = await asyncio.gather(self._writers.confirmed(), self._groups.coordinators.confirmed())
        for partition, decider in _deciders(*sure).items():
            coordinated.append(partition)
            for writes in (writes for decision in decider.undone for writes in decision.shares):
                if (writes.uuid, writes.partition) == key:
                    ranges += writes.ranges
        return UndoneWrites(coordinated, ranges)

    async def _clean(self) -> None:
        """Remove stages that nobody needs, for ever."""
        while True:
            await asyncio.sleep(min(self._node.store.defaults.steward.interval, _CLEANING))
            for partition in self._node.leadership.staged():
                try:
                    await self.stages.free(partition, self._undone)
                except (HeadwaterError, OSError) as error:
                    _log.debug("%s/%d: stages are not looked after: %s", *partition, error)

    async def _undone(self, partition: TopicPartition, uuid: bytes) -> list[StageRange] | None:
        """The writes that are decided and not appended yet; None unless all coordinators have answered."""
        answers = [await self.undone_here((uuid, partition.partition))]
        for broker in self._node.membership.view.members.keys() - {self._node.broker}:
            with suppress(HeadwaterError):
                answers.append(await self._peers.undone(broker, partition, uuid))
        told = {tp for answer in answers for tp in answer.coordinated}
        for topic in (WRITERS, GROUPS):
            try:
                partitions = (await self._node.topics.get(topic)).info.partitions
            except UnknownTopic:
                continue
            if any((topic, number) not in told for number in range(partitions)):
                return None
        return [stage_range for answer in answers for stage_range in answer.ranges]


def _deciders(
    writers: Mapping[int, WriterCoordinator], groups: Mapping[int, Coordination]
) -> dict[TopicPartition, Decider]:
    """The deciders, by the partitions of internal topics in whose logs they decide."""
    deciders = {TopicPartition(WRITERS, number): writer.decider for number, writer in writers.items()}
    for number, group in groups.items():
        if group.decider is not None:
            deciders[TopicPartition(GROUPS, number)] = group.decider
    return deciders


class GroupProgress:
    """The progress of a consumer in a transaction, which is decided where its group is kept."""

    def __init__(
        self, groups: CoordinatedGroups, rules: GroupRules, member: NamedMember, inputs: Sequence[NewPosition]
    ) -> None:
        self._groups = groups
        self._rules = rules
        self._member = member
        self._inputs = inputs

    def check(self) -> None:
        """Raise StaleMember if the positions cannot be set, as far as is known now."""
        self._decide()

    def advance(self) -> None:
        """Set the positions, as a rule of the group; raises StaleMember."""
        group, commits, generation = self._decide()
        group.carry_out(commits, generation)

    def _decide(self) -> tuple[LoggedSessions, dict[TopicPartition, Commit], int]:
        group = self._groups.get(self._member.group)
        commits, known = self._rules.commits_of(group, self._inputs)
        member_id = self._member.member_id or None
        if member_id is not None and group.has_session(member_id):
            group.session(member_id, self._member.owner)
            group.heard(member_id, polled=False)
        with group.deciding(member_id, commits, known=None if member_id else known) as generation:
            return group, commits, generation

    def generation(self) -> int:
        """The generation in which they were set."""
        group = self._groups.get(self._member.group)
        commits, _ = self._rules.commits_of(group, self._inputs)
        positions = [group.position(key) for key, _ in commits.values()]
        return max((position.generation for position in positions if position is not None), default=0)


def _wanted(transaction: TransactionCommit, writes: tuple[PartitionWrites, ...]) -> TransactionRequest:
    if not transaction.writer:
        if transaction.sequence is not None or transaction.owner is not None or transaction.takeover:
            raise InvalidConfiguration("a transaction with a sequence, an owner or a takeover must name its writer")
        return TransactionRequest(transaction.request_id, writes)
    if transaction.sequence is None:
        raise InvalidConfiguration("a named transaction has a writer and a sequence: give both, or neither")
    if transaction.takeover and transaction.owner is None:
        raise InvalidConfiguration("takeover needs an owner: pass owner as well")
    return TransactionRequest(
        transaction.request_id,
        writes,
        transaction.writer,
        transaction.sequence,
        transaction.owner,
        transaction.takeover,
    )


def _committed(writes: Iterable[PartitionWrites], verdict: Verdict, generation: int) -> CommittedTransaction:
    if verdict.repeated:
        return CommittedTransaction(repeated=True)
    partitions = sorted(NamedPartition(write.topic, write.partition, write.uuid) for write in writes)
    applied = [AppliedWrite(tp, verdict.bases.get((tp.topic_uuid, tp.partition))) for tp in partitions]
    return CommittedTransaction(applied, generation)
