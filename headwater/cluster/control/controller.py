"""The controller: the one broker that sees to it that every partition is led.

It is the broker that holds a key in etcd, under the lease of its registration. Its writes are guarded by that key and
by what they are based on. So one that does not know yet that it was replaced does no harm, and neither do two at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from headwater.cluster.control.election import LogEnd
from headwater.cluster.control.planning import Change, plan
from headwater.cluster.control.registration import Registration
from headwater.cluster.control.view import ClusterView, Office
from headwater.cluster.etcd.client import MOST_CHANGES, Etcd
from headwater.cluster.etcd.item import Put, WriteGuard
from headwater.cluster.etcd.keys import BrokerMember, PartitionKey
from headwater.core.errors import EtcdRefused, EtcdUnavailable, HeadwaterError

_log = logging.getLogger(__name__)
_TICK: Final = 1.0
_ASKING: Final = 5.0
_CATCHING_UP: Final = 1.0

Ask = Callable[[BrokerMember, Collection[PartitionKey]], Awaitable[Mapping[PartitionKey, LogEnd]]]
"""Asks a broker how far its logs go. Partitions for which it cannot vouch are left out; it may raise HeadwaterError."""


class Controller:
    """A broker's candidacy, and its work while it is the controller. It belongs to one event loop."""

    def __init__(
        self, etcd: Etcd, view: ClusterView, registration: Registration, ask: Ask, *, balance_interval: float = 60.0
    ) -> None:
        self._etcd = etcd
        self._view = view
        self._registration = registration
        self._ask = ask
        self._balance_interval = balance_interval
        self._balanced = time.monotonic()
        self._changed = asyncio.Event()
        view.on_change(lambda _: self._changed.set())
        registration.on_incarnation(lambda _: self._changed.set())

    @property
    def since(self) -> int:
        """The revision since which this broker is the controller, as far as it knows; 0 when it is not."""
        office = self._view.controller
        me = (self._registration.broker, self._registration.incarnation)
        return office.since if office is not None and (office.broker, office.incarnation) == me else 0

    async def run(self) -> None:
        """Stand for it, and do its work, for ever."""
        while True:
            try:
                async with asyncio.timeout(_TICK):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                await self._round()
            except EtcdUnavailable as error:
                _log.debug("the controller waits for etcd: %s", error)
                await self._look_again()
            except EtcdRefused as error:
                _log.error("the controller cannot do its work: %s", error)
                await asyncio.sleep(_TICK)

    async def _look_again(self) -> None:
        """A write without an answer may have happened: do nothing more before that is known."""
        while True:
            try:
                await self._view.refresh()
                self._changed.set()
                return
            except (EtcdUnavailable, EtcdRefused):
                await asyncio.sleep(_TICK)

    async def _round(self) -> None:
        if not self._registration.incarnation:
            return
        if self._view.controller is None:
            await self._campaign()
        elif self.since:
            await self._control(self.since)

    async def _campaign(self) -> None:
        """Become the controller, if nobody is. The view tells whether it worked, also when the answer is lost."""
        mine = self._registration
        guards = [
            WriteGuard(self._view.keys.controller, created=0),
            WriteGuard(self._view.keys.broker(mine.broker), created=mine.incarnation),
        ]
        office = Put(self._view.keys.controller, Office.to_json(mine.broker, mine.incarnation), mine.lease)
        revision = await self._etcd.write(guards, [office])
        if revision:
            _log.info("broker %d is the controller", mine.broker)
        await self._catch_up(revision)

    async def _control(self, since: int) -> None:
        balance = time.monotonic() - self._balanced > self._balance_interval
        wanted = plan(self._view, {}, balance=balance)
        if wanted.asks:
            ends = await self._asked(wanted.asks)
            wanted = plan(self._view, ends, balance=balance)
        if balance:
            self._balanced = time.monotonic()
        revision = 0
        for together in _batches(wanted.changes):
            revision = max(revision, await self._write(since, together))
        await self._catch_up(revision)

    async def _asked(self, asks: Mapping[int, frozenset[PartitionKey]]) -> dict[PartitionKey, dict[int, LogEnd]]:
        """The ends of logs, as living brokers tell them; one that does not answer is asked again in the next round."""
        revisions = {key: revision for key, (_, revision) in self._view.partitions.items()}
        members = {broker: self._view.members[broker] for broker in asks}
        answers = await asyncio.gather(*(self._ask_one(members[broker], keys) for broker, keys in asks.items()))
        ends: dict[PartitionKey, dict[int, LogEnd]] = {}
        for broker, answer in zip(asks, answers, strict=True):
            if self._view.members.get(broker) != members[broker]:
                continue  # another incarnation by now: an earlier one may have had more
            for key, end in answer.items():
                known = self._view.partitions.get(key)
                if known is not None and known[1] == revisions.get(key):
                    ends.setdefault(key, {})[broker] = end
        return ends

    async def _ask_one(self, member: BrokerMember, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, LogEnd]:
        try:
            async with asyncio.timeout(_ASKING):
                return await self._ask(member, keys)
        except (HeadwaterError, TimeoutError) as error:
            _log.warning("broker %d does not report the ends of its logs: %s", member.id, str(error) or "no answer")
            return {}

    async def _write(self, since: int, changes: Sequence[Change]) -> int:
        """Write these at once, or, when something is in the way of one of them, those that can be: the revision."""
        guards = {guard: None for change in changes for guard in change.guards}
        office = WriteGuard(self._view.keys.controller, created=since)
        revision = await self._etcd.write([office, *guards], [change.write for change in changes])
        if revision:
            for change in changes:
                _log.info("%s", change.description)
            return revision
        if len(changes) == 1 or self.since != since:
            _log.debug("not written, because something has changed: %s", changes[0].description)
            return 0
        half = len(changes) // 2
        first = await self._write(since, changes[:half])
        return max(first, await self._write(since, changes[half:]))

    async def _catch_up(self, revision: int) -> None:
        """Wait until the view shows what was written: else it would be planned again."""
        try:
            async with asyncio.timeout(_CATCHING_UP):
                await self._view.reach(revision)
        except TimeoutError:
            await self._view.refresh()


def _batches(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """The changes in as few writes as etcd takes."""
    batch: list[Change] = []
    guards: set[WriteGuard] = set()
    for change in changes:
        if batch and (len(guards.union(change.guards)) >= MOST_CHANGES or len(batch) == MOST_CHANGES):
            yield batch
            batch, guards = [], set()
        batch.append(change)
        guards.update(change.guards)
    if batch:
        yield batch
