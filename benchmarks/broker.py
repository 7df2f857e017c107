"""The broker beside Kafka, Redis Streams and NATS JetStream: from one process through a server to another one.

Each side uses its own Python client as its manual advises for speed, one partition, and one consumer that acknowledges
what it has read. No side syncs each record: ours and Redis sync each second, Kafka and NATS when the system does or
after minutes. All run on one machine, where our records are not sent; two rows have them sent, as between machines. The
last row is ours with everything synced before it is acknowledged, beside our own embedded store.
Each side has four turns before any is counted: until then the Java of Kafka is still compiling what it runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from time import monotonic_ns, perf_counter, sleep
from typing import Any, Final, NamedTuple

import headwater as hw
from benchmarks.measure import compare
from benchmarks.report import Row, at_least, at_most
from benchmarks.servers import (
    QUIET,
    has_kafka,
    has_nats,
    headwater_server,
    kafka_server,
    nats_server,
    new_kafka_topic,
    redis_server,
)
from benchmarks.transfer import answer, installed, spawn, transfer

AT_A_TIME: Final = 1000
RATE: Final = 1000
"""Records a second, where single ones are timed."""
WARM_UP: Final = 4


class Load(NamedTuple):
    """The number and the size of the records, and whether they go in batches."""

    number: int
    size: int
    in_batches: bool
    sent: bool = False
    """True if our records go over the network, as between machines. Else they are handed over as on one machine."""

    @property
    def value(self) -> bytes:
        """A record that does not compress."""
        return os.urandom(self.size)


class Peer(NamedTuple):
    """Another system: what it is called, whether it is here, its server, and how records pass through it."""

    name: str
    here: bool
    server: Callable[[Path], AbstractContextManager[Any]]
    through: Callable[[Any, Load], float]
    latencies: Callable[[Any, int], list[int]]
    share: int = 1
    """It gets one in so many of the records, where all of them would take it an hour."""


def run(quick: bool, scratch: Path) -> Iterator[Row]:
    """Measure them all."""
    repeats = 1 if quick else 5
    peers = _peers()
    small, large = (30_000, 10_000) if quick else (500_000, 100_000)
    loads = [Load(small, 100, False), Load(small, 100, True), Load(large, 1000, True)]
    sent = [load._replace(sent=True) for load in loads if load.in_batches]
    for peer in peers[:1] if quick else peers:
        theirs = peer.server(scratch) if peer.here else nullcontext()
        with headwater_server(scratch) as ours, theirs as server:
            for load in loads + (sent if peer is peers[0] else []):
                yield _beside(ours, peer, server, load, repeats)
            yield from _latencies(ours, peer, server, 500 if quick else 5_000)
    yield _beside_embedded(scratch, large, repeats)


def _goal(peer: Peer, load: Load) -> float:
    if peer.name != "Kafka":
        return 3
    if load.sent:
        return 1
    return 1 if not load.in_batches else 3 if load.size == 100 else 1.5


def _beside(ours: str, peer: Peer, server: Any, load: Load, repeats: int) -> Row:
    way = f"send_batch of {AT_A_TIME} and Arrow polls" if load.in_batches else "send and iteration"
    way += ", all sent" if load.sent else ""
    theirs = partial(peer.through, server, load._replace(number=load.number // peer.share)) if peer.here else None
    warm_up = 1 if repeats == 1 else WARM_UP
    seconds, peer_seconds = compare(partial(_through_broker, ours, load, 1.0), theirs, repeats=repeats, warm_up=warm_up)
    return Row(
        work=f"{load.size} B records through a broker to another process: {way}",
        unit="records/s",
        ours=1 / seconds,
        peer_name=peer.name,
        peer=None if peer_seconds is None else 1 / peer_seconds,
        goal=at_least(_goal(peer, load)),
    )


def _latencies(address: str, peer: Peer, server: Any, number: int) -> Iterator[Row]:
    """Each side by itself: two at once would wait for each other."""
    ours = quantiles(_latencies_of_broker(address, number), n=100)
    theirs = quantiles(peer.latencies(server, number), n=100) if peer.here else None
    for percent in (50, 99):
        yield Row(
            work=f"a record of 100 B from process to process, {RATE} each second: {percent}th percentile",
            unit="ms",
            ours=ours[percent - 1] / 1e6,
            peer_name=peer.name,
            peer=None if theirs is None else theirs[percent - 1] / 1e6,
            goal=at_most(1),
        )


def _beside_embedded(scratch: Path, number: int, repeats: int) -> Row:
    load = Load(number, 1000, True)

    def embedded() -> float:
        with TemporaryDirectory(dir=scratch) as directory:
            return _through_broker(directory, load, "always")

    with headwater_server(scratch) as server:
        seconds, peer_seconds = compare(partial(_through_broker, server, load, "always"), embedded, repeats=repeats)
    assert peer_seconds is not None
    return Row(
        work='1000 B records to another process through the broker, in batches (sync="always")',
        unit="records/s",
        ours=1 / seconds,
        peer_name="the same in a directory, without a broker",
        peer=1 / peer_seconds,
        goal=at_least(0.3),
    )


# Ours.


def _through_broker(address: str, load: Load, sync: Any) -> float:
    topic = f"orders-{os.urandom(4).hex()}"
    value = load.value
    with _opened(address, load) as store:
        store.create_topic(topic, sync=sync)
        try:
            with store.producer(topic) as out:

                def produce() -> None:
                    if load.in_batches:
                        batch = [value] * AT_A_TIME
                        for _ in range(load.number // AT_A_TIME):
                            out.send_batch(batch)
                    else:
                        for _ in range(load.number):
                            out.send(value)
                    out.flush()

                return transfer(load.number, produce, partial(_consume, address, topic, load))
        finally:
            store.delete_topic(topic)


def _opened(where: str, load: Load) -> hw.Store:
    return hw.open(where, client=hw.ClientConfig(direct=False)) if load.sent else hw.open(where)


def _consume(address: str, topic: str, load: Load, tell: Connection) -> None:
    """Every record acknowledged and committed; leaving the group is in nobody's figure."""
    with _opened(address, load) as store, store.consumer(topic, group="billing", auto_ack=True) as inbox:
        inbox.poll()
        tell.send("ready")
        left = load.number
        if load.in_batches:
            while left > 0:
                for consumed in inbox.poll_batches(timeout=1.0):
                    left -= consumed.batch.num_rows
                    inbox.ack(consumed)
        else:
            for record in inbox:
                left -= 1
                if not left:
                    inbox.ack_range(topic, record.partition, 0, record.offset + 1)
                    break
        inbox.commit()
        tell.send("done")


