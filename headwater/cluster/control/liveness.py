"""The liveness probe: notices that a broker has died before its lease ends.

Every broker holds a connection to every other. When a process dies its kernel closes the connection and refuses the
next; nobody who is only slow, paused or cut off does that. Then the dead one's lease is ended for it. Should it be
alive after all, it registers anew: what is decided by leases is who is waited for, never what is safe.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from headwater.cluster.control.view import Changes, ClusterView
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.keys import BrokerMember
from headwater.core.address import Address, parse_address
from headwater.core.errors import EtcdRefused, EtcdUnavailable, InvalidConfiguration

_log = logging.getLogger(__name__)
_CONNECTING: Final = 2.0
_PAUSE: Final = 1.0
_FRAME_HEAD: Final = 9
_GOING_AWAY: Final = 7
"""Of HTTP/2, which is what brokers speak: the bytes before each frame, and the kind of the last one."""
_DOUBTS: Final = 3
"""So many connections in a row must be refused."""
_DOUBT_PAUSE: Final = 0.1


class LivenessProbe:
    """Watches the other brokers of a view. It belongs to one event loop."""

    def __init__(self, etcd: Etcd, view: ClusterView, broker: int) -> None:
        self._etcd = etcd
        self._view = view
        self._broker = broker
        self._tasks: dict[int, tuple[BrokerMember, asyncio.Task[None]]] = {}
        view.on_change(self._changed)

    def _changed(self, changes: Changes) -> None:
        for broker in changes.members - {self._broker}:
            member = self._view.members.get(broker)
            if member is not None and member.draining:
                member = None  # it is about to go, and would wait for this connection to end
            known = self._tasks.get(broker)
            if known is not None and (member is None or member.incarnation != known[0].incarnation):
                known[1].cancel()
                del self._tasks[broker]
                known = None
            if member is not None and known is None:
                self._tasks[broker] = (member, asyncio.create_task(self._watch(member)))

    async def _watch(self, member: BrokerMember) -> None:
        """Be connected; when that ends and is refused from then on, the broker is dead."""
        try:
            address = parse_address(member.address)
        except InvalidConfiguration:
            return
        while True:
            try:
                await _stay_connected(address)
                if not await _refuses(address):
                    continue
            except (OSError, TimeoutError):
                await asyncio.sleep(_PAUSE)  # never reached, or no longer: only its lease can tell
                continue
            _log.warning("broker %d at %s is dead: nothing listens there any more", member.id, address)
            while True:
                with suppress(EtcdUnavailable, EtcdRefused):
                    await self._etcd.revoke(member.lease)
                    return
                await asyncio.sleep(_PAUSE)

    def close(self) -> None:
        """Watch nobody any more."""
        for _, task in self._tasks.values():
            task.cancel()
        self._tasks.clear()


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(_CONNECTING):
        return await asyncio.open_connection(address.host.strip("[]"), address.port)


async def _stay_connected(address: Address) -> None:
    """Hold a connection until it ends. Raises OSError or TimeoutError when there is none to be had."""
    reader, writer = await _connect(address)
    try:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(_FRAME_HEAD)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == _GOING_AWAY:
                    return  # it stops, and waits for its callers
    finally:
        writer.close()


async def _refuses(address: Address) -> bool:
    """Return whether nothing listens there. Raises OSError or TimeoutError if that cannot be told."""
    for _ in range(_DOUBTS):
        try:
            _, writer = await _connect(address)
        except ConnectionRefusedError:
            await asyncio.sleep(_DOUBT_PAUSE)
            continue
        writer.close()
        return False
    return True
