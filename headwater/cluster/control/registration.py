"""A broker's registration: its key in etcd under a lease, which it keeps alive for as long as it lives.

The revision at which the key was created is the broker's incarnation. A broker that loses the key, because its lease
has ended or someone has found it dead, registers anew and is another one: it inherits nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from math import inf
from typing import Final

from headwater.cluster.control.identity import BrokerIdentity
from headwater.cluster.control.view import Changes, ClusterView
from headwater.cluster.etcd.client import Etcd
from headwater.cluster.etcd.item import Delete, EtcdItem, Put, WriteGuard
from headwater.cluster.etcd.keys import BrokerMember, PartitionKey, state_from_json, state_to_json
from headwater.core.errors import Damaged, EtcdRefused, EtcdUnavailable, StoreInUse
from headwater.core.version import __version__
from headwater.log.entropy import random_bytes

_log = logging.getLogger(__name__)
_PAUSE: Final = 0.5

Missing = Callable[[], Awaitable[Collection[PartitionKey]]]
"""Tells the partitions of which something that was acknowledged is missing here: a log that ends below its mark."""


class Registration:
    """Registers a broker, and sees to it that it stays registered. It belongs to one event loop."""

    def __init__(
        self,
        etcd: Etcd,
        view: ClusterView,
        identity: BrokerIdentity,
        address: str,
        missing: Missing,
        lease_seconds: int,
    ) -> None:
        self.broker = identity.broker
        self.incarnation = 0
        """As which it is registered; 0 while it is not."""
        self.lease = 0
        self.confirmed = -inf
        """When it asked, by the monotonic clock, for the lease that etcd has granted or renewed last."""
        self.secret = b""
        """The secret that all brokers of the cluster sign with; known once it was registered."""
        self._etcd = etcd
        self._view = view
        self._keys = view.keys
        self._key = view.keys.broker(identity.broker)
        self._store = identity.store
        self._address = address
        self._missing = missing
        self.lease_seconds = lease_seconds
        self._session = random_bytes(8).hex()
        self._draining = False
        self._lost = asyncio.Event()
        self._callbacks: list[Callable[[int], None]] = []
        view.on_change(self._seen)

    def on_incarnation(self, callback: Callable[[int], None]) -> None:
        """Call this whenever it is registered, with its new incarnation, and with 0 when it no longer is."""
        self._callbacks.append(callback)

    # Registering.

    async def register(self) -> None:
        """Be registered. Raises StoreInUse when a living broker has the same id, EtcdUnavailable and EtcdRefused."""
        asked = time.monotonic()
        patience = asked + 2 * self.lease_seconds
        self._session = random_bytes(8).hex()
        self.secret = await self._shared_secret()
        while True:
            known = await self._etcd.get(self._key)
            if known is not None and known.value == self._value():
                break  # also by a write whose answer was lost
            if known is not None:
                await self._replace(known, patience)
                continue
            await self._leave_in_sync_sets()
            asked = time.monotonic()
            lease = await self._etcd.grant(self.lease_seconds)
            changes = [
                Put(self._key, self._value(), lease),
                Put(self._keys.store(self.broker), self._store.hex().encode()),
            ]
            try:
                await self._etcd.write([WriteGuard(self._key, created=0)], changes)
            except EtcdUnavailable as error:
                if not error.unknown:
                    raise
                _log.debug("whether the broker is registered is not known: looking")
        self.lease = known.lease
        self.confirmed = asked
        self._lost.clear()
        self._become(known.created)

    def _value(self) -> bytes:
        member = BrokerMember(
            self.broker, 0, self._address, self._store, __version__, session=self._session, draining=self._draining
        )
        return member.to_json()

    async def _shared_secret(self) -> bytes:
        """The secret that the brokers of the cluster sign with: the first of them makes it."""
        while True:
            item = await self._etcd.get(self._keys.secret)
            if item is not None:
                return bytes.fromhex(item.value.decode())
            try:
                made = Put(self._keys.secret, random_bytes(32).hex().encode())
                await self._etcd.write([WriteGuard(self._keys.secret, created=0)], [made])
            except EtcdUnavailable as error:
                if not error.unknown:
                    raise

    async def _replace(self, known: EtcdItem, patience: float) -> None:
        """End an earlier registration under this id.

        One with the same directory is of a process that is dead: this one has the directory for itself. One with
        another directory may be alive, and only its lease can tell.
        """
        try:
            other = BrokerMember.from_json(known.value, self.broker, known.created, known.lease)
        except Damaged:
            other = None
        if other is None or other.store == self._store:
            if known.lease:
                await self._etcd.revoke(known.lease)
            else:
                await self._etcd.write([WriteGuard(self._key, created=known.created)], [Delete(self._key)])
            return
        if time.monotonic() > patience:
            raise StoreInUse(
                f"broker {self.broker} is running already, at {other.address} with another directory: every broker "
                f"needs a number of its own, so choose another one with --broker-id"
            )
        await asyncio.sleep(_PAUSE)

    async def _leave_in_sync_sets(self) -> None:
        """Before it can be elected: out of every in-sync set that it is no longer worthy of.

        Nobody can take it in again meanwhile: it is not registered.
        """
        known = await self._etcd.get(self._keys.store(self.broker))
        replaced = known is not None and known.value != self._store.hex().encode()
        missing = await self._missing()
        while replaced or missing:
            look = await self._etcd.read(self._keys.all_partitions)
            left = [
                (item, state.without(self.broker))
                for item, state in ((item, state_from_json(item.value)) for item in look.items)
                if self.broker in state.in_sync and (replaced or self._keys.subject(item.key).partition in missing)
            ]
            if not left:
                return
            for item, state in left:
                _log.warning("broker %d leaves the in-sync set of %s: it has lost records", self.broker, item.key)
                try:
                    await self._etcd.write(
                        [WriteGuard(item.key, changed=item.changed)], [Put(item.key, state_to_json(state))]
                    )
                except EtcdUnavailable as error:
                    if not error.unknown:
                        raise

    # Staying registered.

    async def keep(self) -> None:
        """Keep the registration alive, for ever; when it is lost, register anew."""
        while True:
            try:
                async with asyncio.timeout(self.lease_seconds / 3):
                    await self._lost.wait()
            except TimeoutError:
                pass
            try:
                asked = time.monotonic()
                alive = not self._lost.is_set() and await self._etcd.keep_alive(self.lease, self.lease_seconds / 3)
                if alive and not self._is_gone():
                    self.confirmed = asked
                    continue
                self._lost.set()
                self.confirmed = -inf
                if self.incarnation:
                    _log.warning("broker %d has lost its registration %d", self.broker, self.incarnation)
                    self._become(0)
                await self._etcd.revoke(self.lease)  # nothing else of the earlier incarnation stays
                await self.register()
            except EtcdUnavailable as error:
                _log.debug("the registration is not confirmed: %s", error)
            except (EtcdRefused, StoreInUse) as error:
                _log.error("broker %d cannot register: %s", self.broker, error)
                await asyncio.sleep(_PAUSE)

    def _seen(self, changes: Changes) -> None:
        """The lease has ended, or someone has ended it: the key tells so before the next keepalive would."""
        if self.broker in changes.members and self._is_gone():
            self._lost.set()

    def _is_gone(self) -> bool:
        if not self.incarnation or self._view.revision < self.incarnation:
            return False
        member = self._view.members.get(self.broker)
        return member is None or member.incarnation != self.incarnation

    def _become(self, incarnation: int) -> None:
        self.incarnation = incarnation
        for callback in self._callbacks:
            callback(incarnation)

    def renew(self) -> None:
        """Register anew, as another incarnation: what was said of this one counts no more."""
        self._lost.set()

    # Leaving.

    async def drain(self) -> None:
        """Tell the controller to move leaders away from here."""
        self._draining = True
        if self.incarnation:
            await self._etcd.write(
                [WriteGuard(self._key, created=self.incarnation)], [Put(self._key, self._value(), self.lease)]
            )

    async def leave(self) -> None:
        """End the registration: the others need not wait until the lease ends."""
        lease, self.lease = self.lease, 0
        self.confirmed = -inf
        self._become(0)
        if lease:
            await self._etcd.revoke(lease)
