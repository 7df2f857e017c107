"""Shared by all tests: how partitions are opened, and how long Hypothesis looks."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from headwater import HeadwaterError, PartitionConfig, PartitionError, Store
from headwater.broker import arrivals
from headwater.client import sender
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Clock, DirectoryPartition, Disk, Partition
from headwater.log.clock import REAL_CLOCK
from headwater.log.files.disk import REAL_DISK
from headwater.testing import ManualClock
from tests.support.backends import (
    BACKENDS,
    STORES,
    Handles,
    OpenDirectory,
    OpenDirectoryStore,
    OpenPartition,
    OpenStore,
    SharedCluster,
)
from tests.support.etcd_server import needs_etcd

# Shells start background jobs with Ctrl-C ignored, and what they start inherits that: tests of Ctrl-C would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("quick", max_examples=50, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("thorough", max_examples=2000, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients on a broker's machine use its files and memory for small frames too, which would be sent else."""
    monkeypatch.setattr(arrivals, "SMALL", 0)
    monkeypatch.setattr(sender, "_WORTH_BORROWING", 0)


@pytest.fixture(params=BACKENDS)
def open_partition(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenPartition]:
    """Opens new partitions, of every backend in turn, and closes them in the end."""
    backend = BACKENDS[request.param]
    opened: list[Partition] = []
    numbers = itertools.count()

    def factory(config: PartitionConfig | None = None, *, clock: Clock = REAL_CLOCK) -> Partition:
        opened.append(backend(tmp_path / f"log-{next(numbers)}", config, clock))
        return opened[-1]

    yield factory
    _close(opened)


@pytest.fixture
def open_directory(tmp_path: Path) -> Iterator[OpenDirectory]:
    """Opens partitions in directories, the same one again when it is asked for again."""
    opened: list[Partition] = []

    def factory(
        config: PartitionConfig | None = None,
        *,
        name: str = "log",
        disk: Disk = REAL_DISK,
        clock: Clock = REAL_CLOCK,
    ) -> DirectoryPartition:
        partition = DirectoryPartition(tmp_path / name, config, disk=disk, clock=clock)
        opened.append(partition)
        return partition

    yield factory
    _close(opened)


def skip_embedded_only(request: pytest.FixtureRequest) -> None:
    """Skip what is marked as `embedded`, with the reason that the mark gives, on stores behind brokers.

    Tests marked as `single` are skipped on a cluster only.
    """
    for name, kinds in (("embedded", ("broker", "broker nearby", "cluster")), ("single", ("cluster",))):
        mark = request.node.get_closest_marker(name)
        if mark is not None and request.param in kinds:
            pytest.skip(*mark.args)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of stores run on every kind; those of modules that say so, with `ON_A_CLUSTER`, on a cluster too."""
    for fixture in {"open_store", "handle"}.intersection(metafunc.fixturenames):
        clustered = [pytest.param("cluster", marks=needs_etcd)] if hasattr(metafunc.module, "ON_A_CLUSTER") else []
        metafunc.parametrize(fixture, [*STORES, *clustered], indirect=True)


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    """One cluster for all tests that want one."""
    cluster = SharedCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens new stores, of every kind in turn, and closes them in the end."""
    skip_embedded_only(request)
    opened: list[Store] = []
    numbers = itertools.count()
    cluster: SharedCluster | None = request.getfixturevalue("shared_cluster") if request.param == "cluster" else None

    def factory(*, clock: Clock = REAL_CLOCK) -> Store:
        if cluster is not None:
            assert not opened, "there is one cluster"
            opened.append(cluster.open(clock))
        else:
            opened.append(STORES[request.param](tmp_path / f"store-{next(numbers)}", clock))
        return opened[-1]

    yield factory
    _close_stores(opened)
    if cluster is not None:
        cluster.clear()


@pytest.fixture
def open_directory_store(tmp_path: Path) -> Iterator[OpenDirectoryStore]:
    """Opens stores in directories, the same one again when it is asked for again."""
    opened: list[Store] = []

    def factory(*, name: str = "store", disk: Disk = REAL_DISK, clock: Clock = REAL_CLOCK) -> DirectoryStore:
        store = DirectoryStore(tmp_path / name, disk=disk, clock=clock)
        opened.append(store)
        return store

    yield factory
    _close_stores(opened)


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the stores that `handle` opens."""
    return ManualClock()


@pytest.fixture
def handle(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Handles]:
    """Opens handles of one store, of every kind in turn, and closes them in the end."""
    skip_embedded_only(request)
    opened: list[Store] = []
    cluster: SharedCluster | None = request.getfixturevalue("shared_cluster") if request.param == "cluster" else None

    def factory() -> Store:
        if cluster is not None:
            opened.append(cluster.open(clock))
        elif request.param not in ("memory", "example") or not opened:  # they are one handle's own
            opened.append(STORES[request.param](tmp_path / "store", clock))
        return opened[-1]

    yield factory
    _close_stores(opened)
    if cluster is not None:
        cluster.clear()


def _close_stores(stores: list[Store]) -> None:
    for store in stores:
        try:
            store.close()
        except HeadwaterError:
            continue  # broken by its test


def _close(partitions: list[Partition]) -> None:
    for partition in partitions:
        try:
            partition.close()
        except PartitionError:
            continue  # deleted or poisoned by its test
