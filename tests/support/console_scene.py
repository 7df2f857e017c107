"""A store that looks like one in use: topics of several kinds, groups that are behind, an hour of history, and more."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import headwater as hw
from headwater.spark.pipeline import Pipeline
from headwater.spark.pipeline.graph import Graph
from headwater.spark.pipeline.journal import PipelineJournal
from headwater.spark.pipeline.progress import BatchProgress
from headwater.streams.history import HistoryWriter

STEPS = 60


def play(path: Path) -> hw.Store:
    """The store, after an hour that took a second."""
    random = Random(7)
    store = hw.open(path)
    fast: dict[str, Any] = {"sync": "never"}
    store.create_topic("orders", 4, retention_age=7 * 86400.0, **fast)
    trades = pa.schema([("symbol", pa.string()), ("price", pa.float64()), ("at", pa.timestamp("us", "UTC"))])
    store.create_topic("trades", 2, trades, **fast)
    store.create_topic("clicks", 8, compression="zstd", retention_bytes=0, segment_bytes=1 << 16, **fast)
    store.create_topic("customers", 1, compact=True, **fast)
    for name in ("audit.log", "invoices.eu", "invoices.us", "shipments"):
        store.create_topic(name, 2, **fast)
    history = HistoryWriter(store, -1e9)
    now = time.time_ns()
    readers = {"billing": 1.0, "shipping": 0.8, "fraud": 0.97}
    with store.producer("orders") as orders, store.producer("trades") as sold, store.producer("clicks") as clicks:
        for step in range(STEPS + 1):  # the last minute is not noted yet
            at = now - (STEPS - step) * 60 * 10**9
            wave = 1.4 + math.sin(step / 7) + random.random() / 3
            for _ in range(int(60 * wave)):
                customer = f"customer-{random.randint(1, 99)}"
                items = [{"sku": f"A-{random.randint(100, 999)}", "count": random.randint(1, 4)}]
                order = {"customer": customer, "items": items, "total": round(random.random() * 200, 2)}
                trace = {"trace": random.randbytes(4).hex().encode()}
                orders.send(json.dumps(order).encode(), customer.encode(), headers=trace, timestamp=at)
            for _ in range(int(20 * wave)):
                price = round(10 + random.random(), 3)
                sold.send(
                    {"symbol": random.choice(["HW", "WH", "SEA"]), "price": price, "at": at // 1000}, timestamp=at
                )
            for _ in range(int(90 * wave)):
                clicks.send(b'{"page": "/p/%d", "ms": %d}' % (random.randint(1, 99), random.randint(1, 900)))
            for out in (orders, sold, clicks):
                out.flush()
            for group, pace in readers.items():
                with store.consumer("orders", group=group) as inbox:
                    for record in inbox.poll(max(int(60 * wave * pace), 1), timeout=0.0):
                        inbox.ack(record)
            if step < STEPS:
                history.note(at)
    _pipeline(path, random)
    return store


@contextmanager
def go_on(store: hw.Store) -> Iterator[None]:
    """For the length of a block the shop stays open: about as much comes in as in the hour before."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        with store.producer("orders") as orders, store.producer("clicks") as clicks, store.producer("trades") as sold:
            while not stop.wait(1.0):
                for _ in range(3):
                    number += 1
                    customer = b"customer-%d" % (number * 7 % 99)
                    orders.send(b'{"customer": "%b", "items": [], "total": 12.5}' % customer, customer, partition=0)
                    clicks.send(b'{"page": "/p/7", "ms": 12}', partition=0)
                sold.send({"symbol": "HW", "price": 10.5, "at": time.time_ns() // 1000})
                for out in (orders, clicks, sold):
                    out.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def _pipeline(path: Path, random: Random) -> None:
    declared = Pipeline("revenue", store=str(path), checkpoint=str(path.parent / "checkpoint"))
    declared.source("orders", topic="orders")
    declared.source("trades", topic="trades")
    declared.sql("priced", "select 1 from orders")
    declared.sql("totals", "select 1 from priced, trades")
    declared.sink("by_hour", "totals", topic="invoices.us")
    declared.sink("lake", "priced", parquet="/data/lake")
    journal = PipelineJournal(str(path), "revenue", Graph(declared.declaration()))
    journal.started(["by_hour", "lake"])
    for number in range(8):
        for sink in ("by_hour", "lake"):
            facts = {"rows": random.randint(200, 900), "lag": random.randint(0, 300), "state_rows": 120}
            violations = {"total_is_positive": random.randint(0, 3), "customer_is_known": 0}
            seconds, at = random.random(), "2026-01-31T12:00:00"
            journal.batch(
                BatchProgress(
                    sink=sink,
                    number=number,
                    at=at,
                    seconds=seconds,
                    state_bytes=40_960,
                    watermark=None,
                    violations=violations,
                    **facts,
                )
            )
        time.sleep(0.01)
    journal.close()
