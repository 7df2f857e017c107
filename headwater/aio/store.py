"""A store in an event loop: what `headwater.aio.open` gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

import pyarrow as pa

from headwater.aio.consumer import Consumer
from headwater.aio.group import Group
from headwater.aio.opening import Opening
from headwater.aio.producer import Producer
from headwater.aio.steward import Steward
from headwater.aio.threads import Threads, Turns
from headwater.aio.topic import Topic
from headwater.aio.transaction import Transaction
from headwater.aio.waiting import Bell
from headwater.core.config import ClientConfig, ConsumerConfig, ProducerConfig, StewardConfig, TopicConfig
from headwater.core.errors import RecordsDamaged
from headwater.core.presets import DEFAULT, Preset
from headwater.opening import open_store
from headwater.streams.catalog import TopicInfo
from headwater.streams.pattern import TopicFilter
from headwater.streams.start import Start
from headwater.streams.store import Store as SyncStore
from headwater.streams.store import StoreStatistics
from headwater.streams.topic import TopicPartition

THREADS = 8
"""The number of threads of a store by default: enough for as many disk operations at once."""

OnChange = Callable[[frozenset[TopicPartition]], object]
"""Told which partitions a consumer has been given, or has to give up: a function or a coroutine function."""


OnDamage = Callable[[RecordsDamaged], object]
"""Told of records that are damaged and passed over: a function or a coroutine function."""


class Store:
    """Topics, producers, consumers and groups, for the tasks of one event loop.

    Calls that may block run in at most `threads` threads. It is made in the event loop, over a synchronous store,
    which may be used by other threads at the same time and is closed together with it.
    """

    def __init__(self, store: SyncStore, *, threads: int = THREADS) -> None:
        self._threads = Threads(threads, str(store))
        self._bells: WeakSet[Bell] = WeakSet()
        self._store = store

    # Topics.

    async def create_topic(
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
        cluster, `replication` and `min_insync` are as in `headwater.Store.create_topic`.
        """
        made = await self._threads.run(
            lambda: self._store.create_topic(
                name,
                partitions,
                schema,
                replication=replication,
                min_insync=min_insync,
                config=config,
                exist_ok=exist_ok,
                **options,
            )
        )
        return Topic(made, self._threads)

    async def ensure_topic(
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
        ensured = await self._threads.run(
            lambda: self._store.ensure_topic(name, partitions, schema, replication=replication, timeout=timeout)
        )
        return Topic(ensured, self._threads)

    async def topic(self, name: str) -> Topic:
        """A topic that exists; raises UnknownTopic."""
        return Topic(await self._threads.run(lambda: self._store.topic(name)), self._threads)

    async def topics(self) -> list[str]:
        """The names of all topics, sorted; internal ones are left out."""
        return await self._threads.run(self._store.topics)

    async def topic_names(self) -> list[str]:
        """The names of all topics, sorted, internal ones too."""
        return await self._threads.run(self._store.topic_names)

    async def describe_topic(self, name: str) -> TopicInfo:
        """Return a topic's description as it is now."""
        return await self._threads.run(lambda: self._store.describe_topic(name))

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        min_insync: int | None = None,
        **options: Any,
    ) -> TopicInfo:
        """Change a topic: more partitions, or options of TopicConfig by name. Other processes see it within a second.

        More partitions send keys elsewhere from now on: what is there stays where it is. In a cluster, `replication`
        and `min_insync` are as in `headwater.Store.alter_topic`.
        """
        return await self._threads.run(
            lambda: self._store.alter_topic(
                name, partitions=partitions, replication=replication, min_insync=min_insync, **options
            )
        )

    async def delete_topic(self, name: str) -> None:
        """Remove a topic with all its records. Programs that have it open get PartitionDeleted."""
        await self._threads.run(lambda: self._store.delete_topic(name))

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
    ) -> Opening[Producer]:
        """A producer for one topic, by `async with` or `await`. Options are those of ProducerConfig, by name.

        With `create`, a topic that does not exist is created, as in `headwater.Store.producer`.
        """

        def make() -> Producer:
            chosen = self._store.producer_config(config, options)
            written = self._store.topic_to_write(
                topic, chosen, create=create, partitions=partitions, replication=replication
            )
            made = Producer(written, chosen, self._threads)
            self._store.look_after(made.buffer)
            return made

        return Opening(lambda: self._threads.run(make, lambda unused: unused.buffer.close()))

    def consumer(
        self,
        topics: str | Iterable[str],
        *,
        group: str | None = None,
        start: Start = "earliest",
        static: tuple[int, int] | None = None,
        on_assign: OnChange | None = None,
        on_revoke: OnChange | None = None,
        on_damage: OnDamage | None = None,
        where: str | None = None,
        config: ConsumerConfig | None = None,
        **options: Any,
    ) -> Opening[Consumer]:
        """A consumer of topics, by names or patterns, by `async with` or `await`; otherwise as in `headwater.Store`.

        Callbacks for partitions and damage may be functions or coroutine functions, and may use the consumer.
        """
        wanted = topics if isinstance(topics, str) else list(topics)

        async def opens() -> Consumer:
            turns = Turns(self._threads)
            opened = await self._threads.run(
                lambda: self._store.consumer(
                    wanted,
                    group=group,
                    start=start,
                    static=static,
                    on_assign=None if on_assign is None else turns.callback(on_assign),
                    on_revoke=None if on_revoke is None else turns.callback(on_revoke),
                    on_damage=None if on_damage is None else turns.callback(on_damage),
                    where=where,
                    config=config,
                    **options,
                ),
                lambda unused: self._threads.submit(unused.close),
            )
            consumer = Consumer(opened, self._store, TopicFilter(wanted), turns, self._threads)
            self._bells.add(consumer.bell)
            return consumer

        return Opening(opens)

    def transaction(
        self,
        consumer: Consumer | None = None,
        *,
        writer: str | None = None,
        sequence: int | None = None,
        owner: str | None = None,
        takeover: bool = False,
    ) -> Opening[Transaction]:
        """A block whose writes, to any topics, happen together or not at all: `async with store.transaction() as t:`.

        With a consumer, its progress in the block is part of it: each record counts exactly once. A `writer` with a
        `sequence` makes the block repeatable: the second time, under the same or a lower number, it does nothing. An
        `owner` and `takeover` are as in `headwater.Store.transaction`.
        """
        below = None if consumer is None else consumer.consumer
        in_turn = Turns(self._threads).run if consumer is None else consumer.in_turn

        async def opens() -> Transaction:
            begun = await in_turn(
                lambda: self._store.transaction(
                    below, writer=writer, sequence=sequence, owner=owner, takeover=takeover
                ),
                lambda unused: self._threads.submit(unused.abort),
            )
            return Transaction(begun, self._store, in_turn, self._threads)

        return Opening(opens)

    async def roll_forward(self, group: str | None = None, *, dry_run: bool = False) -> int:
        """Carry out the transactions that are decided and were left undone, all or those of a group; how many."""
        return await self._threads.run(lambda: self._store.roll_forward(group, dry_run=dry_run))

    async def sweep_stages(self, before: float, *, dry_run: bool = False) -> int:
        """Drop transactions that nobody has written to since that time (seconds since 1970), undecided; how many."""
        return await self._threads.run(lambda: self._store.sweep_stages(before, dry_run=dry_run))

    async def group(self, name: str) -> Group:
        """A group of consumers by its name; it comes into being with its first member."""
        return Group(await self._threads.run(lambda: self._store.group(name)), self._threads)

    async def group_names(self) -> list[str]:
        """The names of all groups that ever were, sorted."""
        return await self._threads.run(self._store.group_names)

    # Cleaning.

    def steward(self, *, config: StewardConfig | None = None, **options: Any) -> Steward:
        """Return a steward, which cleans the store by what its topics want to keep. Options: StewardConfig, by name."""
        return Steward(self._store.steward(config=config, **options), self._threads)

    async def sweep(self, *, dry_run: bool = False) -> int:
        """Remove what is left of half-deleted topics; of how many."""
        return await self._threads.run(lambda: self._store.sweep(dry_run=dry_run))

    # The handle.

    async def sync(self) -> None:
        """Write everything that is pending in the store's producers, and make it durable, in every `sync` mode.

        Records of producers that are closed by now become durable too.
        """
        await self._threads.run(self._store.sync)

    async def statistics(self) -> StoreStatistics:
        """The store in numbers."""
        return await self._threads.run(self._store.statistics)

    async def close(self) -> None:
        """Close everything that was opened here, after writing what is pending. Closing twice does no harm."""
        if self._threads.closed:
            return
        try:
            await self._threads.run(self._store.close)
        finally:
            self._threads.close()
            for bell in list(self._bells):
                bell.close()

    def __str__(self) -> str:
        return str(self._store)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def open_async(
    where: str | os.PathLike[str],
    *,
    preset: Preset = DEFAULT,
    client: ClientConfig | None = None,
    threads: int = THREADS,
    **credentials: Any,
) -> Opening[Store]:
    """Open a store, by `async with` or `await`: a directory, made if need be, `"memory:"`, or a broker (`"hw://host"`).

    All is as in `headwater.open`; `threads` is how many operations can be under way at once. The event loop itself
    waits for none of them.
    """

    async def opens() -> Store:
        opener = Threads(threads, str(where))
        try:
            return Store(
                await opener.run(
                    lambda: open_store(where, preset=preset, client=client, **credentials),
                    lambda unused: unused.close(),
                ),
                threads=threads,
            )
        finally:
            opener.close()

    return Opening(opens)
