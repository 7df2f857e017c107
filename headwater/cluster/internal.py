"""Internal topics: the cluster's own records, replicated like all others. Groups are kept in one of them.

The leader of a partition of such a topic coordinates what belongs there: a group, by its name. It knows everything that
its predecessors have acknowledged before it says a word, and says nothing that its successors would not know.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from headwater.cluster.control.assignment import default_min_insync
from headwater.cluster.etcd.keys import ClusterTopic, PartitionKey
from headwater.cluster.replication.following import DiskThreads
from headwater.cluster.replication.local_replica import LocalReplica
from headwater.cluster.replication.replica import NotLeading
from headwater.core.config import TopicConfig
from headwater.core.errors import HeadwaterError, NotLeader, PartitionPoisoned, TopicExists, WriteFailed
from headwater.core.names import GROUPS, HISTORY, WRITERS
from headwater.core.options import MIB
from headwater.core.schema import RAW
from headwater.log import Appended, encode
from headwater.log.entropy import random_bytes
from headwater.streams.catalog import TopicInfo
from headwater.streams.history import LIMITS
from headwater.streams.topic import TopicPartition

if TYPE_CHECKING:
    from headwater.cluster.node import ClusterNode

_log = logging.getLogger(__name__)

COORDINATED: Final = frozenset({GROUPS, WRITERS})
"""Topics whose records say what is true: only who coordinates by them says which of them are no longer needed."""
INTERNAL: Final = COORDINATED | {HISTORY}
"""Topics that only brokers make, change and write."""
_COORDINATED: Final = TopicConfig(segment_bytes=16 * MIB)
"""Nothing is deleted by age or size: who coordinates says what is no longer needed."""
_HISTORY: Final = TopicConfig(**LIMITS)
_FRAME_BYTES: Final = MIB
_RECORD_BYTES: Final = 32
"""About the bytes that a record costs beside its key and value."""
_AGAIN: Final = 1.0
_CONFIRMING: Final = 3.0
"""A broker that has not heard from the replicas for so many seconds may not be their leader any more."""
_GATHERING: Final = 0.02
"""For how long more is waited for at most, where several have come together. Seconds."""

Record = tuple[bytes, bytes | None]
"""A key and its value; None in place of a value says that there is none any more."""


def number_of(name: str, partitions: int) -> int:
    """The partition of an internal topic that a name belongs to."""
    return zlib.crc32(name.encode()) % partitions


class InternalTopics:
    """Makes internal topics when they are first needed, and tells where a name belongs. For the event loop."""

    def __init__(self, node: ClusterNode, partitions: int, replication: int | None) -> None:
        """Topics have so many partitions if they are made here, and so many replicas; None is three, or all."""
        self._node = node
        self._partitions = partitions
        self._replication = replication

    async def ensure(self, name: str) -> ClusterTopic:
        """The topic, made if there is none; raises NotLeader while this broker has heard of no cluster yet."""
        view = self._node.membership.view
        known = view.topics.get(name)
        if known is not None:
            return known
        if not view.members:
            raise NotLeader(name, 0, None)
        replication = await self._node.topics.replicas_of_new(name, self._replication)
        partitions, config = (1, _HISTORY) if name == HISTORY else (self._partitions, _COORDINATED)
        info = TopicInfo(name, random_bytes(16), partitions, (RAW.id,), config, time.time_ns())
        try:
            return await self._node.topics.create(
                ClusterTopic(info, (RAW,), replication, default_min_insync(replication))
            )
        except TopicExists:
            return await self._node.topics.get(name)

    async def partition_of(self, topic: str, name: str) -> TopicPartition:
        """The partition that a name belongs to; the topic is made if there is none."""
        cluster_topic = await self.ensure(topic)
        return TopicPartition(topic, number_of(name, cluster_topic.info.partitions))


class InternalLog:
    """A partition of an internal topic, where it is led, in one epoch. For the event loop."""

    def __init__(
        self, local: LocalReplica, threads: DiskThreads, resign: Callable[[LocalReplica, Exception], bool]
    ) -> None:
        """`resign` lets others lead where this broker cannot write; it says whether they can."""
        self._local = local
        self._threads = threads
        self._resign = resign
        self.epoch = local.led
        self.bytes = 0
        """About how much is in the log, as far as this one has read or written it."""
        self._failed = False
        self._waiting: list[tuple[Sequence[Record], asyncio.Future[Appended]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._expected = 0
        """The number of appends that are to wait before the next write begins."""
        self._come = asyncio.Event()

    @property
    def partition(self) -> TopicPartition:
        """The partition."""
        return self._local.tp

    @property
    def key(self) -> PartitionKey:
        """The same, with the topic's uuid in place of its name."""
        return self._local.key

    @property
    def good(self) -> bool:
        """True if it is led here, in this epoch, and nothing has failed: then all of it is known here."""
        return not self._failed and self._local.leads and self._local.led == self.epoch

    async def over(self) -> None:
        """Return when it is no longer good."""
        while self.good:
            await self._local.changed()

    def _check(self) -> None:
        if not self.good:
            raise NotLeading

    # Reading.

    async def replay(self, take: Callable[[list[Record]], None]) -> None:
        """Give `take` everything that was acknowledged before, in its order; raises NotLeading.

        The end is that of the log, to which nobody else appends. Everything that a predecessor acknowledged is below
        it, whether or not this broker has heard of that; and when the high watermark has passed it, nobody takes any of
        it back.
        """
        self._check()
        self._local.appended()
        end = self._local.log.end
        while self._local.replica.high_watermark < end:
            await self._local.changed()
            self._check()
        partition = self._local.log.partition

        def read() -> tuple[list[Record], int]:
            records: list[Record] = []
            size = 0
            for frame in partition.frames(end=end):
                records += [
                    (record.key or b"", record.value) for record in frame.records(partition.bounds().start, end)
                ]
                size += frame.header.length
            return records, size

        records, self.bytes = await self._threads.read(read)
        self._check()
        take(records)

    async def confirm(self) -> None:
        """Return when it is sure that nobody led in a later epoch when this was called; raises NotLeading."""
        await self._local.confirm(self.epoch)

    # Writing.

    def append(self, records: Sequence[Record]) -> asyncio.Future[Appended]:
        """Append records; done when they are acknowledged by all that are in sync.

        Appends that come while a write is under way go with the next one: all of them in one frame and one sync. Fails
        with NotLeading when the epoch ends before that, or with what is wrong with the disk; then nobody knows what
        became of it, and the log is no longer good.
        """
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._waiting.append((records, future))
        if len(self._waiting) >= self._expected:
            self._come.set()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return future

    async def _write(self) -> None:
        """Write what has come together, until there is no more. One write at a time, to the last acknowledgement.

        More at once would be no faster: each costs every replica a write, a sync and some messages, however small.
        """
        while self._waiting:
            batch, self._waiting = self._waiting, []
            begun = time.monotonic()
            futures = [future for _, future in batch]
            records = [record for some, _ in batch for record in some]
            try:
                self._check()
                writing = asyncio.ensure_future(self._threads.write(self._append, records))
                appended = await self._local.acknowledged(writing, self.epoch, by_all=True)
            except (WriteFailed, PartitionPoisoned) as error:
                self._fail(futures, NotLeading() if self._resign(self._local, error) else error)
                continue
            except Exception as error:  # noqa: BLE001 - whatever it was, callers that wait are told
                self._fail(futures, error)
                continue
            self.bytes += sum(len(key) + len(value or b"") + _RECORD_BYTES for key, value in records)
            for future in futures:
                if not future.done():
                    future.set_result(appended)
            if len(batch) > 1:
                await self._gather(len(batch) + len(self._waiting), (time.monotonic() - begun) / 2)

    async def _gather(self, number: int, longest: float) -> None:
        """Wait for callers that have just been told: if they come again, all of them go with the next write.

        Otherwise they and others that come meanwhile would take turns from now on, with a write for each half. It is
        never waited for as long as a write takes.
        """
        self._expected = number
        self._come.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(longest, _GATHERING)):
                await self._come.wait()
        self._expected = 0

    def _append(self, records: list[Record]) -> Appended:
        """In a thread: write what has come together, and sync it."""
        frames = [encode([value for _, value in some], keys=[key for key, _ in some]) for some in _pieces(records)]
        partition = self._local.log.partition
        with self._local.log.leading(self.epoch):
            appended = partition.append(frames)
            partition.sync()
        return appended

    def _fail(self, futures: list[asyncio.Future[Appended]], error: Exception) -> None:
        if not isinstance(error, NotLeading):
            _log.error("%s could not be written, and is read again: %s", self._local, error)
        self._failed = True
        self._local.wake()
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # a caller that waits is told; one that has gone needs no warning

    async def forget(self, offset: int) -> None:
        """Remove what is before an offset that is acknowledged: followers do so too. Raises what the disk says."""
        if self.good and offset <= self._local.replica.high_watermark:
            await self._threads.write(self._local.log.partition.delete_before, offset)
            self._local.log.refresh()


