"""Descriptors: a store holds no more of them than it needs at the moment, however much there is in it."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headwater as hw
from headwater import PartitionConfig, TopicPartition
from headwater.core.names import GROUPS
from headwater.log import DirectoryPartition
from headwater.log.files.disk import TEMPORARY
from headwater.log.files.open_files import OPEN_FILES, most_handles
from headwater.log.format.encode import encode
from headwater.streams.group import Commit
from headwater.testing import FailingDisk, Failpoint, ManualClock
from headwater.testing.failpoints import Operation
from tests.support.backends import OpenDirectory, OpenDirectoryStore


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def descriptors_in(directory: Path) -> int:
    """Return how many open descriptors are of files in a directory."""
    return sum(directory in path.parents for path in map(Path.resolve, Path("/proc/self/fd").iterdir()))


@contextmanager
def most_descriptors(count: int) -> Iterator[None]:
    """This process may have so many of them in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing in the block, whatever is closed in it."""
    with most_descriptors(3):
        yield


def test_reading_a_log_of_many_segments_takes_no_descriptor_for_each(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(segment_bytes=4096, sync="never"))
    for number in range(40):
        partition.append(encode([bytes([number]) * 3000]))
    assert partition.statistics().segments >= 40
    before = descriptors()
    frames = list(partition.frames())
    assert len(frames) == 40
    assert descriptors() <= before + 1
    partition.close()
    assert [frame.batch().num_rows for frame in frames] == [1] * 40  # what is held stays readable


def test_partitions_that_rest_hold_no_descriptor_and_go_on_when_they_are_used(tmp_path: Path) -> None:
    partitions = [DirectoryPartition(tmp_path / str(number)) for number in range(3)]
    for partition in partitions:
        partition.append(encode([b"one"]))
    assert descriptors_in(tmp_path) == 12
    assert OPEN_FILES.relieve()
    assert descriptors_in(tmp_path) == 0
    for partition in partitions:
        assert partition.bounds().end == 1
        partition.append(encode([b"two"]))
        assert [record.value for record in partition.records()] == [b"one", b"two"]
        partition.close()
    assert descriptors_in(tmp_path) == 0


def test_many_topics_hold_a_bounded_number_of_descriptors(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    count = 40
    for number in range(count):
        store.create_topic(f"t{number}")
    with most_descriptors(max(descriptors() + 60, 100)):
        for _ in range(2):
            for number in range(count):
                store.topic(f"t{number}").partition(0).append(encode([b"x"]))
        assert store.statistics().records == 2 * count
    assert len(store.open_partitions()) == count
    assert descriptors() < 4 * count


def test_a_resting_partition_knows_that_it_was_deleted_or_made_again(tmp_path: Path) -> None:
    for again in (False, True):
        partition = DirectoryPartition(tmp_path / "log")
        partition.append(encode([b"one"]))
        OPEN_FILES.relieve()
        shutil.rmtree(tmp_path / "log")
        if again:
            DirectoryPartition(tmp_path / "log").close()
        for _ in range(2):
            with pytest.raises(hw.PartitionDeleted):
                partition.append(encode([b"two"]))
            with pytest.raises(hw.PartitionDeleted):
                partition.bounds()
        partition.close()


def test_what_is_not_synced_is_synced_when_a_resting_partition_is_closed(tmp_path: Path) -> None:
    partition = DirectoryPartition(tmp_path / "log", PartitionConfig(sync="never"))
    partition.append(encode([b"one"]))
    OPEN_FILES.relieve()
    partition.close()
    with DirectoryPartition(tmp_path / "log") as again:
        assert again.bounds().durable_end == again.bounds().end == 1
        assert again.recovery_reports == []


def test_without_descriptors_a_partition_raises_its_own_errors_and_goes_on_later(tmp_path: Path) -> None:
    partition = DirectoryPartition(tmp_path / "log")
    partition.append(encode([b"one"]))
    OPEN_FILES.relieve()
    with no_descriptors():
        with pytest.raises(hw.HeadwaterError):
            partition.append(encode([b"two"]))
        with pytest.raises(hw.HeadwaterError):
            partition.bounds()
        with pytest.raises(hw.HeadwaterError):
            list(partition.records())
    partition.append(encode([b"two"]))
    assert [record.value for record in partition.records()] == [b"one", b"two"]
    partition.close()


def test_resting_at_any_moment_disturbs_neither_readers_nor_writers(tmp_path: Path) -> None:
    partitions = [DirectoryPartition(tmp_path / str(number), PartitionConfig(sync="never")) for number in range(2)]
    failures: list[BaseException] = []
    stop = threading.Event()

    def work(partition: DirectoryPartition, value: bytes) -> None:
        try:
            for number in range(150):
                assert partition.append(encode([value])).base_offset == number
                assert partition.bounds().end == number + 1
                assert {record.value for record in partition.records(number)} == {value}
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    def disturb() -> None:
        while not stop.is_set():
            OPEN_FILES.relieve()

    workers = [threading.Thread(target=work, args=(partition, b"%d" % n)) for n, partition in enumerate(partitions)]
    disturber = threading.Thread(target=disturb)
    for thread in (*workers, disturber):
        thread.start()
    for worker in workers:
        worker.join()
    stop.set()
    disturber.join()
    assert failures == []
    for partition in partitions:
        partition.close()


def test_the_limit_of_open_handles_follows_that_of_the_process() -> None:
    with most_descriptors(200):
        assert most_handles() == 20
    with most_descriptors(20):
        assert most_handles() == 8


def test_groups_that_nobody_uses_hold_no_descriptors(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    store.create_topic("orders")
    before = descriptors()
    with most_descriptors(max(before + 30, 60)):
        for number in range(60):
            with store.consumer("orders", group=f"g{number}") as inbox:
                inbox.poll()
        assert len(store.group_names()) == 60
        for name in store.group_names():
            assert len(store.group(name).describe().positions) == 1
    OPEN_FILES.relieve()
    assert descriptors() <= before + 1  # by which the process hears of writes


def test_the_directory_of_an_expired_group_is_removed_and_made_again_when_needed(
    open_directory_store: OpenDirectoryStore, clock: ManualClock
) -> None:
    store = open_directory_store(clock=clock)
    store.create_topic("orders")
    with store.producer("orders") as out:
        out.send(b"one")
    other = open_directory_store(clock=clock)
    watching = other.group("g")
    with store.consumer("orders", group="g") as inbox:
        inbox.ack(inbox.poll()[0])
        inbox.commit()
        assert [position.offset for position in watching.committed().values()] == [1]
    clock.advance(30 * 86400)
    assert store.steward().run_once().expired_groups == ("g",)
    assert not (store.path / GROUPS / "g").exists()
    assert (store.group_names(), store.has_group("g")) == ([], False)
    assert watching.committed() == {}  # by the files that were removed, and are made again
    with store.consumer("orders", group="g") as inbox:
        assert [record.value for record in inbox.poll()] == [b"one"]
        inbox.ack_range("orders", 0, 0, 1)
        inbox.commit()
        assert [position.offset for position in watching.committed().values()] == [1]
        assert list(watching.describe().members) == [inbox._member.id]
        assert store.steward().run_once().expired_groups == ()
        assert watching.generation() == store.group("g").generation() > 0


def test_a_member_that_joins_while_its_group_is_removed_is_a_member_of_the_next(
    open_directory_store: OpenDirectoryStore,
) -> None:
    stores = [open_directory_store() for _ in range(3)]
    stores[0].create_topic("orders")
    failures: list[BaseException] = []
    stop = threading.Event()

    def remove() -> None:
        try:
            while not stop.is_set():
                stores[0].group("g").expire(1 << 62)
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    def join(store: hw.Store) -> None:
        try:
            for _ in range(60):
                with store.consumer("orders", group="g") as inbox:
                    inbox.poll()
                    assert inbox._member.id in store.group("g").describe().members
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    remover = threading.Thread(target=remove)
    members = [threading.Thread(target=join, args=(store,)) for store in stores[1:]]
    for thread in (remover, *members):
        thread.start()
    for member in members:
        member.join()
    stop.set()
    remover.join()
    assert failures == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_consumer_that_cannot_write_when_it_closes_keeps_nobody_waiting(
    open_directory_store: OpenDirectoryStore, number: int
) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    store.create_topic("orders")
    with store.producer("orders") as out:
        out.send(b"one")
    leaving = store.consumer("orders", group="g")
    leaving.ack(leaving.poll()[0])
    disk.failpoints = [Failpoint(operation=kind, error=number, times=1 << 30) for kind in ("create", "pwritev")]
    with pytest.raises(hw.WriteFailed) as caught:
        leaving.close()
    assert caught.value.errno == number
    disk.failpoints = []
    with open_directory_store().consumer("orders", group="g") as successor:
        assert [record.value for record in successor.poll()] == [b"one"]
    assert [path for path in store.path.rglob("*") if path.name.endswith(TEMPORARY)] == []


def test_a_member_that_could_not_join_leaves_nothing_behind(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    store.create_topic("orders")
    with store.producer("orders") as out:
        out.send(b"one")
    store.group("g").committed()
    before = descriptors()
    disk.failpoints = [Failpoint(operation="create", error=errno.ENOSPC, times=1 << 30)]
    with pytest.raises(hw.WriteFailed, match="make room"):
        store.consumer("orders", group="g")
    assert descriptors() == before
    assert os.listdir(store.path / GROUPS / "g" / "members") == []
    disk.failpoints = []
    with store.consumer("orders", group="g") as inbox:
        assert len(inbox.poll()) == 1


def test_a_reset_that_fails_has_changed_nothing(open_directory_store: OpenDirectoryStore) -> None:
    disk = FailingDisk()
    store = open_directory_store(disk=disk)
    uuid = store.create_topic("orders", partitions=3).info.uuid
    group = store.group("g")
    positions = {TopicPartition("orders", n): Commit((uuid, n), 5) for n in range(2)}
    group.commit(None, positions)
    generation = group.generation()
    third = {TopicPartition("orders", 2): Commit((uuid, 2), 1)}
    faults: list[tuple[Operation, int]] = [("create", 0), ("pwritev", 0), ("pwritev", 2), ("pwritev", 3), ("rename", 0)]
    for operation, skip in faults:
        disk.failpoints = [Failpoint(operation=operation, error=errno.ENOSPC, skip=skip)]
        with pytest.raises(hw.WriteFailed):
            group.reset({partition: commit._replace(offset=2) for partition, commit in positions.items()} | third)
        assert {key: position.offset for key, position in group.committed().items()} == {(uuid, 0): 5, (uuid, 1): 5}
    disk.failpoints = []
    group.reset(third)
    assert group.committed()[uuid, 2].offset == 1
    assert group.generation() > generation


def test_leftovers_of_dead_processes_are_removed_by_the_steward(open_directory_store: OpenDirectoryStore) -> None:
    store = open_directory_store()
    store.create_topic("orders")
    with store.consumer("orders", group="g") as inbox:
        inbox.poll()
    leftovers = [
        store.path / "orders" / f"topic.json.1{TEMPORARY}",
        store.path / GROUPS / "g" / f"group.json.1{TEMPORARY}",
    ]
    for path in leftovers:
        path.write_bytes(b"half")
    store.steward().run_once(dry_run=True)
    assert all(path.exists() for path in leftovers)
    store.steward().run_once()
    assert not any(path.exists() for path in leftovers)
    assert store.topic("orders").info.partitions == 1


def test_looking_at_topics_that_were_never_used_makes_and_opens_nothing(
    open_directory_store: OpenDirectoryStore,
) -> None:
    store = open_directory_store()
    for number in range(5):
        store.create_topic(f"t{number}", partitions=3)
    before, files = descriptors(), sorted(store.path.rglob("*"))
    statistics = store.statistics()
    assert (len(statistics.topics), statistics.records, statistics.bytes, statistics.unhealthy) == (5, 0, 0, ())
    assert [len(topic.partitions) for topic in statistics.topics] == [3] * 5
    assert store.steward().run_once().errors == ()
    assert descriptors() == before
    assert [path for path in sorted(store.path.rglob("*")) if path.suffix != ".lock"] == [
        path for path in files if path.suffix != ".lock"
    ]
