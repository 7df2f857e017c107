"""`process` with coroutines: the promises of the synchronous one, and what cancellation means for them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

import headwater as hw
from headwater import ConsumedRecord, TopicPartition
from headwater.aio import Store
from tests.support.aio import KINDS, Cancelled, When, cancelled_everywhere, fill, open_kind, run, stored, until
from tests.support.patience import PACES

ORDERS = TopicPartition("orders", 0)

pytestmark = pytest.mark.parametrize("kind", KINDS)


async def position(store: Store, group: str = "billing") -> int:
    key = ((await store.describe_topic("orders")).uuid, 0)
    position = await (await store.group(group)).position(key)
    return 0 if position is None else position.offset


def test_a_coroutine_handles_each_record_and_what_is_handled_is_committed(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 20)
            stop = asyncio.Event()
            handled: list[int] = []
            told: list[int] = []

            async def handle(record: ConsumedRecord) -> None:
                await asyncio.sleep(0)
                handled.append(int(record.value))
                if len(handled) == 20:
                    stop.set()

            async def batch(records: Sequence[ConsumedRecord]) -> None:
                await asyncio.sleep(0)
                told.append(len(records))

            async with store.consumer("orders", group="billing") as inbox:
                summary = await inbox.process(handle, stop=stop, batch_size=8, on_batch=batch)
            assert handled == list(range(20))
            assert told == [8, 8, 4]
            assert (summary.handled, summary.batches, summary.signal) == (20, 3, None)
            assert await position(store) == 20

    run(main())


def test_plain_functions_and_batches(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 6)
            stop = asyncio.Event()
            handled: list[list[int]] = []

            def handle(records: list[ConsumedRecord]) -> None:
                handled.append([int(record.value) for record in records])
                if len(handled) == 2:
                    stop.set()

            async with store.consumer("orders", group="billing") as inbox:
                await inbox.process(handle, stop=stop, batch=True, batch_size=4)
            assert handled == [[0, 1, 2, 3], [4, 5]]
            assert await position(store) == 6

    run(main())


def test_a_handler_that_acknowledges_decides_how_far_the_group_is(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 6)
            stop = asyncio.Event()
            async with store.consumer("orders", group="billing") as inbox:

                async def handle(record: ConsumedRecord) -> None:
                    if record.offset < 2:
                        await inbox.ack(record)
                    if record.offset == 3:
                        stop.set()

                summary = await inbox.process(handle, stop=stop, auto_ack=False, poll_interval=0.01)
                assert summary.handled == 4
                assert await position(store) == 2
                assert [record.offset for record in await inbox.poll()] == [4, 5]

    run(main())


@pytest.mark.parametrize("told", [True, False])
def test_what_fails_for_good_goes_to_the_dead_letters(kind: str, tmp_path: Path, told: bool) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await store.create_topic("dead")
            await fill(store, "orders", 5)
            stop = asyncio.Event()
            errors: list[tuple[int, str]] = []
            attempts = 0

            async def handle(record: ConsumedRecord) -> None:
                nonlocal attempts
                await asyncio.sleep(0)
                if record.value == b"2":
                    attempts += 1
                    raise ValueError("no twos")
                if record.value == b"4":
                    stop.set()

            async def on_error(record: ConsumedRecord, error: Exception) -> None:
                await store.statistics()
                errors.append((record.offset, str(error)))

            async with store.consumer("orders", group="billing") as inbox:
                options: hw.aio.ProcessOptions = {
                    "stop": stop,
                    "retries": 2,
                    "retry_delay": 0.001,
                    "dead_letter": "dead",
                }
                if told:
                    options["on_error"] = on_error
                summary = await inbox.process(handle, **options)
            assert (summary.handled, summary.retries, summary.dead_letters) == (4, 2, 1)
            assert attempts == 3
            assert errors == ([(2, "no twos")] if told else [])
            (letter,) = await (await store.topic("dead")).recent()
            assert letter.value == b"2"
            assert letter.headers["dead-letter-error"] == b"no twos"
            assert letter.headers["dead-letter-attempts"] == b"3"
            assert await position(store) == 5

    run(main())


def test_an_error_with_nowhere_to_go_ends_it_and_the_record_comes_again(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 5)

            async def handle(record: ConsumedRecord) -> None:
                if record.value == b"2":
                    raise ValueError("no twos")

            async with store.consumer("orders", group="billing") as inbox:
                with pytest.raises(ValueError, match="no twos"):
                    await inbox.process(handle, retries=0)
                assert await position(store) == 2
                assert [record.offset for record in await inbox.poll()] == [2, 3, 4]

    run(main())


def test_options_are_checked(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            async with store.consumer("orders", auto_ack=True) as inbox:
                with pytest.raises(hw.InvalidConfiguration, match="auto_ack"):
                    await inbox.process(print)
            async with store.consumer("ord*") as inbox:
                with pytest.raises(hw.InvalidConfiguration, match="come again"):
                    await inbox.process(print, dead_letter="orders")

    run(main())


def test_sigterm_ends_it_after_the_record_at_hand(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 5)

            async def handle(record: ConsumedRecord) -> None:
                if record.value == b"1":
                    os.kill(os.getpid(), signal.SIGTERM)
                    await asyncio.sleep(0.01)

            async with store.consumer("orders", group="billing") as inbox:
                summary = await inbox.process(handle)
                assert (summary.handled, summary.signal) == (2, signal.SIGTERM)
                assert await position(store) == 2

    run(main())


def test_a_member_that_rests_between_attempts_stays_one_and_stops_when_asked(kind: str, tmp_path: Path) -> None:
    async def main(path: Path, pace: int) -> bool:
        async with open_kind(kind, path) as store:
            await store.create_topic("orders")
            await fill(store, "orders", 2)
            stop = asyncio.Event()
            attempts = 0

            async def handle(_: ConsumedRecord) -> None:
                nonlocal attempts
                attempts += 1
                raise ValueError

            config = hw.ConsumerConfig(max_poll_interval=0.3 * pace, refresh_interval=0.01)
            async with store.consumer("orders", group="billing", config=config) as inbox:
                processing = asyncio.create_task(inbox.process(handle, retry_delay=3600, stop=stop))
                await until(lambda: attempts == 1)
                async with store.consumer("orders", group="billing", config=config) as other:
                    generation = await (await store.group("billing")).generation()
                    await other.poll(timeout=1.0 * pace)
                    stays = await (await store.group("billing")).generation() == generation
                stop.set()
                summary = await processing
                assert (summary.handled, summary.retries) == (0, 0)
                return stays and len(await inbox.poll()) == 2

    assert any(run(main(tmp_path / str(pace), pace)) for pace in PACES)


@pytest.mark.parametrize("dead_letter", [True, False])
def test_cancelled_anywhere_each_record_is_handled_or_comes_again(kind: str, tmp_path: Path, dead_letter: bool) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            await store.create_topic("dead")
            written = 0
            handled: list[int] = []

            async def act(number: int, when: When) -> bool:
                nonlocal written
                await fill(store, "orders", 3, first=written)
                written += 3
                stop = asyncio.Event()

                async def handle(record: ConsumedRecord) -> None:
                    await asyncio.sleep(0)
                    if int(record.value) == written - 1:
                        stop.set()
                    if dead_letter and int(record.value) % 3 == 1:
                        raise ValueError
                    handled.append(int(record.value))  # nothing can come between this and the end of the handler

                async with store.consumer("orders", group="billing") as inbox:
                    options: hw.aio.ProcessOptions = {"stop": stop, "retries": 0, "batch_size": 2}
                    if dead_letter:
                        options["dead_letter"] = "dead"
                    struck = False
                    try:
                        await Cancelled(inbox.process(handle, **options), number, when)
                    except asyncio.CancelledError:
                        struck = True
                        await inbox.commit()  # after whatever has been left under way
                        if await position(store) < written:
                            stop.clear()
                            await inbox.process(handle, **options)
                    return struck

            assert await cancelled_everywhere(act) >= 5
            letters = await stored(store, "dead")
            assert letters == [number for number in range(written) if dead_letter and number % 3 == 1]
            assert sorted(handled) == [number for number in range(written) if number not in letters]

    run(main())
