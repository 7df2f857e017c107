"""Stores of an event loop: the same nouns as the synchronous ones, none forgotten."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from headwater.aio import Store
from headwater.embedded.directory_store import DirectoryStore
from headwater.embedded.memory_store import MemoryStore
from headwater.log import Appended
from headwater.streams.receipt import Outcome
from headwater.testing import ManualClock
from tests.support.aio import (
    KINDS,
    PATIENCE,
    Cancelled,
    When,
    cancelled_everywhere,
    fill,
    open_kind,
    run,
    stored,
    until,
)

ELSEWHERE: dict[str, set[str]] = {
    "Store": {
        *("drop", "evolve_topic", "has_group", "holds_partition", "internal_topic", "look_after"),
        "topic_to_write",
        *("open_partitions", "partition", "partition_statistics", "producer_config", "recall_topic"),
        *("schema_by_id", "schema_of", "stage"),
        *("stewarding", "transactions"),
    },
    "Topic": {"partition", "partitions", "pinned", "recent_info"},
    "Producer": {"discard", "write_overdue"},
    "Consumer": {
        *("begin_anew", "claim", "decided", "give_back", "group_name", "hold", "let_go"),
        *("patience", "ready", "store"),
    },
    "Group": {"commit"},
    "Receipt": {"wait"},
    "Steward": set(),
    "Transaction": {"adopt", "look_after", "appender"},
}
"""The names that the parts of a store need of each other, and users do not. Users await a receipt instead of calling
`wait`. Jobs of many processes stage records in tasks that have no event loop."""


@pytest.mark.parametrize("noun", ELSEWHERE)
def test_every_noun_can_do_what_its_synchronous_one_can(noun: str) -> None:
    sync, own = getattr(hw, noun), getattr(hw.aio, noun)
    public = {name for name in vars(sync) if not name.startswith("_")}
    assert public - set(dir(own)) == ELSEWHERE[noun]
    for name in public - ELSEWHERE[noun]:
        if inspect.isfunction(vars(sync)[name]) and inspect.isfunction(vars(own).get(name)):
            theirs, ours = (list(inspect.signature(vars(kind)[name]).parameters.values()) for kind in (sync, own))
            assert [(parameter.name, parameter.default, parameter.kind) for parameter in ours] == [
                (parameter.name, parameter.default, parameter.kind) for parameter in theirs
            ]


def test_an_outcome_calls_once_whether_it_is_known_before_or_after() -> None:
    calls: list[str] = []
    outcome = Outcome(0)
    outcome.call_when_done(lambda: calls.append("asked before"))
    assert calls == []
    outcome.succeed(Appended(0, 1))
    outcome.call_when_done(lambda: calls.append("asked after"))
    assert calls == ["asked before", "asked after"]


def test_headwater_itself_does_not_import_asyncio() -> None:
    program = "import headwater, sys; assert 'asyncio' not in sys.modules; headwater.aio.open"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_topics(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            orders = await store.create_topic("orders", partitions=2)
            assert orders.name == "orders"
            with pytest.raises(hw.TopicExists):
                await store.create_topic("orders")
            await store.create_topic("orders", exist_ok=True)
            assert await store.topics() == await store.topic_names() == ["orders"]
            assert (await store.alter_topic("orders", partitions=3, retention_age=60.0)).partitions == 3
            assert (await store.describe_topic("orders")) == await orders.info()
            await fill(store, "orders", 6, partition=2)
            assert [bounds.end for bounds in (await orders.bounds()).values()] == [0, 0, 6]
            assert [record.offset for record in await orders.recent(2)] == [4, 5]
            assert (await orders.statistics()).records == 6
            assert (await store.statistics()).records == 6
            await store.delete_topic("orders")
            with pytest.raises(hw.UnknownTopic):
                await store.topic("orders")
            assert await store.sweep() == 0

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_gives_batches_a_table_or_a_reader(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            orders = await store.create_topic("orders")
            for number in range(5):
                await fill(store, "orders", 4, first=4 * number)
            rows = 0
            async for batch in orders.scan(start=3, end=-2):
                rows += batch.num_rows
            assert rows == 15
            reader = await orders.scan(columns=["value"]).reader()
            assert isinstance(reader, pa.RecordBatchReader)
            assert len(reader.read_all()) == 20
            with pytest.raises(hw.SchemaError):
                await orders.scan(columns=["other"]).read_all()

            async def act(number: int, when: When) -> bool:
                scan = orders.scan(columns=["offset"])
                received: list[int] = []
                struck = False
                while len(received) < 12:
                    try:
                        received += (await Cancelled(anext(scan), number, when)).column(0).to_pylist()
                    except asyncio.CancelledError:
                        struck = True
                        received += (await anext(scan)).column(0).to_pylist()
                received += (await scan.read_all()).column(0).to_pylist()
                assert received == list(range(20))
                return struck

            assert await cancelled_everywhere(act) >= 1

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_steward_cleans_in_the_background_and_on_demand(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_kind(kind, tmp_path) as store:
            await store.create_topic("orders", segment_bytes=4096, retention_bytes=4096)
            async with store.producer("orders") as out:
                for _ in range(20):
                    await out.send_batch([bytes(1000)])
            steward = store.steward(interval=0.01)
            report = await steward.run_once(dry_run=True)
            assert report.segments > 0
            async with steward:
                await until(lambda: steward.last_report is not None and not steward.last_report.dry_run)
            assert (await (await store.topic("orders")).bounds())[0].start > 0
            await steward.stop()
            forever = asyncio.create_task(store.steward(interval=0.01).run_forever())
            await until(lambda: any(thread.name == "headwater-steward" for thread in threading.enumerate()))
            forever.cancel()
            with pytest.raises(asyncio.CancelledError):
                await forever
            await until(lambda: not any(thread.name == "headwater-steward" for thread in threading.enumerate()))

            async def act(number: int, when: When) -> bool:
                try:
                    async with await Cancelled(store.steward().start(), number, when):
                        return False
                except asyncio.CancelledError:
                    return True

            assert await cancelled_everywhere(act) >= 1
            await until(lambda: not any(thread.name == "headwater-steward" for thread in threading.enumerate()))

    run(main())


def test_a_store_beside_threads_that_use_it_synchronously() -> None:
    async def main() -> None:
        shared = MemoryStore(clock=ManualClock())
        async with Store(shared, threads=2) as store:
            await store.create_topic("orders")
            async with store.consumer("orders") as inbox:
                waits = asyncio.create_task(inbox.poll(timeout=PATIENCE))

                def produce() -> None:
                    with shared.producer("orders") as out:
                        out.send(b"1")

                await asyncio.to_thread(produce)
                assert len(await waits) == 1
        with pytest.raises(hw.StoreClosed):
            shared.topics()

    run(main())


@pytest.mark.parametrize("threads", [0, True, 2.5])
def test_the_number_of_threads_is_checked(threads: int) -> None:
    async def main() -> None:
        with pytest.raises(hw.InvalidConfiguration, match="threads"):
            await hw.aio.open("memory:", threads=threads)

    run(main())


def test_opening_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        async def act(number: int, when: When) -> bool:
            try:
                await (await Cancelled(hw.aio.open(tmp_path / "store"), number, when)).close()
            except asyncio.CancelledError:
                return True
            return False

        assert await cancelled_everywhere(act) >= 1

        def alone() -> bool:
            try:
                DirectoryStore(tmp_path / "store", exclusive=True).close()
            except hw.StoreInUse:
                return False
            return True

        await until(alone)

    run(main())


def test_a_store_can_be_opened_again_by_another_event_loop(tmp_path: Path) -> None:
    async def write() -> None:
        async with hw.aio.open(tmp_path / "store") as store:
            await store.create_topic("orders", exist_ok=True)
            await fill(store, "orders", 1)

    async def read() -> None:
        async with hw.aio.open(tmp_path / "store") as store:
            assert await stored(store, "orders") == [0, 0]

    run(write())
    run(write())
    run(read())
