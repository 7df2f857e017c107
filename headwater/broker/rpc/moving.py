"""Moves of replicas by an operator's command, over the wire: any broker of the cluster takes it."""

from __future__ import annotations

from headwater.broker.core import Core
from headwater.broker.rpc.call import Call
from headwater.broker.security.access import BROKER
from headwater.cluster.control.moves import Moves, PlannedMove
from headwater.core.errors import StoreError
from headwater.v1 import broker_pb2 as pb


class MovingMethods:
    """The methods by which replicas are moved from broker to broker."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def _moves(self) -> Moves:
        if self._core.cluster is None:
            raise StoreError("the broker is in no cluster: there is nowhere to move anything")
        return self._core.cluster.moves

    async def plan_moves(self, request: pb.PlanMovesRequest, call: Call) -> pb.Moves:
        call.check("admin", "broker", BROKER)
        return _packed(await self._moves.plan(frozenset(request.remove)))

    async def begin_moves(self, request: pb.BeginMovesRequest, call: Call) -> pb.BeginMovesResponse:
        call.check("admin", "broker", BROKER)
        moves = [
            PlannedMove(one.topic, one.partition, tuple(one.replicas), tuple(one.to), one.revision, one.bytes)
            for one in request.moves
        ]
        return pb.BeginMovesResponse(begun=await self._moves.begin(moves, frozenset(request.remove)))

    async def cancel_moves(self, request: pb.CancelMovesRequest, call: Call) -> pb.CancelMovesResponse:
        call.check("admin", "broker", BROKER)
        return pb.CancelMovesResponse(cancelled=await self._moves.cancel(frozenset(request.remove)))

    async def list_moves(self, request: pb.ListMovesRequest, call: Call) -> pb.Moves:  # noqa: ARG002
        call.check("admin", "broker", BROKER)
        return _packed(await self._moves.under_way())


def _packed(moves: list[PlannedMove]) -> pb.Moves:
    return pb.Moves(
        moves=[
            pb.Move(
                topic=one.topic,
                partition=one.partition,
                replicas=one.replicas,
                to=one.to,
                revision=one.revision,
                bytes=one.size,
                copied=one.copied,
                missing=one.missing,
            )
            for one in moves
        ]
    )