def _latencies_of_broker(address: str, number: int) -> list[int]:
    with hw.open(address) as store:
        store.create_topic("ticks", sync=1.0)
        with store.producer("ticks", linger=0.0) as out:
            return _paced(number, out.send, partial(_time_arrivals, address))


def _time_arrivals(address: str, number: int, tell: Connection) -> None:
    taken: list[int] = []
    with hw.open(address) as store, store.consumer("ticks", group="billing", auto_ack=True) as inbox:
        inbox.poll()
        tell.send("ready")
        while len(taken) < number:
            taken += [monotonic_ns() - _sent(record.value) for record in inbox.poll(timeout=1.0)]
    tell.send(taken)


def _paced(number: int, send: Callable[[bytes], object], consume: Callable[[int, Connection], None]) -> list[int]:
    """So many records at a steady rate, each saying when it was sent; how many nanoseconds each was on its way."""
    receiver, sender = spawn.Pipe(duplex=False)
    consumer = spawn.Process(target=consume, args=(number, sender))
    consumer.start()
    answer(receiver)
    begun = perf_counter()
    for count in range(number):
        left = begun + count / RATE - perf_counter()
        if left > 0:
            sleep(left)
        send(monotonic_ns().to_bytes(8, "little").ljust(100))
    latencies: list[int] = answer(receiver)
    consumer.join()
    return latencies[number // 5 :]  # the first ones find everything cold


def _sent(value: bytes) -> int:
    return int.from_bytes(value[:8], "little")


# Kafka.


def _through_kafka(address: str, load: Load) -> float:
    topic = new_kafka_topic(address)
    producer = _kafka_producer(address, linger=5)
    value = load.value

    def produce() -> None:
        if load.in_batches:
            batch = [{"value": value}] * AT_A_TIME
            for _ in range(load.number // AT_A_TIME):
                while len(producer) > 10 * AT_A_TIME:
                    producer.poll(0.001)
                producer.produce_batch(topic, [dict(message) for message in batch])
                producer.poll(0)
        else:
            for count in range(load.number):
                if not count % AT_A_TIME:
                    while len(producer) > 100 * AT_A_TIME:
                        producer.poll(0.001)
                producer.produce(topic, value)
        producer.flush()

    return transfer(load.number, produce, partial(_consume_kafka, address, topic, load))


def _kafka_producer(address: str, linger: int) -> Any:
    from confluent_kafka import Producer

    options = {"acks": "all", "linger.ms": linger, "queue.buffering.max.messages": 1_000_000}
    return Producer({"bootstrap.servers": address, **options, **QUIET})


def _kafka_consumer(address: str, topic: str) -> Any:
    from confluent_kafka import Consumer

    options = {"group.id": topic, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 100}
    consumer = Consumer({"bootstrap.servers": address, **options, **QUIET})
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    return consumer


def _consume_kafka(address: str, topic: str, load: Load, tell: Connection) -> None:
    consumer = _kafka_consumer(address, topic)
    tell.send("ready")
    left = load.number
    while left > 0:
        if load.in_batches:
            left -= len(consumer.consume(AT_A_TIME, 1.0))
        elif consumer.poll(1.0) is not None:
            left -= 1
    consumer.commit(asynchronous=False)
    tell.send("done")
    consumer.close()


def _latencies_of_kafka(address: str, number: int) -> list[int]:
    topic = new_kafka_topic(address)
    producer = _kafka_producer(address, linger=0)

    def send(value: bytes) -> None:
        producer.produce(topic, value)
        producer.poll(0)

    return _paced(number, send, partial(_time_kafka, address, topic))


def _time_kafka(address: str, topic: str, number: int, tell: Connection) -> None:
    consumer = _kafka_consumer(address, topic)
    tell.send("ready")
    taken: list[int] = []
    while len(taken) < number:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            taken.append(monotonic_ns() - _sent(message.value()))
    tell.send(taken)
    consumer.close()


# Redis.


def _through_redis(port: int, load: Load) -> float:
    from redis import Redis

    stream = f"orders-{os.urandom(4).hex()}"
    value = load.value
    with Redis(port=port) as client:
        client.xgroup_create(stream, "billing", mkstream=True)

        def produce() -> None:
            pipeline = client.pipeline(transaction=False)
            for _ in range(load.number // AT_A_TIME):
                for _ in range(AT_A_TIME):
                    pipeline.xadd(stream, {b"value": value})
                pipeline.execute()

        seconds = transfer(load.number, produce, partial(_consume_redis, port, stream, load))
        client.delete(stream)
    return seconds


def _consume_redis(port: int, stream: str, load: Load, tell: Connection) -> None:
    from redis import Redis

    with Redis(port=port) as client:
        client.ping()
        tell.send("ready")
        left = load.number
        while left > 0:
            streams: Any = client.xreadgroup("billing", "one", {stream: ">"}, count=AT_A_TIME, block=1000)
            for _, entries in streams:
                client.xack(stream, "billing", *(entry for entry, _ in entries))
                left -= len(entries)
    tell.send("done")


def _latencies_of_redis(port: int, number: int) -> list[int]:
    from redis import Redis

    with Redis(port=port) as client:
        client.xgroup_create("ticks", "billing", mkstream=True)
        return _paced(number, lambda value: client.xadd("ticks", {b"value": value}), partial(_time_redis, port))


def _time_redis(port: int, number: int, tell: Connection) -> None:
    from redis import Redis

    taken: list[int] = []
    with Redis(port=port) as client:
        client.ping()
        tell.send("ready")
        while len(taken) < number:
            streams: Any = client.xreadgroup("billing", "one", {"ticks": ">"}, count=AT_A_TIME, block=1000)
            for _, entries in streams:
                taken += [monotonic_ns() - _sent(fields[b"value"]) for _, fields in entries]
                client.xack("ticks", "billing", *(entry for entry, _ in entries))
    tell.send(taken)


# NATS, whose client is for asyncio only.


def _through_nats(address: str, load: Load) -> float:
    stream = f"orders-{os.urandom(4).hex()}"
    asyncio.run(_new_nats_stream(address, stream))
    return transfer(
        load.number,
        lambda: asyncio.run(_send_nats(address, stream, load)),
        partial(_consume_nats, address, stream, load),
    )


async def _new_nats_stream(address: str, stream: str) -> None:
    import nats

    client = await nats.connect(address)
    await client.jetstream().add_stream(name=stream, subjects=[stream])
    await client.close()


async def _send_nats(address: str, stream: str, load: Load) -> None:
    import nats

    client = await nats.connect(address)
    jetstream = client.jetstream(publish_async_max_pending=4 * AT_A_TIME)
    value = load.value
    for _ in range(load.number):
        await jetstream.publish_async(stream, value, wait_stall=60.0)
    await jetstream.publish_async_completed()
    await client.close()


def _consume_nats(address: str, stream: str, load: Load, tell: Connection) -> None:
    asyncio.run(_read_nats(address, stream, tell, load.number, lambda _: None))
    tell.send("done")


async def _read_nats(address: str, stream: str, tell: Connection, number: int, take: Callable[[Any], None]) -> None:
    """Pushed to us, which is faster there than pulling; each acknowledgement is for all before it."""
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    client = await nats.connect(address)
    config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=100 * AT_A_TIME)
    subscription = await client.jetstream().subscribe(
        stream, durable="billing", config=config, manual_ack=True, pending_msgs_limit=-1, pending_bytes_limit=-1
    )
    tell.send("ready")
    for count in range(1, number + 1):
        message = await subscription.next_msg(timeout=60.0)
        take(message)
        if not count % AT_A_TIME or count == number:
            await message.ack()
    await client.flush()
    await client.close()


def _latencies_of_nats(address: str, number: int) -> list[int]:
    import nats

    asyncio.run(_new_nats_stream(address, "ticks"))
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(nats.connect(address))
    jetstream = client.jetstream()
    try:
        return _paced(
            number,
            lambda value: loop.run_until_complete(jetstream.publish("ticks", value)),
            partial(_time_nats, address),
        )
    finally:
        loop.run_until_complete(client.close())
        loop.close()


def _time_nats(address: str, number: int, tell: Connection) -> None:
    taken: list[int] = []

    def take(message: Any) -> None:
        taken.append(monotonic_ns() - _sent(message.data))

    asyncio.run(_read_nats(address, "ticks", tell, number, take))
    tell.send(taken)


def _peers() -> list[Peer]:
    return [
        Peer("Kafka", has_kafka() and installed("confluent_kafka"), kafka_server, _through_kafka, _latencies_of_kafka),
        Peer("a Redis stream", installed("redis", "redis-server"), redis_server, _through_redis, _latencies_of_redis),
        Peer("NATS JetStream", has_nats() and installed("nats"), nats_server, _through_nats, _latencies_of_nats, 20),
    ]
