"""The state that all edges of a broker share: its callers, their connections, and the bytes in flight."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headwater.broker.backend import Backend
from headwater.broker.limits.budget import Budget
from headwater.broker.metrics import CallMetrics
from headwater.broker.runtime import Runtime
from headwater.broker.security.access import Access, Caller, TooManyAttempts
from headwater.core.config import BrokerConfig

_IDENTIFYING: Final = 4
"""So many tokens from one source may wait to be hashed."""


@dataclass(slots=True)
class Meters:
    """The work of a broker in numbers."""

    started_ns: int = field(default_factory=time.time_ns)
    produced_records: int = 0
    produced_bytes: int = 0
    fetched_bytes: int = 0


class CallerConnection:
    """One connection from a source, for as long as it has calls."""

    def __init__(self, source: str, limit: int) -> None:
        self.source = source
        self.calls = 0
        self.requests = Budget(limit)
        self.responses = Budget(limit)


class CallerCredentials(NamedTuple):
    """The proofs of a call that show who makes it."""

    metadata: tuple[tuple[str, str | bytes], ...]
    peer: str
    identities: tuple[bytes, ...]


class Core:
    """A broker without its methods. The event loop owns everything here but the threads."""

    def __init__(
        self, runtime: Runtime, backend: Backend, config: BrokerConfig, access: Access, directory: str
    ) -> None:
        """`directory` is where the broker keeps its files, for people."""
        self.runtime = runtime
        self.backend = backend
        self.config = config
        self.access = access
        self.directory = directory
        self.requests = Budget(config.max_in_flight_bytes)
        self.responses = Budget(config.max_in_flight_bytes)
        self.waiting_bytes = 0
        """The bytes of requests that are here and may not be written yet."""
        self.lent_bytes = 0
        """The bytes of memory that producers on this machine put their frames in."""
        self.connections: dict[str, CallerConnection] = {}
        self.connected: Counter[str] = Counter()
        """The number of connections from each source."""
        self._identifying: Counter[str] = Counter()
        self.meters = Meters()
        self.calls = CallMetrics()
        self._identifiers = ThreadPoolExecutor(1, "headwater-broker-tokens")

    async def identify(self, credentials: CallerCredentials, source: str) -> Caller:
        """The caller; raises Unauthenticated, or TooManyAttempts.

        Tokens that are not known yet are hashed one after the other beside the event loop, and a source has a few
        in the queue at most. So many wrong ones make others wait, but keep out nobody.
        """
        if not self.access.hashes(credentials.metadata):
            return self.access.caller(*credentials)
        if self._identifying[source] >= _IDENTIFYING:
            raise TooManyAttempts(f"{_IDENTIFYING} tokens from this address are being checked: try again")
        self._identifying[source] += 1
        try:
            return await asyncio.wrap_future(self._identifiers.submit(self.access.caller, *credentials))
        finally:
            self._identifying[source] -= 1
            if not self._identifying[source]:
                del self._identifying[source]

    def close(self) -> None:
        """End the thread that hashes tokens."""
        self._identifiers.shutdown(cancel_futures=True)


def memory_bytes() -> int:
    """The memory of the process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
