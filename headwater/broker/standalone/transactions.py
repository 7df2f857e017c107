"""Transactions of a broker that is in no cluster: the store decides them.

Staged frames are named by tokens, which only this broker can make. A commit that is repeated, because its answer was
lost with the connection or with the broker, gets the first outcome: its id is kept with the decision, for a day.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headwater.broker.append_queue import AppendBatch
from headwater.broker.backend import (
    AppliedWrite,
    Authorise,
    CommittedTransaction,
    NamedPartition,
    NamedTopic,
    StageToken,
    TransactionCommit,
    TransactionStage,
)
from headwater.broker.group_rules import GroupRules
from headwater.broker.runtime import Runtime
from headwater.broker.security.secrets import Secrets
from headwater.broker.sessions import sessions_of
from headwater.broker.staging import check_request_id, check_staged
from headwater.broker.stored import topic_of
from headwater.core.errors import HeadwaterError, StoreError
from headwater.streams.group import Commit, PositionClaim, TopicKey
from headwater.streams.ports import GroupCoordinator
from headwater.streams.staging import Output, Staged, StagedExtent, Staging
from headwater.streams.store import Store
from headwater.streams.topic import TopicPartition
from headwater.streams.transaction import begin_transaction

_ANSWERS_KEPT: Final = 10_000


class StoreStage:
    """Frames in files of the store that wait for a decision. See `TransactionStage`."""

    def __init__(self, runtime: Runtime, store: Store, secrets: Secrets, staging: Staging) -> None:
        self._runtime = runtime
        self._store = store
        self._secrets = secrets
        self._staging = staging

    async def append(self, partition: NamedPartition, batch: AppendBatch, size: int) -> None:  # noqa: ARG002
        """See TransactionStage."""
        await self._runtime.write(self._append, partition, batch)

    def _append(self, partition: NamedPartition, batch: AppendBatch) -> None:
        info = topic_of(self._store, NamedTopic(partition.topic, partition.topic_uuid))
        self._store.partition(info, partition.partition)  # which says what is wrong with the number
        for frame in check_staged(batch.frames(info)):
            self._staging.append(info, partition.partition, frame)

    async def seal(self) -> StageToken:
        """See TransactionStage."""
        staged = await self._runtime.write(self._staging.seal)
        outputs = [[topic, uuid.hex(), number, list(extents)] for topic, uuid, number, extents in staged.outputs]
        content = json.dumps([outputs, staged.records], separators=(",", ":")).encode()
        return StageToken(self._secrets.seal(content), staged.records)

    async def discard(self) -> None:
        """See TransactionStage."""
        await self._runtime.write(self._staging.discard)


class StoreTransactions:
    """Transactions of a store. See `TransactionService`."""

    def __init__(self, runtime: Runtime, store: Store, secrets: Secrets, rules: GroupRules) -> None:
        self._runtime = runtime
        self._store = store
        self._secrets = secrets
        self._rules = rules
        self._running: dict[bytes, asyncio.Task[CommittedTransaction]] = {}
        self._answers: OrderedDict[bytes, CommittedTransaction | HeadwaterError] = OrderedDict()

    async def stage(self) -> TransactionStage:
        """See TransactionService."""
        staging = await self._runtime.write(self._store.stage)
        return StoreStage(self._runtime, self._store, self._secrets, staging)

    async def drop(self, tokens: Sequence[bytes], authorise: Authorise, *, forwarded: bool) -> None:  # noqa: ARG002
        """See TransactionService."""
        await self._runtime.write(self._store.drop, self._staged(tokens, authorise))

    def _staged(self, tokens: Iterable[bytes], authorise: Authorise) -> list[Staged]:
        """The stages under these tokens; raises StoreError for a token that this broker has not made."""
        stages: list[Staged] = []
        for token in tokens:
            outputs, records = json.loads(self._secrets.unseal(token))
            written = [
                Output(topic, bytes.fromhex(uuid), number, tuple(StagedExtent(*extent) for extent in extents))
                for topic, uuid, number, extents in outputs
            ]
            stages.append(Staged(tuple(written), records))
        for topic in sorted({output.topic for staged in stages for output in staged.outputs}):
            authorise(topic)
        return stages

    async def commit(self, transaction: TransactionCommit, authorise: Authorise) -> CommittedTransaction:
        """See TransactionService."""
        staged = self._staged(transaction.staged, authorise)
        key = transaction.request_id
        check_request_id(key)
        if not key:
            return await self._commit(transaction, staged)
        task = self._running.get(key)
        if task is None:
            known = self._answers.get(key)
            if isinstance(known, HeadwaterError):
                raise known
            if known is not None:
                return known
            task = self._running[key] = asyncio.create_task(self._commit(transaction, staged))
            task.add_done_callback(lambda done: self._remember(key, done))
        # A caller that gives up does not undo it, and one that asks again waits for the same task.
        return await asyncio.shield(task)

    def _remember(self, key: bytes, done: asyncio.Task[CommittedTransaction]) -> None:
        del self._running[key]
        if done.cancelled():
            return
        error = done.exception()
        if error is None or isinstance(error, HeadwaterError):
            self._answers[key] = done.result() if error is None else error
            while len(self._answers) > _ANSWERS_KEPT:
                self._answers.popitem(last=False)

    async def _commit(self, transaction: TransactionCommit, staged: list[Staged]) -> CommittedTransaction:
        committed = await self._runtime.write(self._decide, transaction, staged)
        self._runtime.arrivals.tell(write.partition.tp for write in committed.applied)
        return committed

    def _decide(self, wanted: TransactionCommit, staged: list[Staged]) -> CommittedTransaction:
        """In a thread."""
        request_id = wanted.request_id.hex()
        inputs = self._inputs(wanted)
        outputs = {(output.topic, output.partition, output.uuid) for stage in staged for output in stage.outputs}
        partitions = [NamedPartition(*output) for output in sorted(outputs)]
        if self._store.transactions.answered(request_id):
            applied = [AppliedWrite(partition, None) for partition in partitions]
            return CommittedTransaction(applied, 0 if inputs is None else inputs.generation_set())
        transaction = begin_transaction(
            self._store, inputs, wanted.writer, wanted.sequence, wanted.owner, wanted.takeover, request_id
        )
        try:
            for stage in staged:
                transaction.adopt(stage)
            transaction.commit()
        finally:
            transaction.abort()  # does nothing unless it is still open
        if transaction.state == "repeated":
            return CommittedTransaction(repeated=True)
        bases = {key: appended.base_offset for key, appended in transaction.applied.items() if appended is not None}
        applied = [AppliedWrite(tp, bases.get((tp.topic_uuid, tp.partition))) for tp in partitions]
        return CommittedTransaction(applied, transaction.generation)

    def _inputs(self, wanted: TransactionCommit) -> _Inputs | None:
        member = wanted.progress
        if member is None:
            if wanted.inputs:
                raise StoreError("a transaction that commits positions must name the consumer's group")
            return None
        group = sessions_of(self._store, member.group)
        commits, known = self._rules.commits_of(group, wanted.inputs)
        if not member.member_id:
            return _Inputs(self._store, group, None, commits, known)
        if group.has_session(member.member_id):
            group.session(member.member_id, member.owner)
            group.heard(member.member_id, polled=False)
        return _Inputs(self._store, group, member.member_id, commits, None)

    async def roll_forward(self, group: str | None, *, dry_run: bool) -> int:
        """See TransactionService."""
        count = await self._runtime.write(self._store.roll_forward, group, dry_run=dry_run)
        if count and not dry_run:
            self._runtime.arrivals.tell_all()
        return count


@dataclass(frozen=True)
class _Inputs:
    """The progress of a consumer that is somewhere else."""

    store: Store
    group: GroupCoordinator
    member_id: str | None
    commits: dict[TopicPartition, Commit]
    known: dict[TopicKey, int] | None

    @property
    def group_name(self) -> str:
        return self.group.name

    def hold(self) -> None:
        """The consumer does so itself."""

    def claim(self) -> PositionClaim | None:
        return PositionClaim(self.group.name, self.member_id, self.commits, self.known) if self.commits else None

    def decided(self, commits: dict[TopicPartition, Commit], generation: int) -> None:
        """The consumer learns it by the answer."""

    def begin_anew(self) -> None:
        """The consumer does so itself."""

    def let_go(self, *, committed: bool) -> None:
        """The consumer does so itself."""

    def generation_set(self) -> int:
        """The generation in which the positions were set, if that was before the broker's restart."""
        positions = [self.group.position(key) for key, _ in self.commits.values()]
        return max((position.generation for position in positions if position is not None), default=0)
