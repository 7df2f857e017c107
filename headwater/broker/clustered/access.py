"""Access in a cluster: users, rights and the hashes of tokens are kept in etcd, so that all brokers go by the same.

The access file of a broker goes on to count, and comes first: with it an operator gets in before there is anyone in
etcd, and when etcd says nonsense.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from headwater.broker.core import Core
from headwater.broker.rpc.call import Call
from headwater.broker.security.access import BROKER
from headwater.broker.security.access_file import rights_from_json, written_rights
from headwater.broker.security.guard import Guard, Rules
from headwater.broker.security.tokens import Token, token_of
from headwater.cluster.control.view import Changes, ClusterView
from headwater.cluster.etcd.client import MOST_CHANGES
from headwater.cluster.etcd.item import Delete, Put
from headwater.cluster.node import ClusterNode
from headwater.core.errors import HeadwaterError, InvalidConfiguration, StoreError
from headwater.v1 import broker_pb2 as pb

_log = logging.getLogger(__name__)
_MOST_NAME: Final = 256


def rules_of(view: ClusterView) -> Rules:
    """What the cluster keeps. What cannot be read gives no rights to anyone, and is logged."""
    users, tokens = {}, {}
    for name, content in view.access.items():
        kind, _, key = name.partition("/")
        try:
            if kind == "users":
                users[key] = rights_from_json(key, content)
            elif kind == "tokens":
                tokens[key] = token_of(json.loads(content))
        except (HeadwaterError, ValueError, TypeError, KeyError) as error:
            # Without the text of the error, which may quote what is in a token.
            _log.error("%s in etcd gives no rights: it cannot be read (%s)", name, type(error).__name__)
    return users, tokens


def go_by_cluster(node: ClusterNode, guard: Guard) -> None:
    """Let a guard go by what the cluster keeps, from now on. For the event loop of the node, once that has joined."""
    view = node.membership.view

    def take(changes: Changes) -> None:
        if changes.access:
            guard.share(*rules_of(view))

    view.on_change(take)
    guard.share(*rules_of(view))


class AccessMethods:
    """The methods by which rights are told and set."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def get_access(self, request: pb.GetAccessRequest, call: Call) -> pb.AccessRules:  # noqa: ARG002
        call.check("admin", "broker", BROKER)
        guard, node = self._core.access, self._core.cluster
        if node is not None:
            await node.membership.view.refresh()
            rules = rules_of(node.membership.view)
        else:
            rules = guard.own if isinstance(guard, Guard) else ({}, {})
        users, tokens = rules
        return pb.AccessRules(
            users=[
                pb.AccessUser(name=name, rights=json.dumps(written_rights(rights)))
                for name, rights in sorted(users.items())
            ],
            tokens=[pb.AccessToken(**one._asdict()) for one in tokens.values()],
            of_cluster=node is not None,
            enforced=guard.enforced,
        )

    async def set_access(self, request: pb.SetAccessRequest, call: Call) -> pb.SetAccessResponse:
        call.check("admin", "broker", BROKER)
        node = self._core.cluster
        if node is None:
            raise StoreError("this broker is in no cluster: who may do what stands in its access file, so change that")
        keys = node.membership.view.keys
        changes: list[Put | Delete] = []
        for user in request.users:
            if not 0 < len(user.name) <= _MOST_NAME:
                raise InvalidConfiguration(f"a user has a name of up to {_MOST_NAME} characters, not {user.name!r:.60}")
            rights = written_rights(rights_from_json(user.name, user.rights))
            changes.append(Put(keys.user(user.name), json.dumps(rights).encode()))
        for one in request.tokens:
            token = _token(one)
            changes.append(Put(keys.token(token.id), json.dumps(token._asdict()).encode()))
        changes += [Delete(keys.user(name)) for name in request.remove_users]
        changes += [Delete(keys.token(identity)) for identity in request.remove_tokens]
        for first in range(0, len(changes), MOST_CHANGES):
            await node.membership.etcd.write([], changes[first : first + MOST_CHANGES])
        await node.membership.view.refresh()
        return pb.SetAccessResponse()


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
