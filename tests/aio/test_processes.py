"""Event loops in many processes on one store: every record is handled, and twice only by way of one that was killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path

import headwater as hw
from tests.support.aio import PATIENCE, run, stored

SPAWN = multiprocessing.get_context("spawn")
PARTITIONS = 4
RECORDS = 2000
PRODUCERS = 3


def produce(path: Path, first: int) -> None:
    """Send numbered records, and tell which were acknowledged."""

    async def main() -> None:
        async with hw.aio.open(path / "store") as store, store.producer("orders", batch_records=50) as out:
            receipts = []
            for number in range(first, first + RECORDS):
                receipts.append(await out.send(b"%d" % number, key=b"%d" % number))
                if number % 100 == 0:
                    await receipts[-1]
            await asyncio.gather(*receipts)

    asyncio.run(main())


def consume(path: Path, name: str) -> None:
    """Note each record in a journal of its own, then acknowledge it, until killed."""

    async def main() -> None:
        journal = os.open(path / f"{name}.journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        async with (
            hw.aio.open(path / "store") as store,
            store.consumer("orders", group="billing", max_poll_records=20, refresh_interval=0.05) as inbox,
        ):

            async def handle(record: hw.ConsumedRecord) -> None:
                await asyncio.sleep(0)
                os.write(journal, record.value + b"\n")

            await inbox.process(handle)

    asyncio.run(main())


def journal(path: Path, name: str) -> list[int]:
    """The whole lines: the last one may have been cut by a kill."""
    try:
        return [int(line) for line in (path / f"{name}.journal").read_bytes().split(b"\n")[:-1]]
    except FileNotFoundError:
        return []


def test_processes_share_a_group_and_one_is_killed(tmp_path: Path) -> None:
    names = ["doomed", "other", "third"]
    everything = set(range(PRODUCERS * RECORDS))

    async def main() -> None:
        async with hw.aio.open(tmp_path / "store") as store:
            await store.create_topic("orders", partitions=PARTITIONS)
            consumers = {name: SPAWN.Process(target=consume, args=(tmp_path, name)) for name in names}
            producers = [SPAWN.Process(target=produce, args=(tmp_path, n * RECORDS)) for n in range(PRODUCERS)]
            try:
                for process in [*consumers.values(), *producers]:
                    process.start()
                async with asyncio.timeout(PATIENCE):
                    while len(journal(tmp_path, "doomed")) < 100:
                        await asyncio.sleep(0.01)
                consumers["doomed"].kill()
                for process in producers:
                    await asyncio.to_thread(process.join)
                    assert process.exitcode == 0
                assert await stored(store, "orders") == sorted(everything)
                group = await store.group("billing")
                async with asyncio.timeout(PATIENCE):
                    while sum(position.offset for position in (await group.committed()).values()) < len(everything):
                        await asyncio.sleep(0.01)
                for name in ("other", "third"):
                    pid = consumers[name].pid
                    assert pid is not None
                    os.kill(pid, signal.SIGTERM)
                    await asyncio.to_thread(consumers[name].join)
                    assert consumers[name].exitcode == 0
                assert (await group.describe()).members == {}
            finally:
                for process in [*consumers.values(), *producers]:
                    process.kill()
                    process.join()

    run(main())
    handled = {name: journal(tmp_path, name) for name in names}
    assert {number for numbers in handled.values() for number in numbers} == everything
    survivors = handled["other"] + handled["third"]
    assert len(survivors) == len(set(survivors))
    # The dead process had handled these and not committed them: at most one poll's worth.
    assert len(set(handled["doomed"]) & set(survivors)) <= 20