def _pieces(records: list[Record]) -> list[list[Record]]:
    """The records in their order, in pieces that make good frames."""
    pieces: list[list[Record]] = [[]]
    size = 0
    for key, value in records:
        size += len(key) + len(value or b"") + _RECORD_BYTES
        if pieces[-1] and size > _FRAME_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append((key, value))
    return pieces


class Coordinates(Protocol):
    """A coordinator of what belongs to one partition, in one epoch of its leader."""

    def replay(self, records: list[Record]) -> None:
        """Take in everything that was acknowledged before. Then it begins to serve."""

    def end(self) -> None:
        """Serve no more: callers that wait are told to ask another one."""


_Coordinator = TypeVar("_Coordinator", bound=Coordinates)


class Coordinators(Generic[_Coordinator]):
    """The coordinators for the partitions of an internal topic that are led here. For the event loop."""

    def __init__(self, node: ClusterNode, topic: str, make: Callable[[InternalLog], _Coordinator]) -> None:
        self.topic = topic
        self._node = node
        self._make = make
        self._serving: dict[int, tuple[InternalLog, _Coordinator]] = {}
        node.replicas.on_led(self._led)

    def all(self) -> dict[int, _Coordinator]:
        """In any thread: those that serve, by the numbers of their partitions."""
        return {number: coordinator for number, (log, coordinator) in list(self._serving.items()) if log.good}

    async def confirmed(self) -> dict[int, _Coordinator]:
        """Those of which it is sure that nobody had taken their place when this was called.

        A coordinator that is cut off from the others goes on serving for a while, and knows nothing of what is decided
        elsewhere meanwhile. Such a one is not among them.
        """
        logs = {number: log for number, (log, _) in self._serving.items()}
        sure = await asyncio.gather(*(_is_led_here(log) for log in logs.values()))
        confirmed = {number for number, led in zip(logs, sure, strict=True) if led}
        return {number: coordinator for number, coordinator in self.all().items() if number in confirmed}

    async def of(self, name: str) -> _Coordinator:
        """The one for a name; raises NotLeader, which says where to go instead. The topic is made if need be."""
        await self._node.internal.ensure(self.topic)
        return self.at(name)

    def at(self, name: str) -> _Coordinator:
        """The same at once."""
        topic = self._node.membership.view.topics.get(self.topic)
        if topic is None:
            raise NotLeader(self.topic, 0, None)  # made just now, and not heard of here
        partition = TopicPartition(self.topic, number_of(name, topic.info.partitions))
        log, coordinator = self._serving.get(partition.partition, (None, None))
        if log is None or coordinator is None or not log.good:
            raise self._node.leadership.not_leader(partition)
        return coordinator

    def _led(self, local: LocalReplica) -> None:
        if local.tp.topic == self.topic:
            self._node.begin(self._coordinate(local, local.led))

    async def _coordinate(self, local: LocalReplica, epoch: int) -> None:
        """Replay and serve, for as long as the epoch lasts; anew when a write has failed."""
        number = local.tp.partition
        while local.leads and local.led == epoch:
            log = InternalLog(local, self._node.threads, self._node.leadership.resign)
            coordinator = self._make(log)
            try:
                await log.replay(coordinator.replay)
                self._serving[number] = (log, coordinator)
                await log.over()
            except NotLeading:
                return
            except (HeadwaterError, OSError) as error:
                _log.error("%s cannot be coordinated: %s", local, error)
                await asyncio.sleep(_AGAIN)
            finally:
                if self._serving.get(number, (None, None))[1] is coordinator:
                    del self._serving[number]
                coordinator.end()


async def _is_led_here(log: InternalLog) -> bool:
    try:
        async with asyncio.timeout(_CONFIRMING):
            await log.confirm()
    except (NotLeading, TimeoutError):
        return False
    return True
