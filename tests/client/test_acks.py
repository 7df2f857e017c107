"""Sending without waiting for answers, `acks="none"`: bounded all the same, and what goes wrong is heard of later."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import headwater as hw
import headwater.aio
from headwater import BufferFull, InvalidRecord, StoreError
from tests.support.served import CLIENT, Served

PATIENCE = 300.0
NEVER = 3600.0
UNHEARD = replace(CLIENT, acks="none", in_flight_bytes=1 << 20)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "store") as served:
        yield served


def values(served: Served) -> list[bytes]:
    return [record.value for record in served.store.topic("orders").partition(0).records()]


def test_records_count_as_sent_while_no_answer_comes(served: Served) -> None:
    store = served.connect(UNHEARD)
    store.create_topic("orders")
    with store.producer("orders", linger=NEVER, batch_records=1) as out:
        out.send(b"first")
        out.flush()
        served.network.stall()
        receipt = out.send(b"second")
        assert receipt.done, "it has left, and that is all that is asked for"
        with pytest.raises(StoreError, match="acks"):
            receipt.wait(PATIENCE)
        assert out.pending == 1, "until it is answered it takes room"
        served.network.go_on()
        out.flush()
        assert out.pending == 0
    assert values(served) == [b"first", b"second"]


def test_what_is_on_its_way_stays_bounded(served: Served) -> None:
    store = served.connect(UNHEARD)
    store.create_topic("orders")
    out = store.producer("orders", linger=NEVER, batch_records=1, block_timeout=1)
    out.send(b"first")
    out.flush()
    served.network.stall()

    def send_without_end() -> None:
        while True:
            out.send_batch([bytes(200_000)])

    with pytest.raises(BufferFull):
        send_without_end()
    assert out.pending < 30
    served.network.go_on()
    out.close()


def test_nothing_is_lost_or_doubled_where_the_broker_lives_on(served: Served) -> None:
    store = served.connect(UNHEARD)
    store.create_topic("orders")
    with store.producer("orders", batch_records=7, linger=0.001) as out:
        for number in range(1000):
            out.send(b"%d" % number)
            if number % 250 == 100:
                served.network.cut()
                time.sleep(0.01)
    assert values(served) == [b"%d" % number for number in range(1000)]


def test_what_is_refused_is_logged_and_raised_by_a_later_call(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    store = served.connect(UNHEARD)
    store.create_topic("orders")
    out = store.producer("orders", linger=NEVER, batch_records=1)
    out.send(b"first")
    served.store.alter_topic("orders", max_frame_bytes=65_536)  # the client hears of it a little later
    receipt = out.send(bytes(100_000))
    with caplog.at_level(logging.ERROR), pytest.raises(InvalidRecord):
        out.flush()
    assert receipt.done
    assert "orders/0: 1 records that were sent with acks" in caplog.text
    out.send(b"last")
    out.close()
    assert values(served) == [b"first", b"last"]


def test_an_append_without_a_producer_is_told_its_place(served: Served) -> None:
    partition = served.connect(UNHEARD).create_topic("orders").partition(0)
    assert [partition.append(hw.log.encode([b"x"])).base_offset for _ in range(3)] == [0, 1, 2]


def test_a_receipt_that_is_awaited_says_that_there_is_no_offset(served: Served) -> None:
    async def send() -> None:
        async with headwater.aio.open(served.address, client=UNHEARD) as store:
            await store.create_topic("orders")
            async with store.producer("orders") as out:
                receipt = await out.send(b"first")
                await out.flush()
                with pytest.raises(StoreError, match="acks"):
                    await receipt

    asyncio.run(send())
    assert values(served) == [b"first"]
