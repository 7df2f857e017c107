"""Event loops on disks that are slow or fail: the loop goes on, senders wait, errors reach those they concern."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

import headwater as hw
from headwater.testing import FailingDisk, Failpoint
from tests.support.aio import GatedDisk, fill, on_disk, run, stored, ticks, until


def is_log(path: Path) -> bool:
    return path.suffix == ".log"


@pytest.mark.parametrize("call", ["flush", "sync", "close", "send_batch"])
def test_the_event_loop_goes_on_while_a_sync_takes_long(tmp_path: Path, call: str) -> None:
    async def main() -> None:
        disk = GatedDisk()
        async with on_disk(tmp_path, disk) as store:
            await store.create_topic("orders", sync="never" if call == "sync" else "always")
            out = await store.producer("orders", linger=3600)
            await out.send(b"0")
            await out.flush()
            disk.shut()
            await out.send(b"1")
            waits = asyncio.create_task(out.send_batch([b"2"]) if call == "send_batch" else getattr(out, call)())
            await until(lambda: disk.waiting > 0)
            assert await ticks() == 20
            assert not waits.done()
            if call != "close":
                receipt = await out.send(b"3")
                assert not receipt.done
            disk.open_gate()
            await waits
            await out.close()

    run(main())


def test_a_full_buffer_makes_senders_wait_and_not_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk()
        async with on_disk(tmp_path, disk) as store:
            await store.create_topic("orders")
            async with store.producer("orders", linger=3600, batch_records=10) as out:
                await out.flush()
                disk.shut()
                sent: list[int] = []

                async def send_all() -> None:
                    for number in range(100):
                        await out.send(b"%d" % number)
                        sent.append(number)

                sender = asyncio.create_task(send_all())
                await until(lambda: disk.waiting > 0 and len(sent) == 20)
                await ticks()
                assert len(sent) == 20  # one batch at the disk, the next one full
                assert out.pending == 10
                disk.open_gate()
                await sender
            assert await stored(store, "orders") == list(range(100))

    run(main())


def test_a_record_that_finds_no_room_in_time_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk()
        async with on_disk(tmp_path, disk) as store:
            await store.create_topic("orders")
            out = await store.producer("orders", linger=3600, batch_records=2, block_timeout=2)
            disk.shut()
            receipts = [await out.send(b"%d" % number) for number in range(4)]
            with pytest.raises(hw.BufferFull, match="block_timeout"):
                await out.send(b"4")
            disk.open_gate()
            assert [await receipt for receipt in receipts] == list(range(4))
            assert await stored(store, "orders") == list(range(4))
            await out.close()

    run(main())


def test_errors_reach_the_receipts_and_the_next_call(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FailingDisk()
        async with on_disk(tmp_path, disk) as store:
            await store.create_topic("orders")
            async with store.producer("orders", linger=3600, batch_records=3) as out:
                await out.send(b"0")
                await out.flush()
                disk.failpoints.append(Failpoint(operation="pwritev", path=is_log, error=errno.ENOSPC))
                lost = [await out.send(b"lost") for _ in range(3)]
                for receipt in lost:
                    with pytest.raises(hw.WriteFailed):
                        await receipt
                await until(lambda: out.buffer._error is not None)
                with pytest.raises(hw.WriteFailed):
                    await out.send(b"lost")
                good = await out.send(b"1")
                disk.failpoints.append(Failpoint(operation="pwritev", path=is_log, error=errno.ENOSPC))
                with pytest.raises(hw.WriteFailed):
                    await out.flush()
                with pytest.raises(hw.WriteFailed):
                    await good
                assert await (await out.send_batch([b"2"]))[0] == 1
            assert await stored(store, "orders") == [0, 2]

    run(main())


def test_a_flush_that_is_cancelled_goes_on_and_writes_once(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk()
        async with on_disk(tmp_path, disk) as store:
            await store.create_topic("orders")
            out = await store.producer("orders", linger=3600)
            await out.flush()
            disk.shut()
            receipt = await out.send(b"1")
            flush = asyncio.create_task(out.flush())
            await until(lambda: disk.waiting > 0)
            flush.cancel()
            with pytest.raises(asyncio.CancelledError):
                await flush
            assert not receipt.done
            disk.open_gate()
            await out.flush()
            assert await receipt == 0
            assert await stored(store, "orders") == [1]
            await out.close()

    run(main())


def test_a_producer_keeps_few_threads_busy_however_many_tasks_flush(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk()
        async with on_disk(tmp_path, disk, threads=3) as store:
            await store.create_topic("orders", partitions=8)
            await store.create_topic("others")
            await fill(store, "others", 3)
            async with store.producer("orders", linger=3600, batch_records=2) as out:
                await out.flush()
                disk.shut()
                for partition in range(8):
                    for _ in range(2):
                        await out.send(b"1", partition=partition)
                flushes = [asyncio.create_task(out.flush()) for _ in range(20)]
                await until(lambda: disk.waiting > 0)
                assert await stored(store, "others") == [0, 1, 2]
                assert sum(thread.name.startswith("headwater-aio") for thread in threading.enumerate()) <= 3 + 1
                disk.open_gate()
                await asyncio.gather(*flushes)
            assert await stored(store, "orders") == [1] * 16

    run(main())
