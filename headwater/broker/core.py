"""What the parts of a broker have in common: the store, its threads, its limits, and who waits for what."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, NamedTuple, ParamSpec, TypeVar

from headwater.broker.limits.budget import Budget
from headwater.broker.metrics import CallMetrics
from headwater.broker.rpc.arrivals import Arrivals
from headwater.broker.security.access import Access, Caller, TooManyAttempts
from headwater.broker.security.secrets import Secrets
from headwater.core.config import BrokerConfig
from headwater.core.errors import PartitionDeleted
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Partition, PartitionStatistics
from headwater.streams.catalog import TopicInfo
from headwater.streams.scrubber import Scrubber
from headwater.streams.store import Store
from headwater.streams.topic import TopicStatistics
from headwater.v1 import broker_pb2 as pb

if TYPE_CHECKING:
    from headwater.cluster.node import ClusterNode

_P = ParamSpec("_P")
_R = TypeVar("_R")
_IDENTIFYING: Final = 4
"""So many tokens from one source may wait to be hashed."""
_NOTHING: Final = PartitionStatistics(**{one.name: 0 for one in fields(PartitionStatistics)})  # type: ignore[arg-type]


@dataclass(slots=True)
class Meters:
    """What a broker has done, in numbers."""

    started_ns: int = field(default_factory=time.time_ns)
    produced_records: int = 0
    produced_bytes: int = 0
    fetched_bytes: int = 0


class Connection:
    """One connection from a source, for as long as it has calls."""

    def __init__(self, source: str, limit: int) -> None:
        self.source = source
        self.calls = 0
        self.requests = Budget(limit)
        self.responses = Budget(limit)


class Said(NamedTuple):
    """What a call brings with it to say who makes it."""

    metadata: tuple[tuple[str, str | bytes], ...]
    peer: str
    identities: tuple[bytes, ...]


class Core:
    """A broker at work, without its methods. The event loop owns everything here but the threads."""

    def __init__(self, store: Store, config: BrokerConfig, access: Access, secrets: Secrets) -> None:
        self.store = store
        self.cluster: ClusterNode | None = None
        self.scrubber: Scrubber | None = None
        self.config = config
        self.access = access
        self.secrets = secrets
        self.loop = asyncio.get_running_loop()
        self.arrivals = Arrivals()
        self.joined = True
        """Whether it knows what its cluster knows: who may do what, and how it signs. One on its own has none."""
        self.draining = asyncio.Event()
        self.requests = Budget(config.max_in_flight_bytes)
        self.responses = Budget(config.max_in_flight_bytes)
        self.waiting_bytes = 0
        """Of requests that are here and may not be written yet."""
        self.lent_bytes = 0
        """Of memory that producers on this machine put their frames in."""
        self.connections: dict[str, Connection] = {}
        self.connected: Counter[str] = Counter()
        """How many of the connections come from each source."""
        self._identifying: Counter[str] = Counter()
        self.meters = Meters()
        self.calls = CallMetrics()
        self.writers = ThreadPoolExecutor(config.threads, "headwater-broker-write")
        self.readers = ThreadPoolExecutor(config.threads, "headwater-broker-read")
        self._identifiers = ThreadPoolExecutor(1, "headwater-broker-tokens")

    async def read(self, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Do something that looks at files, in a thread. What nobody waits for any more is not begun."""
        return await asyncio.wrap_future(self.readers.submit(work, *args, **kwargs))

    async def write(self, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Do something that may wait for the disk, in a thread of those that write."""
        return await asyncio.wrap_future(self.writers.submit(work, *args, **kwargs))

    async def identify(self, said: Said, source: str) -> Caller:
        """Who calls; raises Unauthenticated, or TooManyAttempts.

        Tokens that are not known yet are hashed one after the other beside the event loop, and a source has a few
        in the queue at most. So many wrong ones make others wait, but keep out nobody.
        """
        if not self.access.hashes(said.metadata):
            return self.access.caller(*said)
        if self._identifying[source] >= _IDENTIFYING:
            raise TooManyAttempts(f"{_IDENTIFYING} tokens from this address are being checked: try again")
        self._identifying[source] += 1
        try:
            return await asyncio.wrap_future(self._identifiers.submit(self.access.caller, *said))
        finally:
            self._identifying[source] -= 1
            if not self._identifying[source]:
                del self._identifying[source]

    def close(self) -> None:
        """End the threads, after what they have begun."""
        self._identifiers.shutdown(cancel_futures=True)
        self.writers.shutdown()
        self.readers.shutdown()


def topic_of(store: Store, place: pb.TopicPartition | pb.ProduceRequest | pb.StageRequest | pb.Advance) -> TopicInfo:
    """The topic that a request names. Raises PartitionDeleted when it is another one by now than the caller thinks."""
    info = store.describe_topic(place.topic)
    if place.topic_uuid and place.topic_uuid != info.uuid:
        raise PartitionDeleted(f"topic {place.topic!r}")
    return info


def partition_of(store: Store, place: pb.TopicPartition) -> Partition:
    """The partition that a request names."""
    return store.partition(topic_of(store, place), place.partition)


def statistics_of(core: Core, name: str) -> TopicStatistics:
    """A topic in numbers, for threads. In a cluster, partitions that others hold are not here, and have none."""
    if not isinstance(core.store, DirectoryStore) or core.cluster is None:
        return core.store.topic(name).statistics()
    store, info = core.store, core.store.describe_topic(name)
    return TopicStatistics.of(
        name,
        [
            store.partition(info, number).statistics() if store.holds_partition(info, number) else _NOTHING
            for number in range(info.partitions)
        ],
    )


def memory_bytes() -> int:
    """How much memory the process has; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
