"""The RPCs about transactions: clients stage frames, and one request decides over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

from headwater.broker.backend import CommittedTransaction, NamedMember, NamedPartition, TransactionCommit
from headwater.broker.core import Core
from headwater.broker.limits.admission import Admission
from headwater.broker.rpc.call import Call, check_readable
from headwater.broker.rpc.groups import new_positions
from headwater.broker.security.access import BROKER
from headwater.v1 import broker_pb2 as pb
from headwater.wire.packing import Framed, View


class TransactionMethods:
    """The methods about transactions."""

    def __init__(self, core: Core) -> None:
        self._transactions = core.backend.transactions
        self._admission = Admission(core.backend, core.config.max_decoded_bytes)

    async def stage(self, requests: AsyncIterator[Framed[pb.StageRequest]], call: Call) -> pb.Staged:
        stage = await self._transactions.stage()
        try:
            async for request in requests:
                check_readable(request)
                message, frames = request
                call.check("write", "topic", message.topic)
                partition = NamedPartition(message.topic, message.partition, message.topic_uuid)
                batch = self._admission.batch(call.caller.name, message.topic_uuid, partial(_as_they_are, frames))
                size = message.ByteSize() + sum(map(len, frames))
                hold = await call.hold_request(size)
                try:
                    await stage.append(partition, batch, size)
                finally:
                    hold.give_back()
            staged = await stage.seal()
        finally:
            await asyncio.shield(stage.discard())
        return pb.Staged(token=staged.token, records=staged.records)

    async def drop_stages(self, request: pb.DropStagesRequest, call: Call) -> pb.DropStagesResponse:
        tokens = [staged.token for staged in request.staged]
        await self._transactions.drop(tokens, lambda topic: _check_written(topic, call), forwarded=call.by_broker)
        return pb.DropStagesResponse()

    async def commit_transaction(
        self, request: pb.CommitTransactionRequest, call: Call
    ) -> pb.CommitTransactionResponse:
        if request.group:
            call.check("read", "group", request.group)
            for position in request.inputs:
                call.check("read", "topic", position.topic)
        if request.writer:  # a user of this name can make the transactions that are numbered under it count as done
            call.check("write", "group", request.writer)
        transaction = TransactionCommit(
            [staged.token for staged in request.staged],
            request.request_id,
            NamedMember(request.group, request.member_id, call.caller.name) if request.group else None,
            new_positions(request.inputs),
            request.writer or None,
            request.sequence if request.HasField("sequence") else None,
            request.owner if request.HasField("owner") else None,
            request.takeover,
        )
        return _packed(await self._transactions.commit(transaction, lambda topic: _check_written(topic, call)))

    async def roll_forward(self, request: pb.RollForwardRequest, call: Call) -> pb.RollForwardResponse:
        if request.group:
            call.check("read", "group", request.group)
        else:
            call.check("admin", "broker", BROKER)
        count = await self._transactions.roll_forward(request.group or None, dry_run=request.dry_run)
        return pb.RollForwardResponse(transactions=count)


def _as_they_are(frames: Sequence[View]) -> Sequence[View]:
    return frames


def _check_written(topic: str, call: Call) -> None:
    call.check("write", "topic", topic)


def _packed(committed: CommittedTransaction) -> pb.CommitTransactionResponse:
    return pb.CommitTransactionResponse(
        applied=[
            pb.Applied(
                topic=partition.topic,
                topic_uuid=partition.topic_uuid,
                partition=partition.partition,
                base_offset=base_offset,
            )
            for partition, base_offset in committed.applied
        ],
        generation=committed.generation,
        repeated=committed.repeated,
    )
