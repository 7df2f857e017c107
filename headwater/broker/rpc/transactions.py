"""Transactions over the wire: clients stage frames, and one request decides over all of them.

The transaction itself is the store's, done here. What was staged is named by tokens, which only this broker can make.
A request that is repeated, because its answer was lost with the connection or with the broker, is answered and not done
again: its id is kept with what was decided, for a day.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

from headwater.broker.core import Core, topic_of
from headwater.broker.limits.admission import Frames
from headwater.broker.rpc.call import Call, Refused, check_readable
from headwater.broker.rpc.groups import Groups
from headwater.broker.rpc.sessions import sessions_of
from headwater.broker.security.access import BROKER, Caller
from headwater.core.errors import HeadwaterError, InvalidConfiguration, StoreError, UntrustedFrame
from headwater.streams.group import Commit, PositionClaim, TopicKey
from headwater.streams.ports import GroupCoordinator
from headwater.streams.staging import Extent, Output, Staged, Staging
from headwater.streams.store import Store
from headwater.streams.topic import TopicPartition
from headwater.streams.transaction import begin_transaction
from headwater.v1 import broker_pb2 as pb
from headwater.wire.packing import Framed

_REQUEST_BYTES: Final = 16
_ANSWERS_KEPT: Final = 10_000


class Transactions:
    """The methods about transactions."""

    def __init__(self, core: Core, groups: Groups) -> None:
        self._core = core
        self._store = core.store
        self._groups = groups
        self._running: dict[bytes, asyncio.Task[pb.CommitTransactionResponse]] = {}
        self._answers: OrderedDict[bytes, pb.CommitTransactionResponse | HeadwaterError] = OrderedDict()

    # Staging.

    async def stage(self, requests: AsyncIterator[Framed[pb.StageRequest]], call: Call) -> pb.Staged:
        staging = await self._core.write(self._store.stage)
        try:
            async for request in requests:
                check_readable(request)
                call.check("write", "topic", request.message.topic)
                hold = await call.hold_request(request.message.ByteSize() + sum(map(len, request.frames)))
                try:
                    await self._core.write(self._keep, staging, request, call.caller)
                finally:
                    hold.give_back()
            staged = await self._core.write(staging.seal)
        finally:
            await asyncio.shield(self._core.write(staging.discard))
        return pb.Staged(token=self._token(staged), records=staged.records)

    def _keep(self, staging: Staging, request: Framed[pb.StageRequest], caller: Caller) -> None:
        message, data = request
        info = topic_of(self._store, message)
        self._store.partition(info, message.partition)  # which says what is wrong with the number
        for frame in Frames(self._core, caller, message.topic_uuid, lambda: data).frames(info):
            if frame.identity is not None:
                raise UntrustedFrame("a staged frame has no producer: it gets the identity of its transaction")
            staging.append(info, message.partition, frame)

    def _token(self, staged: Staged) -> bytes:
        outputs = [[topic, uuid.hex(), number, list(extents)] for topic, uuid, number, extents in staged.outputs]
        return self._core.secrets.seal(json.dumps([outputs, staged.records], separators=(",", ":")).encode())

    def _staged(self, tokens: Iterable[pb.Staged]) -> list[Staged]:
        """What is staged under these tokens; raises StoreError for a token that this broker has not made."""
        found = []
        for one in tokens:
            outputs, records = json.loads(self._core.secrets.unseal(one.token))
            places = [
                Output(topic, bytes.fromhex(uuid), number, tuple(Extent(*extent) for extent in extents))
                for topic, uuid, number, extents in outputs
            ]
            found.append(Staged(tuple(places), records))
        return found

    async def drop_stages(self, request: pb.DropStagesRequest, call: Call) -> pb.DropStagesResponse:
        staged = self._checked(request.staged, call)
        await self._core.write(self._store.drop, staged)
        return pb.DropStagesResponse()

    def _checked(self, tokens: Iterable[pb.Staged], call: Call) -> list[Staged]:
        staged = self._staged(tokens)
        for topic in sorted({output.topic for one in staged for output in one.outputs}):
            call.check("write", "topic", topic)
        return staged

    # Deciding.

    async def commit_transaction(
        self, request: pb.CommitTransactionRequest, call: Call
    ) -> pb.CommitTransactionResponse:
        staged = self._checked(request.staged, call)
        if request.group:
            call.check("read", "group", request.group)
            for one in request.inputs:
                call.check("read", "topic", one.topic)
        if request.writer:  # whoever may use a name can make what is numbered under it count as done
            call.check("write", "group", request.writer)
        key = request.request_id
        check_request_id(key)
        if not key:
            return await self._commit(request, staged, call.caller)
        task = self._running.get(key)
        if task is None:
            known = self._answers.get(key)
            if isinstance(known, HeadwaterError):
                raise known
            if known is not None:
                return known
            task = self._running[key] = asyncio.create_task(self._commit(request, staged, call.caller))
            task.add_done_callback(lambda done: self._remember(key, done))
        # Whoever gives up waiting does not undo it, and whoever asks again waits for the same.
        return await asyncio.shield(task)

    def _remember(self, key: bytes, done: asyncio.Task[pb.CommitTransactionResponse]) -> None:
        del self._running[key]
        if done.cancelled():
            return
        error = done.exception()
        if error is None or isinstance(error, HeadwaterError):
            self._answers[key] = done.result() if error is None else error
            while len(self._answers) > _ANSWERS_KEPT:
                self._answers.popitem(last=False)

    async def _commit(
        self, request: pb.CommitTransactionRequest, staged: list[Staged], caller: Caller
    ) -> pb.CommitTransactionResponse:
        answer = await self._core.write(self._decide, request, staged, caller)
        self._core.arrivals.tell((one.topic, one.partition) for one in answer.applied)
        return answer

    def _decide(
        self, request: pb.CommitTransactionRequest, staged: list[Staged], caller: Caller
    ) -> pb.CommitTransactionResponse:
        request_id = request.request_id.hex()
        inputs = self._inputs(request, caller)
        places = {(output.topic, output.uuid, output.partition) for one in staged for output in one.outputs}
        if self._store.transactions.answered(request_id):
            return pack_answer(places, {}, 0 if inputs is None else inputs.generation_set())
        transaction = begin_transaction(
            self._store,
            inputs,
            request.writer or None,
            request.sequence if request.HasField("sequence") else None,
            request.owner if request.HasField("owner") else None,
            request.takeover,
            request_id,
        )
        try:
            for one in staged:
                transaction.adopt(one)
            transaction.commit()
        finally:
            transaction.abort()  # does nothing unless it is still open
        if transaction.state == "repeated":
            return pb.CommitTransactionResponse(repeated=True)
        bases = {key: one.base_offset for key, one in transaction.applied.items() if one is not None}
        return pack_answer(places, bases, transaction.generation)

    def _inputs(self, request: pb.CommitTransactionRequest, caller: Caller) -> _Inputs | None:
        if not request.group:
            if request.inputs:
                raise StoreError("positions are a group's: name it")
            return None
        group = sessions_of(self._store, request.group)
        commits, known = self._groups.commits_of(group, request.inputs)
        if not request.member_id:
            return _Inputs(self._store, group, None, commits, known)
        if group.has_session(request.member_id):
            group.session(request.member_id, caller.name)
            group.heard(request.member_id, polled=False)
        return _Inputs(self._store, group, request.member_id, commits, None)

    async def roll_forward(self, request: pb.RollForwardRequest, call: Call) -> pb.RollForwardResponse:
        if request.group:
            call.check("read", "group", request.group)
        else:
            call.check("admin", "broker", BROKER)
        count = await self._core.write(self._store.roll_forward, request.group or None, dry_run=request.dry_run)
        if count and not request.dry_run:
            self._core.arrivals.tell_all()
        return pb.RollForwardResponse(transactions=count)

    # What only brokers of a cluster ask each other.

    async def hold_stages(self, request: pb.StagesRequest, call: Call) -> pb.HoldStagesResponse:  # noqa: ARG002
        raise Refused("the broker is in no cluster")

    async def apply_stages(self, request: pb.StagesRequest, call: Call) -> pb.ApplyStagesResponse:  # noqa: ARG002
        raise Refused("the broker is in no cluster")

    async def list_undone(self, request: pb.ListUndoneRequest, call: Call) -> pb.ListUndoneResponse:  # noqa: ARG002
        raise Refused("the broker is in no cluster")


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
        """In which generation the positions were set, when that was before the broker's restart."""
        found = [self.group.position(key) for key, _ in self.commits.values()]
        return max((one.generation for one in found if one is not None), default=0)


def check_request_id(request_id: bytes) -> None:
    """Raise InvalidConfiguration for what cannot be the id of a request."""
    if request_id and len(request_id) != _REQUEST_BYTES:
        raise InvalidConfiguration(f"the id of a request has {_REQUEST_BYTES} bytes, not {len(request_id)}")


def pack_answer(
    places: Iterable[tuple[str, bytes, int]], bases: dict[TopicKey, int], generation: int
) -> pb.CommitTransactionResponse:
    """What became of a transaction: where it is in each partition, as far as that is known."""
    answer = pb.CommitTransactionResponse(generation=generation)
    for topic, uuid, number in sorted(places):
        base = bases.get((uuid, number))
        answer.applied.append(pb.Applied(topic=topic, topic_uuid=uuid, partition=number, base_offset=base))
    return answer
