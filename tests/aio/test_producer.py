"""Producers of an event loop: sending changes no thread, the loop waits for no disk, nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from tests.support.aio import (
    KINDS,
    PATIENCE,
    Cancelled,
    When,
    cancelled_everywhere,
    open_kind,
    run,
    stored,
    ticks,
    until,
)
from tests.support.patience import wait_until

pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_receipts_give_the_offsets_of_their_records(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            topic = await store.create_topic("orders", partitions=3)
            async with store.producer("orders", batch_records=7) as out:
                receipts = [await out.send(b"%d" % number, key=b"%d" % (number % 5)) for number in range(100)]
                offsets = await asyncio.gather(*receipts)
            assert all(receipt.done for receipt in receipts)
            assert [receipt.offset for receipt in receipts] == offsets
            sent = {(receipt.partition, receipt.offset): b"%d" % n for n, receipt in enumerate(receipts)}
            table = await topic.scan(columns=["partition", "offset", "value"]).read_all()
            assert {(row["partition"], row["offset"]): row["value"] for row in table.to_pylist()} == sent

    run(main())


def test_a_receipt_that_is_pending_has_no_offset_yet(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            async with store.producer("orders", linger=3600) as out:
                receipt = await out.send(b"1")
                assert not receipt.done
                assert out.pending == 1
                with pytest.raises(hw.StoreError, match="pending"):
                    _ = receipt.offset
                await out.sync()
                assert receipt.offset == await receipt == 0

    run(main())


def test_one_who_stops_waiting_for_a_receipt_does_not_stop_the_others(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            async with store.producer("orders", linger=3600) as out:
                receipt = await out.send(b"1")

                async def wait() -> int:
                    return await receipt

                first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
                await ticks(3)
                first.cancel()
                await ticks(3)
                await out.flush()
                assert await second == 0
                assert first.cancelled()

    run(main())


def test_sending_changes_no_thread(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            async with store.producer("orders", linger=3600, batch_records=1000) as out:
                submitted: list[object] = []
                submit = store._threads.submit

                def counted(work: Callable[[], object]) -> object:
                    submitted.append(work)
                    return submit(work)

                monkeypatch.setattr(store._threads, "submit", counted)
                for number in range(999):
                    await out.send(b"%d" % number)
                assert submitted == []
                for number in range(999, 5000):
                    await out.send(b"%d" % number)
                assert 1 <= len(submitted) <= 10
            assert await stored(store, "orders") == list(range(5000))

    run(main())


def test_quiet_producers_get_their_records_written(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            out = await store.producer("orders", linger=0.01)
            receipt = await out.send(b"7")
            assert await receipt == 0
            assert await stored(store, "orders") == [7]
            await out.close()

    run(main())


def test_a_task_that_sends_all_the_time_leaves_time_to_others_between_batches(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            async with store.producer("orders", linger=3600, batch_records=10) as out:
                task = asyncio.create_task(other())
                for _ in range(10):
                    await out.send(b"1")
                assert turns == 0
                written = store._store.topic("orders")
                wait_until(lambda: written.bounds()[0].end == 10)  # by a thread: there is room for the next record
                await out.send(b"1")
                assert turns == 1
                task.cancel()

    run(main())


def test_what_becomes_due_while_a_writer_ends_is_written(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders")
            async with store.producer("orders", linger=3600, batch_records=2) as out:
                write_due = out.buffer.write_due
                ending, ends = threading.Event(), threading.Event()

                def write_and_linger() -> None:
                    write_due()
                    ending.set()
                    ends.wait(PATIENCE)

                monkeypatch.setattr(out.buffer, "write_due", write_and_linger)
                receipts = [await out.send(b"%d" % number) for number in range(2)]
                await until(ending.is_set)
                receipts += [await out.send(b"%d" % number) for number in range(2, 4)]
                ends.set()
                async with asyncio.timeout(PATIENCE):
                    assert [await receipt for receipt in receipts] == [0, 1, 2, 3]

    run(main())


def test_many_tasks_send_and_each_keeps_its_order(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            topic = await store.create_topic("orders", partitions=2)
            async with store.producer("orders", batch_records=13) as out:

                async def send_all(name: int) -> None:
                    for number in range(300):
                        await out.send(b"%d" % number, key=b"%d" % name)

                await asyncio.gather(*(send_all(name) for name in range(8)))
            table = await topic.scan(columns=["key", "value"]).read_all()
            for name in range(8):
                mine = [int(row["value"]) for row in table.to_pylist() if row["key"] == b"%d" % name]
                assert mine == list(range(300))

    run(main())


def test_batches_and_typed_records(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            trades = await store.create_topic("trades", schema=pa.schema([("price", pa.int64())]))
            async with store.producer("trades") as out:
                first = await out.send({"price": 1})
                receipts = await out.send_batch(pa.table({"price": [2, 3]}))
                assert [await receipt for receipt in receipts] == [1]
                assert first.offset == 0
                with pytest.raises(hw.InvalidRecord, match="unknown"):
                    await out.send({"prize": 1})
            assert (await trades.scan(columns=["price"]).read_all()).column(0).to_pylist() == [1, 2, 3]
            await trades.evolve(pa.schema([("price", pa.int64()), ("note", pa.string())]))
            assert (await trades.schema()).payload.names == ["price", "note"]

    run(main())


def test_an_atomic_batch_is_in_all_partitions(kind: str, tmp_path: Path) -> None:
    keys = [b"%d" % number for number in range(20)]

    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            topic = await store.create_topic("orders", partitions=2)
            async with store.producer("orders") as out:
                receipts = await out.send_batch(keys, keys=keys, atomic=True)
                assert [await receipt for receipt in receipts] == [0, 0]
            assert sorted((await topic.scan(columns=["value"]).read_all()).column(0).to_pylist()) == sorted(keys)

    run(main())


def test_a_sync_of_the_store_writes_what_all_producers_have_pending(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            topics = [await store.create_topic(name, sync="never") for name in ("orders", "calls")]
            producers = [await store.producer(topic.name, linger=3600) for topic in topics]
            receipts = [await out.send(b"x") for out in producers]
            await store.sync()
            assert [receipt.offset for receipt in receipts] == [0, 0]
            assert [(await topic.bounds())[0].durable_end for topic in topics] == [1, 1]

    run(main())


@pytest.mark.parametrize("way", ["producer", "store"])
def test_closing_writes_what_is_pending(kind: str, tmp_path: Path, way: str) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            topic = await store.create_topic("orders")
            out = await store.producer("orders", linger=3600)
            receipts = [await out.send(b"%d" % number) for number in range(5)]
            await (out if way == "producer" else store).close()
            assert [await receipt for receipt in receipts] == list(range(5))
            with pytest.raises(hw.StoreClosed):
                await out.send(b"5")
            await out.close()
            if way == "producer":
                assert (await topic.bounds())[0].end == 5
            else:
                with pytest.raises(hw.StoreClosed):
                    await topic.bounds()
                await store.close()

    run(main())


def test_a_send_that_is_cancelled_anywhere_was_not_sent_and_any_other_was(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders", partitions=2)
            sent: list[int] = []
            number = 0

            async with store.producer("orders", batch_records=3, linger=3600) as out:

                async def act(at: int, when: When) -> bool:
                    nonlocal number
                    struck = False
                    for _ in range(50):
                        number += 1
                        send = Cancelled(out.send(b"%d" % number, partition=0), at, when)
                        try:
                            await send
                        except asyncio.CancelledError:
                            struck = True
                        else:
                            sent.append(number)
                    return struck

                assert await cancelled_everywhere(act) >= 1
            assert await stored(store, "orders") == sent

    run(main())


def test_a_producer_creates_its_topic_when_it_is_told_to(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            with pytest.raises(hw.UnknownTopic):
                await store.producer("orders")
            async with store.producer("orders", create=True, partitions=2) as out:
                assert await (await out.send(b"1", partition=1)) == 0
            assert (await store.describe_topic("orders")).partitions == 2
            assert await (await store.ensure_topic("orders", 3)).info() == await store.describe_topic("orders")

    run(main())
