"""The examples give what a plain program gives, and run as their documentation says."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import headwater as hw
from examples.spark import bars, customers, payments, sensors, visits

ROOT = Path(__file__).parents[2]
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of the tests, as it was afterwards."""
    yield spark
    spark.conf.unset(STATE_STORE)


def content(store: hw.Store, topic: str) -> list[Any]:
    """The records of a topic, in the order of each key."""
    return [record for partition in store.topic(topic).partitions() for record in partition.records()]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


def moment(ns: int) -> datetime:
    """As Spark gives a timestamp: in local time, without saying so."""
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).astimezone().replace(tzinfo=None)


def test_bars(session: SparkSession, store: hw.Store, tmp_path: Path) -> None:
    bars.fill(store)
    minute = 60 * bars.SECOND
    ticks = content(store, "ticks")
    over = max(tick.timestamp for tick in ticks) - 10 * bars.SECOND
    grouped: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for tick in sorted(ticks, key=lambda tick: tick.timestamp):
        grouped[tick.value["symbol"], tick.timestamp // minute * minute].append(tick.value)
    expected = []
    for (symbol, start), group in sorted(grouped.items()):
        prices = [tick["price"] for tick in group]
        volume = sum(tick["size"] for tick in group)
        if start + minute <= over:
            expected.append((moment(start), symbol, prices[0], max(prices), min(prices), prices[-1], volume))
    assert len(expected) < len(grouped)  # the last minute is not over
    assert rows(bars.run(session, tmp_path)) == expected


def test_visits(session: SparkSession, store: hw.Store, tmp_path: Path) -> None:
    visits.fill(store)
    views = sorted(
        (record.value["visitor"], record.timestamp // 1_000_000, record.value["page"])
        for record in content(store, "views")
    )
    over = max(at for _, at, _ in views) - visits.MINUTE
    visited: list[tuple[str, list[int], bool]] = []
    for visitor, at, page in views:
        if not visited or visited[-1][0] != visitor or visited[-1][2] or at - visited[-1][1][-1] > visits.SILENCE:
            visited.append((visitor, [], False))
        visited[-1][1].append(at)
        visited[-1] = (*visited[-1][:2], page == "/thanks")
    expected = [
        (visitor, moment(at[0] * 1_000_000), len(at), bought)
        for visitor, at, bought in sorted(visited, key=lambda visit: visit[1])
        if bought or at[-1] + visits.SILENCE <= over
    ]
    assert {bought for *_, bought in expected} == {True, False}
    assert len(expected) < len(visited)
    assert rows(visits.run(session, tmp_path)) == expected


def test_payments(session: SparkSession, store: hw.Store, tmp_path: Path) -> None:
    payments.fill(store)
    paid = {record.value["order_id"]: record for record in content(store, "payments")}
    expected = []
    for order in content(store, "orders"):
        payment = paid.get(order.value["id"])
        in_time = payment is not None and 0 <= payment.timestamp - order.timestamp < 15 * payments.MINUTE
        expected.append((*order.value.values(), payment.value["amount"] if payment and in_time else None))
    assert {amount is None for *_, amount in expected} == {True, False}
    assert rows(payments.run(session, tmp_path)) == sorted(expected)


def test_customers(session: SparkSession, store: hw.Store, tmp_path: Path) -> None:
    customers.fill(store)
    latest = {record.key.decode(): record.value for record in content(store, "customers")}
    assert None in latest.values()
    expected = [(id, *value.values()) for id, value in sorted(latest.items()) if value is not None]
    assert rows(customers.run(session, tmp_path)) == expected


def test_sensors(session: SparkSession, store: hw.Store, tmp_path: Path) -> None:
    sensors.fill(store)
    uploaded = [tuple(record.value.values()) for record in content(store, "readings")]
    readings = {reading for reading in uploaded if reading[2] != -99}
    assert len({reading[:2] for reading in uploaded}) < len(uploaded)  # some came twice
    assert len(readings) < len(set(uploaded))  # some are none
    over = max(at for _, at, _ in readings) - timedelta(seconds=20)
    grouped: dict[tuple[datetime, str], list[float]] = defaultdict(list)
    for sensor, at, celsius in readings:
        grouped[at.replace(second=0), sensor].append(celsius)
    expected = [
        (
            minute.astimezone().replace(tzinfo=None),
            pytest.approx(mean(group), abs=0.006),
            min(group),
            max(group),
            len(group),
            sensor,
        )
        for (minute, sensor), group in sorted(grouped.items())
        if minute + timedelta(minutes=1) <= over
    ]
    assert len(expected) < len(grouped)  # the last minute is not over
    assert rows(sensors.run(session, tmp_path)) == expected


def test_an_example_runs_by_one_command_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    command = [sys.executable, "-m", "examples.spark.sensors"]
    environment = {"TMPDIR": str(tmp_path / "scratch"), "PATH": "/usr/bin:/bin"}
    environment["SPARK_CONF_DIR"] = str(ROOT / "tests" / "spark" / "conf")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1000)
    assert done.returncode == 0, done.stderr
    assert "|kitchen|" in done.stdout
    assert list((tmp_path / "scratch").iterdir()) == []
