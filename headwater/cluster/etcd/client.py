"""etcd, as brokers use it: keys with revisions, writes that are guarded by them, leases, and following what changes.

Reads are linearizable: they see every write that was answered before they began.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final, Self

from headwater.cluster.etcd import etcd_pb2 as pb
from headwater.cluster.etcd.connection import EtcdAccess, EtcdChannel, EtcdConnection, EtcdMethod
from headwater.cluster.etcd.item import Delete, EtcdItem, Put, WriteGuard, end_of
from headwater.cluster.etcd.watch import Look, follow
from headwater.core.address import Address, parse_endpoints
from headwater.core.config import BrokerConfig
from headwater.core.errors import EtcdRefused, InvalidConfiguration

_RANGE: Final = EtcdMethod("KV/Range", pb.RangeRequest, pb.RangeResponse)
_TXN: Final = EtcdMethod("KV/Txn", pb.TxnRequest, pb.TxnResponse)
_GRANT: Final = EtcdMethod("Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
_REVOKE: Final = EtcdMethod("Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
_KEEP_ALIVE: Final = EtcdMethod("Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse)
_ANYONE: Final = EtcdAccess()

MOST_CHANGES: Final = 100
"""No write has more changes or guards than this: etcd's own limit is 128 each, unless it is told otherwise."""


def etcd_of(config: BrokerConfig) -> Etcd:
    """The etcd that a broker's configuration names; raises InvalidConfiguration."""
    if config.etcd is None:
        raise InvalidConfiguration("a cluster needs etcd: name its members as host:port,host:port")
    access = EtcdAccess(
        user=config.etcd_user,
        password=_password(config.etcd_password_file),
        tls_ca=config.etcd_tls_ca,
        tls_certificate=config.etcd_tls_certificate,
        tls_key=config.etcd_tls_key,
        allow_unsafe_version=config.etcd_unsafe_version,
    )
    return Etcd(parse_endpoints(config.etcd), access)


def _password(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"{file}, with etcd's password, cannot be read: {error}") from error


class Etcd:
    """A client of etcd. It belongs to one event loop. Every method raises EtcdUnavailable and EtcdRefused."""

    def __init__(
        self,
        endpoints: Sequence[Address],
        access: EtcdAccess = _ANYONE,
        *,
        timeout: float = 5.0,
        attempt_timeout: float = 2.0,
    ) -> None:
        """A call is given up after `timeout`, and tried at another member after `attempt_timeout`."""
        self._connection = EtcdConnection(endpoints, access, timeout=timeout, attempt_timeout=attempt_timeout)

    def __str__(self) -> str:
        return str(self._connection)

    # Keys.

    async def get(self, key: str) -> EtcdItem | None:
        """The item at a key; None if there is none."""
        response = await self._range(pb.RangeRequest(key=key.encode()))
        return EtcdItem.of(response.kvs[0]) if response.kvs else None

    async def read(self, prefix: str) -> Look:
        """Everything below a prefix, at one revision."""
        key = prefix.encode()
        response = await self._range(pb.RangeRequest(key=key, range_end=end_of(key)))
        return Look(response.header.revision, [EtcdItem.of(pair) for pair in response.kvs], complete=True)

    async def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        response: pb.RangeResponse = await self._connection.call(_RANGE, request, repeatable=True)
        return response

    async def write(self, guards: Sequence[WriteGuard], changes: Sequence[Put | Delete]) -> int:
        """Do all of the changes, or nothing when a guard does not hold: the new revision, or 0.

        It is sent once. When its answer is lost, EtcdUnavailable says so by `unknown`; then it may have happened, and
        may even be about to.
        """
        request = pb.TxnRequest(
            compare=[guard.packed() for guard in guards], success=[change.packed() for change in changes]
        )
        answer: pb.TxnResponse = await self._connection.call(_TXN, request, repeatable=False)
        return answer.header.revision if answer.succeeded else 0

    def follow(self, prefix: str) -> AsyncGenerator[Look, None]:
        """Everything below a prefix, then every change of it, for ever."""
        return follow(self._connection, prefix, lambda: self.read(prefix))

    # Leases.

    async def grant(self, seconds: int) -> int:
        """A new lease, which ends when it was not kept alive for so long."""
        answer = await self._connection.call(_GRANT, pb.LeaseGrantRequest(ttl=seconds), repeatable=True)
        return int(answer.id)

    async def keep_alive(self, lease: int, timeout: float | None = None) -> bool:
        """Renew a lease, and return whether it was still there."""

        async def attempt(channel: EtcdChannel, deadline: float) -> bool:
            stream = channel.stream(_KEEP_ALIVE)
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await stream.write(pb.LeaseKeepAliveRequest(id=lease))
                    answer = await stream.read()
            finally:
                stream.cancel()
            return bool(answer and answer.ttl > 0)

        return await self._connection.attempts("LeaseKeepAlive", attempt, repeatable=True, timeout=timeout)

    async def revoke(self, lease: int) -> None:
        """End a lease, and every key under it. One that has ended already does no harm."""
        try:
            await self._connection.call(_REVOKE, pb.LeaseRevokeRequest(id=lease), repeatable=True)
        except EtcdRefused as error:
            if error.code != "NOT_FOUND":
                raise

    # The client itself.

    async def close(self) -> None:
        """Cut every connection."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
