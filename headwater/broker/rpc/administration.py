"""The RPCs for administrators of a cluster: elections by command, moves of replicas, and access."""

from __future__ import annotations

import json
from typing import Final

from headwater.broker.backend import AccessChanges
from headwater.broker.core import Core
from headwater.broker.rpc.call import Call
from headwater.broker.security.access import BROKER
from headwater.broker.security.access_file import Rights, rights_from_json, written_rights
from headwater.broker.security.tokens import Token, token_of
from headwater.cluster.control.moves import PlannedMove
from headwater.core.errors import InvalidConfiguration
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb

_MOST_NAME: Final = 256


class AdministrationMethods:
    """The methods about a cluster, and about rights."""

    def __init__(self, core: Core) -> None:
        self._access = core.access
        self._administration = core.backend.administration

    async def elect_leader(self, request: pb.ElectLeaderRequest, call: Call) -> pb.ElectLeaderResponse:
        partition = TopicPartition(request.partition.topic, request.partition.partition)
        call.check("admin", "topic", partition.topic)
        revision = None if request.dry_run else request.revision
        outlook, epoch = await self._administration.elect(partition, request.broker, revision)
        return pb.ElectLeaderResponse(
            revision=outlook.revision,
            epoch=epoch,
            replicas=[pb.ReplicaStanding(**standing._asdict()) for standing in outlook.replicas],
        )

    # Moves.

    async def plan_moves(self, request: pb.PlanMovesRequest, call: Call) -> pb.Moves:
        call.check("admin", "broker", BROKER)
        return _packed_moves(await self._administration.plan_moves(request.remove))

    async def begin_moves(self, request: pb.BeginMovesRequest, call: Call) -> pb.BeginMovesResponse:
        call.check("admin", "broker", BROKER)
        moves = [
            PlannedMove(move.topic, move.partition, tuple(move.replicas), tuple(move.to), move.revision, move.bytes)
            for move in request.moves
        ]
        return pb.BeginMovesResponse(begun=await self._administration.begin_moves(moves, request.remove))

    async def cancel_moves(self, request: pb.CancelMovesRequest, call: Call) -> pb.CancelMovesResponse:
        call.check("admin", "broker", BROKER)
        return pb.CancelMovesResponse(cancelled=await self._administration.cancel_moves(request.remove))

    async def list_moves(self, request: pb.ListMovesRequest, call: Call) -> pb.Moves:  # noqa: ARG002
        call.check("admin", "broker", BROKER)
        return _packed_moves(await self._administration.moves())

    # Access.

    async def get_access(self, request: pb.GetAccessRequest, call: Call) -> pb.AccessRules:  # noqa: ARG002
        call.check("admin", "broker", BROKER)
        of_cluster = await self._administration.access_rules()
        users, tokens = self._access.own if of_cluster is None else of_cluster
        return pb.AccessRules(
            users=[
                pb.AccessUser(name=name, rights=json.dumps(written_rights(rights)))
                for name, rights in sorted(users.items())
            ],
            tokens=[pb.AccessToken(**token._asdict()) for token in tokens.values()],
            of_cluster=of_cluster is not None,
            enforced=self._access.enforced,
        )

    async def set_access(self, request: pb.SetAccessRequest, call: Call) -> pb.SetAccessResponse:
        call.check("admin", "broker", BROKER)
        users: dict[str, Rights] = {}
        for user in request.users:
            if not 0 < len(user.name) <= _MOST_NAME:
                raise InvalidConfiguration(f"a user has a name of up to {_MOST_NAME} characters, not {user.name!r:.60}")
            users[user.name] = rights_from_json(user.name, user.rights)
        tokens = list(map(_token, request.tokens))
        changes = AccessChanges(users, tokens, list(request.remove_users), list(request.remove_tokens))
        await self._administration.change_access(changes)
        return pb.SetAccessResponse()


def _packed_moves(moves: list[PlannedMove]) -> pb.Moves:
    return pb.Moves(
        moves=[
            pb.Move(
                topic=move.topic,
                partition=move.partition,
                replicas=move.replicas,
                to=move.to,
                revision=move.revision,
                bytes=move.size,
                copied=move.copied,
                missing=move.missing,
            )
            for move in moves
        ]
    )


def _token(packed: pb.AccessToken) -> Token:
    try:
        return token_of(
            {
                "id": packed.id,
                "user": packed.user,
                "salt": packed.salt,
                "hash": packed.hash,
                "created": packed.created,
                "expires": packed.expires if packed.HasField("expires") else None,
            }
        )
    except (ValueError, TypeError):
        raise InvalidConfiguration("a token has an id of 12 hexadecimal digits, a user, a salt and a hash") from None
