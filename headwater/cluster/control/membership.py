"""Membership: all that makes a process a broker of a cluster, before it holds a single record.

It sees the cluster, is registered in it, stands for controller and looks out for the others; it leaves when asked to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from headwater.cluster.control.controller import Ask, Controller
from headwater.cluster.control.identity import BrokerIdentity
from headwater.cluster.control.liveness import LivenessProbe
from headwater.cluster.control.registration import Missing, Registration
from headwater.cluster.control.view import ClusterView
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.keys import Keys
from headwater.core.errors import EtcdRefused, EtcdUnavailable

_log = logging.getLogger(__name__)
_LOOK: Final = 0.05


class ClusterMembership:
    """A broker's membership. It belongs to one event loop, and to it the client of etcd, which it closes."""

    def __init__(
        self,
        etcd: Etcd,
        identity: BrokerIdentity,
        address: str,
        *,
        ask: Ask,
        missing: Missing,
        lease_seconds: int,
    ) -> None:
        """`address` is where the other brokers and clients reach it.

        A broker that is not heard of for `lease_seconds` is taken for dead.
        """
        self.etcd = etcd
        self.view = ClusterView(etcd, Keys(identity.cluster))
        self.registration = Registration(etcd, self.view, identity, address, missing, lease_seconds)
        self.controller = Controller(etcd, self.view, self.registration, ask)
        self._liveness = LivenessProbe(etcd, self.view, identity.broker)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Be registered, and see oneself in the cluster. Raises EtcdUnavailable, EtcdRefused and StoreInUse."""
        await self.view.refresh()
        self._begin(self.view.follow())
        await self.registration.register()
        await self.view.refresh()
        self._begin(self.registration.keep())
        self._begin(self.controller.run())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(_tell_end)
        self._tasks.append(task)

    @property
    def leads(self) -> int:
        """The number of partitions that this broker leads, as far as it sees."""
        broker = self.registration.broker
        return sum(state.leader == broker for state, _ in self.view.partitions.values())

    async def drain(self, timeout: float) -> None:
        """Let others lead what this broker leads, as far as there are others, for so long at most."""
        try:
            async with asyncio.timeout(timeout):
                await self.registration.drain()
                while self._movable():
                    await asyncio.sleep(_LOOK)
        except (EtcdUnavailable, EtcdRefused) as error:  # a TimeoutError too, so before it
            _log.warning("this broker cannot ask other brokers to lead its partitions: %s", error)
        except TimeoutError:
            _log.warning("this broker still leads %d partitions after %g s", self.leads, timeout)

    def _movable(self) -> bool:
        """Return whether there is a partition that is led here and that another broker could lead."""
        mine = self.registration.broker
        steady = {member.id: member.incarnation for member in self.view.members.values() if not member.draining}
        return any(
            state.leader == mine
            and any(steady.get(broker) == since for broker, since in state.in_sync.items() if broker != mine)
            for state, _ in self.view.partitions.values()
        )

    async def leave(self) -> None:
        """End the membership: at once where etcd answers, else when the lease ends."""
        await self._stop()
        with suppress(EtcdUnavailable, EtcdRefused):
            await self.registration.leave()
        await self.etcd.close()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._liveness.close()


def _tell_end(task: asyncio.Task[None]) -> None:
    """Log the end of background work, which should never end by itself."""
    if not task.cancelled() and task.exception() is not None:
        _log.error(
            "a background task of the membership has failed, and is not run again",
            exc_info=task.exception(),
        )
