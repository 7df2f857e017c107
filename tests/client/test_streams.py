"""Producing, consuming and transactions over a network that fails: everything arrives once and in order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random

import pytest

import headwater as hw
import headwater.aio
from headwater import BrokerUnavailable, BufferFull, ClientConfig, InvalidRecord, Store, UnknownTopic
from headwater.client.fetcher import RemoteFetcher
from headwater.client.store import RemoteStore
from headwater.client.transaction import RemoteTransaction
from tests.support.patience import PACES, Patience, at_some_pace, wait_until
from tests.support.served import CLIENT, Served

PATIENCE = 300.0
NEVER = 3600.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "store") as served:
        yield served


@contextmanager
def cutting(served: Served, pause: float = 0.15) -> Iterator[None]:
    """Cut all connections again and again while the block runs."""
    stop = threading.Event()
    random = Random(1)

    def cut() -> None:
        while not stop.wait(random.uniform(0, 2 * pause)):
            served.network.cut()

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def values(served: Served, topic: str = "orders", partition: int = 0) -> list[bytes]:
    return [record.value for record in served.store.topic(topic).partition(partition).records()]


# Producing.


def test_records_arrive_once_and_in_order_however_often_connections_break(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders", partitions=2)
    with cutting(served), store.producer("orders", batch_records=7, linger=0.001) as out:
        receipts = []
        for number in range(3000):
            receipts.append((b"%d" % number, out.send(b"%d" % number, partition=number % 2)))
            if number % 100 == 0:
                time.sleep(0.02)
        out.flush()
    for partition in (0, 1):
        stored = values(served, partition=partition)
        assert stored == [b"%d" % number for number in range(partition, 3000, 2)]
        assert all(stored[receipt.offset] == value for value, receipt in receipts if receipt.partition == partition)


def test_a_restart_of_the_broker_is_not_noticed_by_those_who_send(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders", sync="never")
    with store.producer("orders", batch_records=10, linger=0.001) as out:
        for number in range(1500):
            out.send(b"%d" % number)
            if number % 500 == 250:
                served.stop()
                served.start()
    assert values(served) == [b"%d" % number for number in range(1500)]


def test_sending_does_not_wait_for_the_network_until_the_buffer_is_full(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders")
    with store.producer("orders", linger=NEVER, batch_records=1, block_timeout=2) as out:
        assert out.send(b"first").wait(PATIENCE) == 0
        served.network.stall()
        receipts = [out.send(b"%d" % number) for number in range(6)]
        assert not any(receipt.done for receipt in receipts)
        assert out.pending == 6
        with pytest.raises(BufferFull):
            out.send(b"one too many")
        served.network.go_on()
        assert [receipt.wait(PATIENCE) for receipt in receipts] == [1, 2, 3, 4, 5, 6]
    assert values(served) == [b"first", *(b"%d" % number for number in range(6))]


def test_batches_become_one_frame_while_others_are_on_their_way(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders")
    with store.producer("orders", linger=NEVER, block_timeout=PATIENCE) as out:
        assert out.send_batch([b"first"])[0].wait(PATIENCE) == 0
        served.network.stall()
        sent = [out.send_batch([b"%d" % number, b"more"], keys=[b"k", None]) for number in range(0, 20, 2)]
        sent += [out.send_batch([b"%d" % number], timestamps=number) for number in range(20, 25)]
        sent += [out.send_batch([b"%d" % number], timestamps=[number]) for number in range(25, 30)]
        receipts = [receipt for (receipt,) in sent]
        assert not any(receipt.done for receipt in receipts)
        assert out.pending == 30
        served.network.go_on()
        assert [receipt.wait(PATIENCE) for receipt in receipts] == [*range(1, 21, 2), *range(21, 31)]
    records = list(served.store.topic("orders").partition(0).records())
    assert [record.value for record in records[1:21:2]] == [b"%d" % number for number in range(0, 20, 2)]
    assert [record.key for record in records[1:22]] == [b"k", None] * 10 + [None]
    assert [record.value for record in records[21:]] == [b"%d" % number for number in range(20, 30)]
    assert [record.timestamp for record in records[21:]] == list(range(20, 30))
    assert (
        served.store.topic("orders").statistics().partitions[0].total_frames == 6
    )  # two fly; of the rest, each kind waits


def test_what_gathers_is_bounded_and_keeps_its_order_with_single_records(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders")
    out = store.producer("orders", linger=NEVER, batch_records=4, block_timeout=2)
    expected: list[bytes] = []

    def send_without_end() -> None:
        for number in count():
            out.send_batch([b"%d" % number, b"more"]) if number % 3 else out.send(b"%d" % number)
            expected.extend([b"%d" % number, b"more"] if number % 3 else [b"%d" % number])

    served.network.stall()
    with pytest.raises(BufferFull):
        send_without_end()
    assert out.pending <= (5 + 1) * 4  # as many frames as the broker remembers, and one that fills
    served.network.go_on()
    while out.pending > 4:  # closing waits no longer than `block_timeout` for the batch before
        time.sleep(0.001)
    out.close()
    assert values(served) == expected


def test_what_became_of_a_batch_is_told_to_its_receipt_and_to_the_next_call(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders")
    with store.producer("orders") as out:
        assert out.send_batch([b"first"])[0].wait(PATIENCE) == 0
        served.store.delete_topic("orders")
        (lost,) = out.send_batch([b"lost"])
        with pytest.raises(UnknownTopic):
            lost.wait(PATIENCE)
        with pytest.raises(UnknownTopic):
            out.send_batch([])


def test_a_refused_batch_fails_alone_and_the_order_stays(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders")
    out = store.producer("orders", linger=NEVER, batch_records=1)
    assert out.send(b"first").wait(PATIENCE) == 0
    served.store.alter_topic("orders", max_frame_bytes=65_536)  # the client hears of it a little later
    receipts, errors = [], 0
    for number in range(20):
        value = bytes(100_000) if number in (3, 4, 10) else b"%d" % number
        try:
            receipts.append((value, out.send(value)))
        except InvalidRecord:  # the error of one before, or the client knows by now
            errors += 1
            receipts.append((value, out.send(value))) if len(value) < 100 else None
    try:
        out.flush()
    except InvalidRecord:
        errors += 1
    out.close()
    assert errors
    kept = [value for value, _ in receipts if len(value) < 100]
    assert values(served) == [b"first", *kept]
    for value, receipt in receipts:
        if len(value) < 100:
            assert values(served)[receipt.offset] == value
        else:
            with pytest.raises(InvalidRecord):
                _ = receipt.offset


def test_an_append_without_a_producer_is_repeated_without_being_doubled(served: Served) -> None:
    store = served.connect()
    partition = store.create_topic("orders").partition(0)
    with cutting(served):
        for number in range(100):
            assert partition.append(hw.log.encode([b"%d" % number])).base_offset == number
    assert values(served) == [b"%d" % number for number in range(100)]


# Consuming.


def test_a_consumer_goes_on_exactly_where_it_was(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders")
    with store.producer("orders", batch_records=50) as out:
        for number in range(3000):
            out.send(b"%d" % number)
    received: list[bytes] = []
    with cutting(served), store.consumer("orders", group="g", fetch_bytes=1) as inbox:
        while len(received) < 3000:
            for record in inbox.poll(20, timeout=1):
                received.append(record.value)
                inbox.ack(record)
    assert received == [b"%d" % number for number in range(3000)]


def position_of(served: Served) -> int:
    """The offset before which everything is done in group g."""
    return max((position.offset for position in served.store.group("g").committed().values()), default=0)


def test_a_poll_that_waits_for_records_does_not_wait_for_commits(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders")
    with store.producer("orders") as out:
        out.send_batch([b"%d" % number for number in range(10)])
    with store.consumer("orders", group="g", auto_ack=True) as inbox:
        assert len(inbox.poll(2, timeout=PATIENCE)) == 2
        assert len(inbox.poll(2, timeout=PATIENCE)) == 2
        while position_of(served) < 2:  # it follows, without another poll
            time.sleep(0.001)
        served.network.stall()
        assert len(inbox.poll(2, timeout=PATIENCE)) == 2, "they are here: no answer is needed for them"
        assert len(inbox.poll(2, timeout=PATIENCE)) == 2
        served.network.go_on()
        inbox.commit()
        assert position_of(served) == 6
        inbox.poll(1)
        assert position_of(served) == 8, "who does not wait for records finds what is done committed"
    assert position_of(served) == 9


def test_commits_on_their_way_are_over_before_a_reset(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders")
    with store.producer("orders") as out:
        out.send_batch([b"%d" % number for number in range(100)])
    with store.consumer("orders", group="g", auto_ack=True) as inbox:
        for number in range(20):
            inbox.poll(3, timeout=PATIENCE)
            inbox.poll(3, timeout=PATIENCE)
            inbox.reset(number)
            assert position_of(served) == number
            assert [record.value for record in inbox.poll(1, timeout=PATIENCE)] == [b"%d" % number]
            inbox.commit()
            assert position_of(served) == number


def test_what_a_commit_on_its_way_could_not_do_is_told_to_the_next_poll(served: Served) -> None:
    served.store.create_topic("orders")
    with served.store.producer("orders") as out:
        out.send_batch([b"%d" % number for number in range(10)])

    def told(pace: int) -> None:
        served.network.go_on()
        client = ClientConfig(timeout=0.5 * pace, attempt_timeout=0.3 * pace, heartbeat=0.2)
        with served.connect(client).consumer("orders", group="g") as inbox:
            done = position_of(served)
            inbox.ack(inbox.poll(1, timeout=PATIENCE)[0])
            served.network.stall()

            def poll_until_told() -> None:
                while inbox.poll(1, timeout=0.2):
                    time.sleep(0.2)

            with pytest.raises(BrokerUnavailable):
                poll_until_told()
            served.network.go_on()
            inbox.commit()
            assert position_of(served) == done + 1

    at_some_pace(told, BrokerUnavailable)


def test_what_is_fetched_ahead_is_bounded(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders", partitions=4)
    with store.producer("orders", linger=NEVER, batch_records=1) as out:
        for number in range(200):
            out.send(bytes(50_000), partition=number % 4)
    with store.consumer("orders", fetch_bytes=100_000) as inbox:
        assert len(inbox.poll(1, timeout=PATIENCE)) == 1
        time.sleep(0.5)
        feed = inbox._fetcher
        assert isinstance(feed, RemoteFetcher)
        held = sum(source.bytes for source in feed._sources.values())
        read = sum(frame.header.length for cursor in inbox._cursors.values() for frame in cursor.frames)
        assert 50_000 < held <= 2 * 4 * 160_000
        assert read <= 4 * 160_000
        left = 199
        while left:
            left -= len(inbox.poll(timeout=PATIENCE))


def test_a_member_that_handles_for_long_stays_a_member_and_a_dead_one_does_not(tmp_path: Path) -> None:
    def stays(pace: int) -> bool:
        with Served(tmp_path / f"pace {pace}", session=pace) as served:
            store, other = served.connect(), served.connect()
            assert isinstance(other, RemoteStore)
            store.create_topic("orders", partitions=2)
            with store.producer("orders") as out:
                out.send(b"x", partition=0)
                out.send(b"y", partition=1)
            slow, dead = store.consumer("orders", group="g"), other.consumer("orders", group="g")
            wait_until(lambda: len(slow.assignment()) == len(dead.assignment()) == 1)
            other._connection.close()  # as if its process had been killed
            wait_until(lambda: len(slow.assignment()) == 2)
            (member,) = store.group("g").describe().members
            time.sleep(1.5 * pace)  # longer than a session: only heartbeats tell that it lives
            described = store.group("g").describe()
            slow.close()
            return set(described.members) == set(described.owners.values()) == {member}

    assert any(stays(pace) for pace in PACES)


# Transactions.


def transform(store: Store, inbox: hw.Consumer) -> int:
    """One block: what there is of the input goes to the output."""
    with store.transaction(inbox) as block, block.producer("invoices") as out:
        records = inbox.poll(25, timeout=0.2)
        for record in records:
            out.send(record.value, partition=0)
            inbox.ack(record)
    return len(records)


def test_every_record_counts_once_in_transactions_whose_answers_are_lost(served: Served) -> None:
    store = served.connect()
    store.create_topic("orders")
    store.create_topic("invoices")
    with store.producer("orders") as out:
        for number in range(500):
            out.send(b"%d" % number)
    done = 0
    with cutting(served), store.consumer("orders", group="g") as inbox:
        while done < 500:
            try:
                done += transform(store, inbox)
            except (hw.StaleMember, hw.TransactionAborted):
                continue  # told that nothing of it has happened
    assert values(served, "invoices") == [b"%d" % number for number in range(500)]


@pytest.mark.parametrize("arrives", [True, False])
def test_after_a_commit_that_nobody_answered_the_consumer_goes_on_from_the_group(served: Served, arrives: bool) -> None:
    store = served.connect()
    assert isinstance(store, RemoteStore)
    store.create_topic("orders")
    store.create_topic("invoices")
    with store.producer("orders") as out:
        for number in range(40):
            out.send(b"%d" % number)
    inbox = store.consumer("orders", group="g")
    block = store.transaction(inbox)
    invoices = block.producer("invoices")
    for record in inbox.poll(10, timeout=PATIENCE):
        invoices.send(record.value, partition=0)
        inbox.ack(record)
    invoices.flush()
    assert isinstance(block._pending, RemoteTransaction)
    block._pending.send()  # so that only the commit itself is left to be asked for
    served.network.stall(answers_only=arrives)
    store._connection.config = ClientConfig(timeout=1.5, attempt_timeout=0.5)  # impatient for this one call
    with pytest.raises(hw.BrokerUnavailable):
        block.commit()
    store._connection.config = CLIENT
    assert block.state == "aborted"
    served.network.cut()
    served.network.go_on()
    patience = Patience(60)
    while len(values(served, "invoices")) < 40 and not patience.exhausted():
        transform(store, inbox)
    assert values(served, "invoices") == [b"%d" % number for number in range(40)]
    inbox.close()


# In an event loop.


def test_the_same_in_an_event_loop(served: Served) -> None:
    async def main() -> list[bytes]:
        received: list[bytes] = []
        async with headwater.aio.open(served.address, client=CLIENT) as store:
            await store.create_topic("orders")
            async with store.producer("orders", batch_records=10) as out:
                last = [await out.send(b"%d" % number) for number in range(500)][-1]
                assert await last == 499
            await asyncio.to_thread(served.stop)
            await asyncio.to_thread(served.start)
            async with store.consumer("orders", group="g") as inbox:
                while len(received) < 500:
                    for record in await inbox.poll(timeout=1):
                        received.append(record.value)
                        await inbox.ack(record)
                async with store.transaction(inbox) as block, block.producer("orders") as more:
                    receipt = await more.send(b"more")
                assert await receipt == 500
                waiting = asyncio.create_task(inbox.poll(timeout=PATIENCE))
                assert [record.value for record in await waiting] == [b"more"]
        return received

    assert asyncio.run(main()) == [b"%d" % number for number in range(500)]
