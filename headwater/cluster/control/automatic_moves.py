"""Automatic moves: replicas leave a broker that is gone for long, and come to one that was added.

The controller plans as `hw cluster remove-broker` and `hw cluster rebalance` do, and begins a few moves at a time. So a
broker that comes back meanwhile keeps what has not moved yet. Moves that an operator cancels are not begun again: etcd
keeps for each broker that it was dealt with.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from headwater.cluster.control.moves import PlannedMove
from headwater.cluster.replication.repeated_log import RepeatedLog
from headwater.core.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.cluster.control.view import ClusterView
    from headwater.cluster.node import ClusterNode

_log = logging.getLogger(__name__)
_repeated = RepeatedLog(_log)
_INTERVAL: Final = 2.0
_MOST_PASSED: Final = 3 * _INTERVAL
"""No more than this counts as observed between two looks: this process may have been stopped meanwhile."""
_SETTLING: Final = 5.0
"""A broker counts as added when it has been there for so long: others that are started with it are there then."""
_AT_ONCE: Final = 16
"""No more moves than this are under way before others are begun."""


class AutomaticMoves:
    """Begins moves without an operator, while this broker is the controller. It belongs to one event loop."""

    def __init__(
        self, node: ClusterNode, *, replica_timeout: float | None, least_brokers: int, rebalance: bool
    ) -> None:
        """Replicas leave a broker that is gone for `replica_timeout` seconds, if `least_brokers` are alive.

        With `rebalance` they come to brokers that were added. See the options of a broker.
        """
        self._node = node
        self._timeout = replica_timeout
        self._least_brokers = least_brokers
        self._rebalance = rebalance
        self._looked: float | None = None
        self._away: dict[int, float] = {}
        self._there: dict[int, float] = {}
        self._nothing_to_do: tuple[object, ...] = ()

    @property
    def _view(self) -> ClusterView:
        return self._node.membership.view

    async def run(self) -> None:
        """Look at the brokers, for ever. All brokers do, so that a new controller knows how long one has been gone."""
        while True:
            await asyncio.sleep(_INTERVAL)
            self.look(time.monotonic())
            try:
                await self.step()
            except HeadwaterError as error:
                _repeated.log(
                    logging.WARNING, "broker %d cannot begin moves now, and tries again: %s", self._node.broker, error
                )

    def look(self, now: float) -> None:
        """Note for how long brokers are gone, or there."""
        passed = 0.0 if self._looked is None else min(now - self._looked, _MOST_PASSED)
        self._looked = now
        members = self._view.members
        self._there = {broker: self._there.get(broker, -passed) + passed for broker in members}
        self._away = {broker: self._away.get(broker, -passed) + passed for broker in self._holders() - members.keys()}

    def _holders(self) -> set[int]:
        """The brokers that have replicas, or are to have them."""
        states = [state for state, _ in self._view.partitions.values()]
        return {broker for state in states for broker in (*state.replicas, *state.wanted)}

    async def step(self) -> None:
        """Begin the next moves, if there are any to begin. Raises HeadwaterError."""
        if not self._is_controller() or not self._is_news():
            return
        await self._view.refresh()  # it may be long ago that this broker has heard of the others
        if not self._is_controller():
            return
        for broker in self._view.kept & self._view.members.keys():
            await self._node.moves.forget_kept(broker)
        gone, added = self._gone(), self._added()
        # A move to a broker that is gone waits for nobody but this.
        moving = [state.move for state, _ in self._view.partitions.values() if state.move is not None]
        room = _AT_ONCE - sum(not gone.intersection(move.to) for move in moving)
        if room > 0 and not (gone and await self._leave(gone, room)) and added:
            await self._level(added, room)
        self._nothing_to_do = self._seen()

    def _is_controller(self) -> bool:
        return bool(self._node.membership.controller.since)

    def _is_news(self) -> bool:
        """Return whether there may be something to do: nothing is, as long as all is as it was the last time."""
        returned = self._view.kept & self._view.members.keys()
        return bool(self._gone() or self._added() or returned) and self._seen() != self._nothing_to_do

    def _seen(self) -> tuple[object, ...]:
        return self._view.revision, self._gone(), self._added()

    def _gone(self) -> frozenset[int]:
        """The brokers that replicas are to leave, because they are gone for too long."""
        staying = self._view.members.keys() - self._view.leaving
        if self._timeout is None or len(staying) < self._least_brokers:
            return frozenset()
        long = {broker for broker, seconds in self._away.items() if seconds >= self._timeout}
        return frozenset(long - self._view.members.keys() - self._view.leaving - self._view.kept)

    def _added(self) -> frozenset[int]:
        """The brokers that nothing was levelled for yet. While one with replicas is away, nothing is."""
        view = self._view
        if not self._rebalance or self._holders() - view.members.keys():
            return frozenset()
        return frozenset(
            broker
            for broker, seconds in self._there.items()
            if seconds >= _SETTLING and broker not in view.leaving | view.levelled
            if broker in view.members and not view.members[broker].draining
        )

    async def _leave(self, gone: Collection[int], room: int) -> bool:
        """Begin moves that leave brokers; return whether there were any."""
        keeping = self._holders() - self._view.members.keys() - set(gone)
        moves = self._led(await self._node.moves.plan(gone, keeping=keeping, partial=True))
        if not moves:
            return False
        begun = await self._node.moves.begin(moves[:room], unless=[self._view.keys.kept(broker) for broker in gone])
        for broker in gone:
            await self._node.moves.forget_levelled(broker)  # it counts as added when it comes back
        _log.warning(
            "brokers %s are gone for longer than %g s: %d of %d partitions begin to move to others; `hw cluster "
            "rebalance --cancel` takes that back",
            ", ".join(map(str, sorted(gone))),
            self._timeout,
            begun,
            len(moves),
        )
        return True

    async def _level(self, added: Collection[int], room: int) -> None:
        """Begin moves that level the replicas of all brokers."""
        moves = self._led(await self._node.moves.plan(partial=True))
        if not moves:
            for broker in added:
                await self._node.moves.note_levelled(broker)
            return
        begun = await self._node.moves.begin(
            moves[:room], unless=[self._view.keys.levelled(broker) for broker in added]
        )
        _log.info(
            "brokers %s were added: %d of %d partitions begin to move; `hw cluster rebalance --cancel` takes that back",
            ", ".join(map(str, sorted(added))),
            begun,
            len(moves),
        )

    def _led(self, moves: Sequence[PlannedMove]) -> list[PlannedMove]:
        """The moves of partitions that are led: others could not begin, and would take the places of those that can."""
        view = self._view
        led = []
        for move in moves:
            topic = view.topics.get(move.topic)
            state, _ = view.partitions.get((topic.info.uuid, move.partition), (None, 0)) if topic else (None, 0)
            if state is not None and state.leader in view.members:
                led.append(move)
        return led
