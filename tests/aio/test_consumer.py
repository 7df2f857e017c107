"""Consumers of an event loop: what they read and acknowledge, how they wait, and that cancellation loses nothing."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import TopicPartition
from headwater.aio import Consumer, Store, waiting
from headwater.embedded.inotify import INOTIFY
from tests.support.aio import (
    KINDS,
    PATIENCE,
    Cancelled,
    When,
    cancelled_everywhere,
    drain,
    fill,
    open_kind,
    run,
    ticks,
    until,
    values,
)

ORDERS = TopicPartition("orders", 0)

pytestmark = pytest.mark.parametrize("kind", KINDS)


async def committed(store: Store, group: str, partition: TopicPartition = ORDERS) -> int | None:
    uuid = (await store.describe_topic(partition.topic)).uuid
    position = await (await store.group(group)).position((uuid, partition.partition))
    return None if position is None else position.offset


# Reading and acknowledging.


def test_a_group_goes_on_where_it_was(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 10)
            async with store.consumer("orders", group="billing") as inbox:
                records = await inbox.poll(4)
                assert values(records) == [0, 1, 2, 3]
                await inbox.ack(records[0])
                await inbox.ack(records[1])
                await inbox.ack(records[3])  # out of order: the position stays before the gap
            assert await committed(store, "billing") == 2
            async with store.consumer("orders", group="billing") as inbox:
                assert values(await inbox.poll()) == list(range(2, 10))
                await inbox.ack_range("orders", 0, 2, 10)
                await inbox.commit()
                assert await committed(store, "billing") == 10
                assert await inbox.lag() == {ORDERS: 0}
                assert (await inbox.statistics()).delivered_records == 8

    run(main())


def test_polling_batches(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 10)
            async with store.consumer("orders", group="billing") as inbox:
                (batch,) = await inbox.poll_batches(timeout=PATIENCE)
                assert batch.batch.column("value").to_pylist() == [b"%d" % number for number in range(10)]
                await inbox.ack(batch)
                assert await inbox.poll_batches() == []
            assert await committed(store, "billing") == 10

    run(main())


def test_a_filter_chooses_records(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 10)
            async with store.consumer("orders", group="billing", where="value in ('3', '7')") as inbox:
                records = await inbox.poll(timeout=PATIENCE)
                assert values(records) == [3, 7]
                for record in records:
                    await inbox.ack(record)
            assert await committed(store, "billing") == 10
            topic = await store.topic("orders")
            assert (await topic.scan(where="value = '4'").read_all())["offset"].to_pylist() == [4]
            assert [record.value for record in await topic.recent(2, where="value < '5'")] == [b"3", b"4"]

    run(main())


def test_iterating_waits_for_more_and_ends_when_the_consumer_is_closed(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 3)
            inbox = await store.consumer("orders")
            received: list[int] = []

            async def read() -> None:
                async for record in inbox:
                    received.extend(values([record]))

            reader = asyncio.create_task(read())
            await until(lambda: len(received) == 3)
            await fill(store, "orders", 2, first=3)
            await until(lambda: len(received) == 5)
            await inbox.close()
            await reader
            assert received == [0, 1, 2, 3, 4]
            with pytest.raises(hw.StoreClosed):
                await inbox.poll()
            await inbox.close()

    run(main())


@pytest.mark.parametrize("auto_ack", [True, False])
def test_leaving_an_iteration_leaves_the_rest_for_the_next_poll(kind: str, tmp_path: Path, auto_ack: bool) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 10)
            async with store.consumer("orders", group="billing", auto_ack=auto_ack) as inbox:
                async for record in inbox:
                    if record.value == b"3":
                        break
                assert values(await inbox.poll(2)) == [4, 5]
                async for record in inbox:
                    assert record.value == b"6"
                    break
            assert await committed(store, "billing") == (7 if auto_ack else 0)

    run(main())


def test_who_fails_has_not_done_what_it_was_given_last(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 4)
            inbox = await store.consumer("orders", group="billing", auto_ack=True)

            async def fail() -> None:
                async with inbox:
                    await inbox.poll(2)
                    await inbox.poll(1)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            assert await committed(store, "billing") == 2

    run(main())


def test_a_poll_that_waits_commits_when_it_is_time(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 4)
            options: dict[str, Any] = {"auto_ack": True, "auto_commit_interval": 0.05, "refresh_interval": 3600}
            async with store.consumer("orders", group="billing", **options) as inbox:
                assert len(await inbox.poll(timeout=300)) == 4
                waiting = asyncio.create_task(inbox.poll(timeout=300))
                while await committed(store, "billing") != 4:
                    assert not waiting.done()
                    await asyncio.sleep(0.01)
                waiting.cancel()

    run(main())


def test_tasks_acknowledge_while_another_one_waits_for_more(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 50)
            async with store.consumer("orders", group="billing", max_poll_records=5) as inbox:

                async def handle(record: hw.ConsumedRecord) -> None:
                    await asyncio.sleep(record.offset % 7 / 1000)
                    await inbox.ack(record)

                async with asyncio.TaskGroup() as tasks:
                    count = 0
                    async for record in inbox:
                        tasks.create_task(handle(record))
                        count += 1
                        if count == 50:
                            break
                waits = asyncio.create_task(inbox.poll(timeout=PATIENCE))
                await inbox.commit()
                assert await committed(store, "billing") == 50
                assert await inbox.assignment() == {ORDERS}
                waits.cancel()

    run(main())


def test_moving_about(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 10)
            async with store.consumer("orders", group="billing") as inbox:
                async for _ in inbox:
                    break  # nine are read ahead, and of no use after the next line
                await inbox.seek("orders", 0, 7)
                assert values(await inbox.poll()) == [7, 8, 9]
                await inbox.reset("earliest")
                assert values(await inbox.poll(2)) == [0, 1]
                await inbox.pause()
                assert await inbox.poll() == []
                waits = asyncio.create_task(inbox.poll(timeout=PATIENCE))
                await ticks(5)
                await inbox.resume()
                assert values(await waits) == list(range(2, 10))
            group = await store.group("billing")
            key = ((await store.describe_topic("orders")).uuid, 0)
            await group.reset({ORDERS: hw.Commit(key, 4)})
            assert (await group.committed())[key].offset == 4
            assert "billing" in await store.group_names()
            async with store.consumer("orders", group="billing") as inbox:
                assert await drain(inbox) == [4, 5, 6, 7, 8, 9]

    run(main())


# Groups.


def test_partitions_change_hands_and_callbacks_have_the_consumer_to_themselves(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path, threads=1) as store:
            await store.create_topic("orders", partitions=4)
            for partition in range(4):
                await fill(store, "orders", 5, partition=partition, first=10 * partition)
            given: list[TopicPartition] = []
            first: Consumer
            pending: list[hw.ConsumedRecord] = []

            async def revoked(partitions: frozenset[TopicPartition]) -> None:
                await store.topics()  # needs a thread, and there is only the one that waits for this
                for record in pending:
                    if (record.topic, record.partition) in partitions:
                        await first.ack(record)
                assert await first.assignment() >= partitions

            async with store.consumer("orders", group="billing", on_revoke=revoked, on_assign=given.extend) as first:
                pending += await first.poll()
                assert len(pending) == 20
                assert len(given) == 4
                async with store.consumer("orders", group="billing", refresh_interval=0.01) as second:
                    while len(await second.assignment()) < 2:
                        await first.poll()
                        await asyncio.sleep(0.001)
                    assert await second.poll() == []  # what was handed over had been acknowledged
                    assert len(await first.assignment()) == 2

    run(main())


# Waiting.


def test_a_waiting_poll_is_woken_by_a_record(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_SAFETY", PATIENCE)

    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            async with store.consumer("orders", refresh_interval=3600) as inbox:
                for number in range(5):
                    waits = asyncio.create_task(inbox.poll(timeout=PATIENCE))
                    await ticks(number)
                    await fill(store, "orders", 1, first=number)
                    assert values(await waits) == [number]
                assert await inbox.poll(timeout=0.01) == []

    begun = time.monotonic()
    run(main())
    assert time.monotonic() - begun < PATIENCE, "it was woken by the clock"


@pytest.mark.parametrize("look", [1, 2, 3])
def test_what_is_written_during_a_look_is_not_slept_over(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    monkeypatch.setattr(waiting, "_SAFETY", 2 * PATIENCE)

    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            async with store.consumer("orders", refresh_interval=3600) as inbox:
                looks = 0
                poll = inbox.consumer.poll

                def poll_and_write(max_records: int | None = None) -> list[hw.ConsumedRecord]:
                    nonlocal looks
                    records = poll(max_records)
                    looks += 1
                    if looks == look:
                        with store._store.producer("orders") as out:
                            out.send(b"7")
                        time.sleep(0.05)  # the notice is there before the look is over
                    elif looks < look:
                        inbox.bell.ring()
                    return records

                monkeypatch.setattr(inbox.consumer, "poll", poll_and_write)
                async with asyncio.timeout(PATIENCE):
                    assert values(await inbox.poll(timeout=2 * PATIENCE)) == [7]

    run(main())


def test_consumers_wait_without_notices_too(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(INOTIFY, "add", lambda *_: -1)

    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            async with store.consumer("orders", refresh_interval=3600) as inbox:
                waits = asyncio.create_task(inbox.poll(timeout=PATIENCE))
                await ticks()
                await fill(store, "orders", 1)
                assert values(await waits) == [0]

    run(main())


def test_a_topic_made_again_wakes_those_who_wait(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 1)
            async with store.consumer("orders", refresh_interval=0.05) as inbox:
                assert values(await inbox.poll(timeout=PATIENCE)) == [0]
                waits = asyncio.create_task(inbox.poll(timeout=PATIENCE))
                await ticks()
                await store.delete_topic("orders")
                await store.create_topic("orders")
                await fill(store, "orders", 1, first=7)
                assert values(await waits) == [7]

    run(main())


def test_a_hundred_idle_consumers_keep_no_thread_and_one_that_is_not_idle_reads(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("quiet")
            await store.create_topic("busy")
            await fill(store, "busy", 1, first=1000)  # so that all is open that stays open
            descriptors = len(os.listdir("/proc/self/fd"))
            idle = [await store.consumer("quiet") for _ in range(100)]
            waits = [asyncio.create_task(inbox.poll(timeout=PATIENCE)) for inbox in idle]
            async with store.consumer("busy", group="billing", start="latest") as inbox:
                await inbox.poll()
                received: list[int] = []
                for round_ in range(10):
                    await fill(store, "busy", 20, first=20 * round_)
                    while len(received) < 20 * (round_ + 1):
                        for record in await inbox.poll(timeout=PATIENCE):
                            received.append(int(record.value))
                            await inbox.ack(record)
                assert received == list(range(200))
            assert not any(task.done() for task in waits)
            assert sum(thread.name.startswith("headwater-aio") for thread in threading.enumerate()) <= 8 + 1
            await fill(store, "quiet", 1)
            assert [values(await task) for task in waits] == [[0]] * 100
            for inbox in idle:
                await inbox.close()
            assert len(os.listdir("/proc/self/fd")) < descriptors + 50

    run(main())


@pytest.mark.parametrize("closed", ["consumer", "store"])
def test_closing_wakes_those_who_wait(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    monkeypatch.setattr(waiting, "_SAFETY", 2 * PATIENCE)

    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            inbox = await store.consumer("orders", refresh_interval=3600)
            waits = asyncio.create_task(inbox.poll(timeout=2 * PATIENCE))
            await ticks()
            await (store if closed == "store" else inbox).close()
            with pytest.raises(hw.HeadwaterError):
                async with asyncio.timeout(PATIENCE):
                    await waits
            await inbox.close()

    run(main())


# Cancellation.

Taken = Sequence[hw.ConsumedRecord | hw.ConsumedBatch]


async def take_some(inbox: Consumer) -> Taken:
    return await inbox.poll(3, timeout=PATIENCE)


async def take_batches(inbox: Consumer) -> Taken:
    return await inbox.poll_batches(timeout=PATIENCE)


async def take_next(inbox: Consumer) -> Taken:
    return [await anext(inbox)]


def numbers(taken: Taken) -> list[int]:
    contents: list[bytes] = []
    for item in taken:
        contents += item.batch.column("value").to_pylist() if isinstance(item, hw.ConsumedBatch) else [item.value]
    return [int(value) for value in contents]


@pytest.mark.parametrize("auto_ack", [True, False])
@pytest.mark.parametrize("take", [take_some, take_batches, take_next])
def test_cancelled_anywhere_a_consumer_loses_nothing_and_repeats_nothing(
    kind: str, tmp_path: Path, take: Callable[[Consumer], Awaitable[Taken]], auto_ack: bool
) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders", partitions=3)
            handled: list[int] = []
            written = 0

            async with store.consumer("orders", group="billing", auto_ack=auto_ack) as inbox:

                async def handle_some() -> None:
                    taken = await take(inbox)
                    handled.extend(numbers(taken))
                    for item in taken if not auto_ack else ():
                        await inbox.ack(item)

                async def act(number: int, when: When) -> bool:
                    nonlocal written
                    before = len(handled)
                    for partition in range(3):
                        await fill(store, "orders", 5, first=written, partition=partition)
                        written += 5
                    struck = False
                    while len(handled) < before + 15:
                        taking = Cancelled(handle_some(), number, when)
                        try:
                            async with asyncio.timeout(PATIENCE):
                                await taking
                        except asyncio.CancelledError:
                            struck = True
                            async with asyncio.timeout(PATIENCE):
                                await handle_some()
                    return struck

                assert await cancelled_everywhere(act) >= 1
            assert sorted(handled) == list(range(written))
            for partition in range(3):
                assert await committed(store, "billing", TopicPartition("orders", partition)) == written // 3

    run(main())


def test_a_poll_cancelled_while_it_waits_and_one_that_runs_out_of_time_lose_nothing(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            received: list[int] = []
            async with store.consumer("orders", group="billing") as inbox, store.producer("orders", linger=0) as out:

                async def write() -> None:
                    for number in range(300):
                        await out.send(b"%d" % number)
                        await asyncio.sleep(0.0005)

                writer = asyncio.create_task(write())
                limit = 0.0
                while len(received) < 300:
                    limit = (limit + 0.00013) % 0.004
                    try:
                        async with asyncio.timeout(limit):
                            records = await inbox.poll(2, timeout=PATIENCE)
                    except TimeoutError:
                        continue
                    received += values(records)
                    for record in records:
                        await inbox.ack(record)
                await writer
            assert received == list(range(300))
            assert await committed(store, "billing") == 300

    run(main())


def test_opening_that_is_cancelled_leaves_no_member_behind(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")

            async def act(number: int, when: When) -> bool:
                opening = Cancelled(store.consumer("orders", group="billing"), number, when)
                try:
                    await (await opening).close()
                except asyncio.CancelledError:
                    return True
                return False

            assert await cancelled_everywhere(act) >= 1
            group = await store.group("billing")
            async with asyncio.timeout(PATIENCE):
                while (await group.describe()).members:
                    await asyncio.sleep(0.001)

    run(main())
