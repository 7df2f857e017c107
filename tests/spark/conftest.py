"""Shared by the tests of Spark: one session, and stores to read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater as hw
from headwater.broker import Broker
from headwater.core.address import Address
from headwater.embedded.directory_store import DirectoryStore
from tests.spark.pipelines import Pipelines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOTH_STORES = pytest.mark.parametrize("store", ["directory", "broker"], indirect=True)
"""For tests of what Spark does the same over a broker."""
SMALL = {
    "spark.ui.enabled": False,
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": 2,
    "spark.ui.showConsoleProgress": False,
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two threads of this process's JVM; starting it takes longer than most tests."""
    config = SMALL | {"spark.sql.warehouse.dir": tmp_path_factory.mktemp("warehouse")}
    session = hw.spark.session("tests", master="local[2]", config=config)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[hw.Store]:
    """A store that Spark's processes reach: in a directory, or, where a test asks for it, behind a broker."""
    if getattr(request, "param", "directory") == "directory":
        with hw.open(tmp_path / "store") as opened:
            yield opened
        return
    with (
        DirectoryStore(tmp_path / "store", exclusive=True) as served,
        Broker(served, listen=Address("127.0.0.1", 0)) as broker,
        hw.open(f"hw://{broker.address}") as opened,
    ):
        yield opened


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[], str]:
    """Gives a new directory for a query's checkpoint each time."""
    numbers = itertools.count()
    return lambda: str(tmp_path / f"checkpoint-{next(numbers)}")


@pytest.fixture
def pipelines(spark: SparkSession, tmp_path: Path) -> Pipelines:
    """Declares pipelines beside the store of a test, and runs them."""
    return Pipelines(spark, tmp_path)
