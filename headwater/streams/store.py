"""A store: what `headwater.open` returns. Topics in a directory, in memory, or behind a broker."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from headwater.core.config import ConsumerConfig, ProducerConfig, StewardConfig, TopicConfig
from headwater.core.errors import (
    InvalidConfiguration,
    OpenFailed,
    PartitionDeleted,
    StoreClosed,
    TooFewBrokers,
    TopicExists,
    UnknownSchema,
    UnknownTopic,
)
from headwater.core.names import check_name
from headwater.core.presets import Preset
from headwater.core.schema import RAW, Schema
from headwater.log import Counters, Partition, PartitionStatistics, no_statistics
from headwater.log.entropy import random_bytes
from headwater.log.files.counters import sum_counters
from headwater.streams.catalog import MAX_PARTITIONS, TopicInfo, check_replication
from headwater.streams.configuring import configured, partition_config
from headwater.streams.consumer import Consumer
from headwater.streams.consumer_assignment import OnChange
from headwater.streams.cursor import OnRecordsDamaged
from headwater.streams.group import Group
from headwater.streams.ports import Appender, Fetcher, GroupCoordinator, StoreBackend, TransactionCoordinator
from headwater.streams.producer import Producer
from headwater.streams.staging import Staged, Staging
from headwater.streams.start import Start
from headwater.streams.steward import Steward
from headwater.streams.topic import Topic, TopicStatistics
from headwater.streams.transaction import Transaction, begin_transaction

_Producer = TypeVar("_Producer", bound=Producer)
_JOINING: Final = 0.2
"""Seconds between two looks whether brokers enough have joined a cluster."""
_NOTHING: Final = no_statistics()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """A store in numbers, and each of its topics."""

    topics: tuple[TopicStatistics, ...]
    records: int
    bytes: int
    unhealthy: tuple[str, ...]
    """Partitions, as `topic/number`, where damage was found or a sync has failed."""
    counters: Counters
    """The activity of all partitions together."""

    @classmethod
    def of(cls, topics: Iterable[TopicStatistics]) -> StoreStatistics:
        """The sums over these topics."""
        listed = tuple(topics)
        return cls(
            topics=listed,
            records=sum(topic.records for topic in listed),
            bytes=sum(topic.bytes for topic in listed),
            unhealthy=tuple(f"{topic.name}/{number}" for topic in listed for number in topic.unhealthy),
            counters=sum_counters(topic.counters for topic in listed),
        )


class Store:
    """Topics, producers, consumers and groups. Thread-safe.

    `defaults` is what they are made with when nothing else is said.
    """

    def __init__(self, backend: StoreBackend, defaults: Preset) -> None:
        self.defaults = defaults
        self._backend = backend
        self._catalog = backend.catalog
        self._clock = backend.clock
        self.elapsed = backend.elapsed
        """Tells the age of things."""
        self._transactions = backend.transactions(self)
        self._mutex = threading.RLock()
        self._partitions: dict[tuple[bytes, int], tuple[TopicConfig, Partition]] = {}
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._written: dict[bytes | None, Topic] = {}
        """The topics that producers may have written to since the last sync, by their uuids."""
        self._closed = False

    def __str__(self) -> str:
        return str(self._backend)

    # Topics.

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        schema: pa.Schema | None = None,
        *,
        replication: int | None = None,
        min_insync: int | None = None,
        config: TopicConfig | None = None,
        exist_ok: bool = False,
        **options: Any,
    ) -> Topic:
        """Make a topic: raw, or typed by an Arrow schema. Options are those of TopicConfig, by name.

        Of several processes that create it at once, one does; with `exist_ok` the others get the same topic. In a
        cluster, `replication` brokers keep each partition, by default as these are configured, and a record is
        acknowledged when `min_insync` of them have it at least. A store outside of a cluster keeps one copy, and
        refuses to promise more.
        """
        check_name("topic", name)
        check_replication(name, replication, min_insync)
        return self._create_topic(name, partitions, schema, config, options, exist_ok, (replication, min_insync))

    def internal_topic(self, name: str, **options: Any) -> Topic:
        """A topic of Headwater's own, whose name begins with `__`; made, raw and with these options, if need be."""
        return self._create_topic(check_name("topic", name, internal=True), 1, None, None, options, True)

    def _create_topic(
        self,
        name: str,
        partitions: int,
        schema: pa.Schema | None,
        config: TopicConfig | None,
        options: dict[str, Any],
        exist_ok: bool,
        replicas: tuple[int | None, int | None] = (None, None),
    ) -> Topic:
        self._check_open()
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MAX_PARTITIONS:
            raise InvalidConfiguration(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions!r}")
        payload = RAW if schema is None else Schema(schema)
        config = configured(self.defaults.topic, config, options)
        info = TopicInfo(name, random_bytes(16), partitions, (payload.id,), config, self._clock.now_ns(), *replicas)
        try:
            self._catalog.create(info, payload)
        except TopicExists:
            if not exist_ok:
                raise
        return Topic(self, name)

    def ensure_topic(
        self,
        name: str,
        partitions: int = 1,
        schema: pa.Schema | None = None,
        *,
        replication: int | None = None,
        timeout: float = 0.0,
    ) -> Topic:
        """A topic, created if there is none. One that exists is as it is, with whatever partitions and replicas.

        It waits up to `timeout` seconds while fewer brokers are alive than it needs, and then raises TooFewBrokers.
        """
        with suppress(UnknownTopic):
            return self.topic(name)
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self.create_topic(name, partitions, schema, replication=replication, exist_ok=True)
            except TooFewBrokers:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
            time.sleep(min(_JOINING, left))

    def topic(self, name: str) -> Topic:
        """A topic that exists; raises UnknownTopic."""
        self.describe_topic(name)
        return Topic(self, name)

    def topics(self) -> list[str]:
        """The names of all topics, sorted; internal ones are left out."""
        self._check_open()
        return [name for name in self._catalog.names() if not name.startswith("__")]

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted, internal ones too."""
        self._check_open()
        return self._catalog.names()

    def describe_topic(self, name: str) -> TopicInfo:
        """Return a topic's description as it is now."""
        self._check_open()
        return self._catalog.get(name)

    def recall_topic(self, name: str) -> TopicInfo:
        """Return a topic as it was described a moment ago, without waiting for anybody if it is known."""
        self._check_open()
        return self._catalog.recall(name)

    def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        min_insync: int | None = None,
        **options: Any,
    ) -> TopicInfo:
        """Change a topic: more partitions, or options of TopicConfig by name. Other processes see it within a second.

        More partitions send keys elsewhere from now on: what is there stays where it is. In a cluster, another
        `replication` moves replicas in the background, and a higher `min_insync` holds once enough replicas are in
        sync.
        """
        self._check_open()
        check_replication(name, replication, min_insync)
        return self._catalog.alter(name, partitions, options, replication, min_insync)

    def evolve_topic(self, name: str, schema: Schema) -> TopicInfo:
        """Give a typed topic a schema with more, nullable columns."""
        self._check_open()
        return self._catalog.evolve(name, schema)

    def delete_topic(self, name: str) -> None:
        """Remove a topic with all its records. Programs that have it open get PartitionDeleted."""
        self._check_open()
        uuid = self._catalog.delete(name)
        if uuid is not None:
            self._close_partitions(uuid)

    def _close_partitions(self, topic: bytes) -> None:
        with self._mutex:
            for key in [key for key in self._partitions if key[0] == topic]:
                _, partition = self._partitions.pop(key)
                partition.close()

    def schema_of(self, info: TopicInfo) -> Schema:
        """The schema that new records of a topic have."""
        return self._catalog.schemas(info).get(info.schemas[-1])

    def schema_by_id(self, info: TopicInfo, schema_id: int) -> Schema:
        """One of the schemas that a topic has or had; raises UnknownSchema."""
        if schema_id not in info.schemas:
            raise UnknownSchema(schema_id, f"topic {info.name!r}")
        return self._catalog.schemas(info).get(schema_id)

    def partition(self, info: TopicInfo, number: int) -> Partition:
        """One partition of a topic, opened when it is first asked for."""
        key = (info.uuid, number)
        known = self._partitions.get(key)
        if known is not None and (known[0] is info.config or known[0] == info.config):
            return known[1]  # without the mutex: another partition that takes long to open holds up nobody here
        if number >= info.partitions:  # the caller may have heard of partitions that came since
            info = self._catalog.refresh(info.name)
        with self._mutex:
            self._check_open()
            known = self._partitions.get(key)
            if not 0 <= number < info.partitions:
                raise InvalidConfiguration(
                    f"topic {info.name!r} has partitions 0 to {info.partitions - 1}, not {number}"
                )
            if known is not None:
                return self._reconfigure(key, info, known[1])
            if self._catalog.get(info.name).uuid != info.uuid:
                raise PartitionDeleted(f"topic {info.name!r}")
            try:
                partition = self._backend.open_partition(info, number)
            except OpenFailed:
                if self._catalog.refresh(info.name).uuid != info.uuid:  # or raises UnknownTopic: deleted meanwhile
                    raise PartitionDeleted(f"topic {info.name!r}") from None
                raise
            self._partitions[key] = (info.config, partition)
            return partition

    def holds_partition(self, info: TopicInfo, number: int) -> bool:
        """Return whether anything is kept of a partition, which may never have been used."""
        return self._backend.holds_partition(info, number)

    def partition_statistics(self, info: TopicInfo, number: int) -> PartitionStatistics:
        """Return one partition of a topic in numbers. One that was never used is not made by this."""
        if not self._backend.holds_partition(info, number):
            return _NOTHING
        return self.partition(info, number).statistics()

    def _reconfigure(self, key: tuple[bytes, int], info: TopicInfo, partition: Partition) -> Partition:
        partition.configure(partition_config(info.config))
        self._partitions[key] = (info.config, partition)
        return partition

    def open_partitions(self) -> list[Partition]:
        """The partitions that were opened here and are still open."""
        with self._mutex:
            return [partition for _, partition in self._partitions.values()]

    # Producing and consuming.

    def producer(
        self,
        topic: str,
        *,
        create: bool = False,
        partitions: int | None = None,
        replication: int | None = None,
        config: ProducerConfig | None = None,
        **options: Any,
    ) -> Producer:
        """A producer for one topic. Options are those of ProducerConfig, by name.

        With `create`, a topic that does not exist is created, raw, with so many `partitions`, and in a cluster with so
        many replicas (`replication`). It waits up to `block_timeout` for brokers that are still joining. A topic that
        exists is as it is.
        """
        chosen = self.producer_config(config, options)
        written = self.topic_to_write(topic, chosen, create=create, partitions=partitions, replication=replication)
        return self.look_after(Producer(written, chosen))

    def _producer(
        self, topic: str, config: ProducerConfig | None, options: dict[str, Any], appender: Appender | None = None
    ) -> Producer:
        self._check_open()
        return self.look_after(Producer(self.topic(topic), self.producer_config(config, options), appender))

    def topic_to_write(
        self, name: str, config: ProducerConfig, *, create: bool, partitions: int | None, replication: int | None
    ) -> Topic:
        """Return the topic of a new producer, created if that is wanted; raises UnknownTopic if it is not."""
        if create:
            timeout = config.block_timeout
            return self.ensure_topic(
                name, 1 if partitions is None else partitions, replication=replication, timeout=timeout
            )
        if partitions is not None or replication is not None:
            raise InvalidConfiguration(
                f"partitions and replication are for topics that a producer creates: give create=True for {name!r} too"
            )
        return self.topic(name)

    def producer_config(self, config: ProducerConfig | None, options: dict[str, Any]) -> ProducerConfig:
        """Return the configuration of a producer: as given, and otherwise by the store's defaults."""
        return configured(self.defaults.producer, config, options)

    def look_after(self, producer: _Producer) -> _Producer:
        """Close a producer together with the store."""
        with self._mutex:
            self._producers.add(producer)
            self._written[producer.topic._uuid] = producer.topic
        return producer

    def sync(self) -> None:
        """Write everything that is pending in the store's producers, and make it durable, whatever the topics' modes.

        Records of producers that are closed by now become durable too. Those of a transaction are durable when it is
        committed. An error does not keep the other topics from being synced; the first one is raised in the end.
        """
        self._check_open()
        with self._mutex:
            producers = [producer for producer in self._producers if not producer._appender.staging]
            written = self._written
            # These may write more while this is under way.
            self._written = {producer.topic._uuid: producer.topic for producer in producers}
        errors: list[Exception] = []
        for producer in producers:
            try:
                producer._write_all()
            except Exception as error:  # noqa: BLE001 - raised below, when the others are written
                errors.append(error)
        for uuid, topic in written.items():
            try:
                self._sync_topic(topic)
            except (UnknownTopic, PartitionDeleted):
                continue  # there is nothing left to make durable
            except Exception as error:  # noqa: BLE001 - raised below, when the others are synced
                self._written.setdefault(uuid, topic)
                errors.append(error)
        if errors:
            raise errors[0]

    def _sync_topic(self, topic: Topic) -> None:
        info = topic.info
        if info.config.sync == "always":
            return  # it was durable when it was written
        for number in range(info.partitions):
            if self._backend.holds_partition(info, number):
                self.partition(info, number).sync()

    def transaction(
        self,
        consumer: Consumer | None = None,
        *,
        writer: str | None = None,
        sequence: int | None = None,
        owner: str | None = None,
        takeover: bool = False,
    ) -> Transaction:
        """A block whose writes, to any topics, happen together or not at all: `with store.transaction() as t:`.

        With a consumer, its progress in the block is part of it: each record counts exactly once. A `writer` with a
        `sequence` makes the block repeatable: the second time, under the same or a lower number, it does nothing. With
        an `owner` the sequence is a number of its own, from 0 on: a writer that another owner has used raises
        WriterTaken, unless `takeover` is set.
        """
        self._check_open()
        return begin_transaction(self, consumer, writer, sequence, owner, takeover)

    @property
    def transactions(self) -> TransactionCoordinator:
        """The transaction coordinator, for programs that transact for others, such as a broker."""
        self._check_open()
        return self._transactions

    def stage(self) -> Staging:
        """Room for frames that a transaction, of any process, adopts later: the way to write from many processes."""
        self._check_open()
        return Staging(self._transactions.stage())

    def drop(self, staged: Iterable[Staged]) -> None:
        """Remove what was staged and is no part of a decided transaction."""
        self._check_open()
        self._transactions.drop(staged)

    def roll_forward(self, group: str | None = None, *, dry_run: bool = False) -> int:
        """Carry out the transactions that are decided and were left undone, all or those of a group; how many."""
        self._check_open()
        return self._transactions.roll_forward(group=group, dry_run=dry_run)

    def sweep_stages(self, before: float, *, dry_run: bool = False) -> int:
        """Drop transactions that nobody has written to since that time (seconds since 1970), undecided; how many."""
        self._check_open()
        return self._transactions.sweep(lambda written_ns: written_ns < before * 1e9, dry_run=dry_run)

    def consumer(
        self,
        topics: str | Iterable[str],
        *,
        group: str | None = None,
        start: Start = "earliest",
        static: tuple[int, int] | None = None,
        on_assign: OnChange | None = None,
        on_revoke: OnChange | None = None,
        on_damage: OnRecordsDamaged | None = None,
        where: str | None = None,
        config: ConsumerConfig | None = None,
        **options: Any,
    ) -> Consumer:
        """A consumer of topics, by names or patterns (`"orders.*"`); topics may come later. Options: ConsumerConfig.

        With a group it reads on from the group's position and shares the partitions with the group's other members;
        `start` is for partitions where there is no position yet. `static=(number, total)` takes a fixed share instead.
        Records that are damaged raise RecordsDamaged; with `on_damage` they are told to it and passed over.
        With `where`, a filter such as `"key like 'orders.%'"`, the consumer gets only records that match. A broker
        sends no others. Positions pass over the rest.
        """
        self._check_open()
        return Consumer(
            self,
            topics,
            group=None if group is None else self._coordinator(group),
            start=start,
            config=configured(self.defaults.consumer, config, options),
            static=static,
            on_assign=on_assign,
            on_revoke=on_revoke,
            on_damage=on_damage,
            where=where,
        )

    def group(self, name: str) -> Group:
        """Return a group of consumers by its name; it comes into being with its first member."""
        return Group(self._coordinator(name))

    def _coordinator(self, name: str) -> GroupCoordinator:
        """Return the coordinator of a group, which members talk to; opened when it is first asked for."""
        self._check_open()
        return self._backend.coordinator(check_name("group", name))

    def has_group(self, name: str) -> bool:
        """Return whether there ever was a group of this name. Asking does not make it one."""
        self._check_open()
        return self._backend.has_group(check_name("group", name))

    def group_names(self) -> list[str]:
        """Return the names of all groups that ever were, sorted."""
        self._check_open()
        return self._backend.group_names()

    def _new_fetcher(self, config: ConsumerConfig, group: str | None) -> Fetcher:
        return self._backend.new_fetcher(config, group)

    def _new_appender(self) -> Appender:
        return self._backend.new_appender()

    # Cleaning.

    def steward(self, *, config: StewardConfig | None = None, **options: Any) -> Steward:
        """Return a steward, which cleans the store by what its topics want to keep. Options: StewardConfig, by name."""
        self._check_open()
        return Steward(
            self, configured(self.defaults.steward, config, options), self._clock, self._backend.new_cleaner(self)
        )

    def stewarding(self) -> AbstractContextManager[None]:
        """The right to clean, for the length of a block; raises PartitionBusy when someone else is at it.

        Raises StoreError for a store behind a broker, which cleans by itself.
        """
        return self._backend.stewarding()

    def sweep(self, *, dry_run: bool = False) -> int:
        """Remove what is left of half-deleted topics; of how many."""
        self._check_open()
        return self._catalog.sweep(dry_run=dry_run)

    # The handle.

    def statistics(self) -> StoreStatistics:
        """Return the store in numbers. Of a cluster, topics with a partition that nobody leads are left out."""
        self._check_open()
        topics = self._backend.statistics()
        if topics is None:
            topics = [self.topic(name).statistics() for name in self.topics()]
        return StoreStatistics.of(topics)

    def close(self) -> None:
        """Close everything that was opened here, after writing what is pending. Closing twice does no harm."""
        with ExitStack() as stack, self._mutex:
            if self._closed:
                return
            stack.callback(self._backend.close)
            stack.callback(self._transactions.close)
            for _, partition in self._partitions.values():
                stack.callback(partition.close)
            stack.callback(self._shut)
            for producer in list(self._producers):
                stack.callback(producer.close)

    def _shut(self) -> None:
        with self._mutex:
            self._closed = True
            self._partitions.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(str(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
