"""Transactions of an event loop: all of it or nothing, wherever it is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import headwater as hw
from headwater.aio import Store
from tests.support.aio import KINDS, Cancelled, When, cancelled_everywhere, drain, fill, open_kind, run, stored, values

pytestmark = pytest.mark.parametrize("kind", KINDS)


async def prepare(store: Store) -> None:
    await store.create_topic("orders")
    await store.create_topic("bills", partitions=2)
    await store.create_topic("audit")
    await fill(store, "orders", 10)


def test_a_block_counts_as_a_whole(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await prepare(store)
            async with store.consumer("orders", group="billing") as inbox:
                async with store.transaction(inbox) as t:
                    bills, audit = await t.producer("bills"), await t.producer("audit")
                    receipts = []
                    for record in await inbox.poll(4):
                        receipts.append(await bills.send(record.value, key=record.value))
                        await audit.send(record.value)
                        await inbox.ack(record)
                    await bills.flush()
                    assert await stored(store, "bills") == []
                    assert not any(receipt.done for receipt in receipts)
                assert t.state == "committed"
                assert len({(receipt.partition, await receipt) for receipt in receipts}) == 4
                assert await stored(store, "bills") == await stored(store, "audit") == [0, 1, 2, 3]
                assert values(await inbox.poll(1)) == [4]

    run(main())


def test_a_block_that_fails_was_never_there(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await prepare(store)
            async with store.consumer("orders", group="billing") as inbox:

                async def fail() -> None:
                    async with store.transaction(inbox) as t, t.producer("bills") as bills:
                        async for record in inbox:
                            receipts.append(await bills.send(record.value))
                            await inbox.ack(record)
                            if record.offset == 3:
                                raise ZeroDivisionError

                receipts: list[hw.aio.Receipt] = []
                with pytest.raises(ZeroDivisionError):
                    await fail()
                with pytest.raises(hw.TransactionAborted):
                    await receipts[0]
                assert await stored(store, "bills") == []
                assert await drain(inbox) == list(range(10))

    run(main())


def test_a_named_block_is_repeated_in_vain(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await prepare(store)
            for state in ("committed", "repeated"):
                async with store.transaction(writer="job", sequence=7) as t:
                    await (await t.producer("bills")).send(b"1")
                assert t.state == state
            assert await stored(store, "bills") == [1]
            assert await store.roll_forward() == await store.sweep_stages(0.0) == 0

    run(main())


def test_cancelled_anywhere_a_block_and_the_progress_in_it_go_together(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await prepare(store)
            written = 10
            async with store.consumer("orders", group="billing") as inbox:

                async def move() -> None:
                    async with store.transaction(inbox) as t:
                        bills = await t.producer("bills")
                        for record in await inbox.poll(3):
                            await bills.send(record.value)
                            await inbox.ack(record)

                async def act(number: int, when: When) -> bool:
                    nonlocal written
                    await fill(store, "orders", 5, first=written)
                    written += 5
                    struck = False
                    for _ in range(2):
                        try:
                            await Cancelled(move(), number, when)
                        except asyncio.CancelledError:
                            struck = True
                    return struck

                assert await cancelled_everywhere(act) >= 4
                while len(await stored(store, "bills")) < written:
                    await move()
            assert await stored(store, "bills") == list(range(written))
            async with store.consumer("orders", group="billing") as inbox:
                assert await inbox.poll() == []

    run(main())
