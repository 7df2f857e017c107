"""Descriptors: a store holds no more of them than it needs at the moment, however much there is in it."""

from __future__ import annotations

import os
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headwater as hw
from headwater import PartitionConfig
from headwater.log import DirectoryPartition
from headwater.log.encode import encode
from headwater.log.open_files import OPEN_FILES, most_handles
from tests.backends import OpenDirectory, OpenDirectoryStore


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


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
    before = descriptors()
    partitions = [DirectoryPartition(tmp_path / str(number)) for number in range(3)]
    for partition in partitions:
        partition.append(encode([b"one"]))
    assert descriptors() == before + 12
    assert OPEN_FILES.relieve()
    assert descriptors() == before
    for partition in partitions:
        assert partition.bounds().end == 1
        partition.append(encode([b"two"]))
        assert [record.value for record in partition.records()] == [b"one", b"two"]
        partition.close()
    assert descriptors() == before


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
    assert len([one for one in store.open_partitions()]) == count
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

    def work(one: DirectoryPartition, value: bytes) -> None:
        try:
            for number in range(150):
                assert one.append(encode([value])).base_offset == number
                assert one.bounds().end == number + 1
                assert {record.value for record in one.records(number)} == {value}
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    def disturb() -> None:
        while not stop.is_set():
            OPEN_FILES.relieve()

    workers = [threading.Thread(target=work, args=(one, b"%d" % n)) for n, one in enumerate(partitions)]
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
