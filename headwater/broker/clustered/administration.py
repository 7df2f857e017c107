"""Administration of a cluster: elections by command, moves of replicas, and access.

Users, rights and the hashes of tokens are kept in etcd, so that all brokers go by the same rules. The access file of a
broker comes first: with it an operator gets in before etcd has any user, and if etcd holds nonsense.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence

from headwater.broker.backend import AccessChanges
from headwater.broker.security.access import Access, Rules
from headwater.broker.security.access_file import rights_from_json, written_rights
from headwater.broker.security.tokens import token_of
from headwater.cluster.control.forced_election import Outlook
from headwater.cluster.control.moves import PlannedMove
from headwater.cluster.control.view import Changes, ClusterView
from headwater.cluster.etcd.client import MOST_CHANGES
from headwater.cluster.etcd.item import Delete, Put
from headwater.cluster.node import ClusterNode
from headwater.core.errors import HeadwaterError
from headwater.streams.topic import TopicPartition

_log = logging.getLogger(__name__)


class ClusterAdministration:
    """Any broker takes these commands for the whole cluster. See `Administration`."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    async def elect(self, partition: TopicPartition, broker: int, revision: int | None) -> tuple[Outlook, int]:
        """See Administration."""
        topic = await self._node.topics.get(partition.topic)
        election = self._node.forced_election(topic, partition.partition, broker)
        outlook = await election.look()
        return outlook, outlook.epoch if revision is None else await election.hold(revision)

    async def plan_moves(self, remove: Collection[int]) -> list[PlannedMove]:
        """See Administration."""
        return await self._node.moves.plan(frozenset(remove))

    async def begin_moves(self, moves: Sequence[PlannedMove], remove: Collection[int]) -> int:
        """See Administration."""
        return await self._node.moves.begin(list(moves), frozenset(remove))

    async def cancel_moves(self, remove: Collection[int]) -> int:
        """See Administration."""
        return await self._node.moves.cancel(frozenset(remove))

    async def moves(self) -> list[PlannedMove]:
        """See Administration."""
        return await self._node.moves.under_way()

    async def access_rules(self) -> Rules | None:
        """See Administration."""
        view = self._node.membership.view
        await view.refresh()
        return rules_of(view)

    async def change_access(self, changes: AccessChanges) -> None:
        """See Administration."""
        membership = self._node.membership
        keys = membership.view.keys
        writes: list[Put | Delete] = [
            *(Put(keys.user(name), _json(written_rights(rights))) for name, rights in changes.users.items()),
            *(Put(keys.token(token.id), _json(token._asdict())) for token in changes.tokens),
            *(Delete(keys.user(name)) for name in changes.remove_users),
            *(Delete(keys.token(identity)) for identity in changes.remove_tokens),
        ]
        for first in range(0, len(writes), MOST_CHANGES):
            await membership.etcd.write([], writes[first : first + MOST_CHANGES])
        await membership.view.refresh()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def rules_of(view: ClusterView) -> Rules:
    """The users and tokens in etcd. An entry that cannot be read gives no rights to anyone, and is logged."""
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


def go_by_cluster(node: ClusterNode, access: Access) -> None:
    """Let the access of a broker follow the rules of its cluster. For the event loop, once the node has joined."""
    view = node.membership.view

    def take(changes: Changes) -> None:
        if changes.access:
            access.share(*rules_of(view))

    view.on_change(take)
    access.share(*rules_of(view))
