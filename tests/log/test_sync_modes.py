"""Sync modes: when appends reach the disk, and how many syncs that takes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from headwater import PartitionConfig
from headwater.core.config import Sync
from headwater.core.options import MIB
from headwater.log import Disk, encode
from tests.support.backends import OpenDirectory
from tests.support.patience import Patience


class WatchedDisk(Disk):
    """Notes the size of each file when it was synced, and what of it the device was asked to begin with."""

    def __init__(self) -> None:
        self.may_end: Callable[[], bool] = lambda: True
        """A sync takes until then, or for a while."""
        self.synced: dict[int, int] = {}
        self.syncs = 0
        self.started: dict[int, list[tuple[int, int]]] = {}

    def start_writing(self, fd: int, position: int, size: int) -> None:
        super().start_writing(fd, position, size)
        self.started.setdefault(os.fstat(fd).st_ino, []).append((position, position + size))

    def sync(self, fd: int) -> None:
        Patience(0.1).until(self.may_end)
        status = os.fstat(fd)
        super().sync(fd)
        self.synced[status.st_ino] = status.st_size
        self.syncs += 1


def test_always_syncs_before_it_acknowledges(open_directory: OpenDirectory) -> None:
    disk = WatchedDisk()
    partition = open_directory(disk=disk)
    log = partition.path / f"{0:020d}.log"
    for number in range(1, 4):
        partition.append(encode([b"x"]))
        assert disk.synced[log.stat().st_ino] == log.stat().st_size
        assert partition.bounds() == (0, number, number)


def test_threads_share_syncs(open_directory: OpenDirectory) -> None:
    disk = WatchedDisk()
    partition = open_directory(disk=disk)
    threads = 8
    appends = 25
    start = threading.Barrier(threads)
    waiting = [False] * threads
    disk.may_end = lambda: all(waiting)

    def produce(number: int) -> None:
        start.wait()
        for _ in range(appends):
            frame = encode([b"x"])
            waiting[number] = True
            answer = partition.append(frame)
            waiting[number] = False
            assert partition.bounds().durable_end >= answer.end_offset
        waiting[number] = True

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(threads)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    statistics = partition.statistics()
    assert statistics.total_appends == threads * appends
    assert statistics.total_syncs < threads * appends / 2
    assert [record.offset for record in partition.records()] == list(range(threads * appends))


def test_never_leaves_it_to_the_kernel(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(sync="never"))
    for _ in range(10):
        partition.append(encode([b"x"]))
    assert partition.bounds() == (0, 10, 0)
    assert partition.statistics().total_syncs == 0
    assert len(list(partition.records())) == 10


@pytest.mark.parametrize("sync", ["never", 3000, "always"])
def test_the_device_begins_before_it_is_waited_for(open_directory: OpenDirectory, sync: Sync) -> None:
    """Each byte that no sync is about is given to the device once, a few megabytes at a time, before any sync."""
    disk = WatchedDisk()
    partition = open_directory(PartitionConfig(sync=sync, segment_bytes=16 * MIB), disk=disk)
    for _ in range(40):
        partition.append(encode([bytes(MIB // 2)]))
    logs = [path.stat().st_ino for path in sorted(partition.path.glob("*.log"))]
    if sync == "always":
        assert not disk.started
        return
    assert list(disk.started) == logs
    for spans in disk.started.values():
        assert all(4 * MIB <= end - start < 5 * MIB for start, end in spans)
        assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert sum(map(len, disk.started.values())) == 4


def test_sync_makes_everything_durable_in_every_mode(open_directory: OpenDirectory) -> None:
    for name, config in (
        ("never", PartitionConfig(sync="never")),
        ("interval", PartitionConfig(sync=3000)),
        ("always", PartitionConfig()),
    ):
        disk = WatchedDisk()
        partition = open_directory(config, name=name, disk=disk)
        partition.append(encode([b"x"]))
        partition.sync()
        log = partition.path / f"{0:020d}.log"
        assert disk.synced[log.stat().st_ino] == log.stat().st_size
        assert partition.bounds().durable_end == 1
        assert partition.statistics().total_syncs == 1
        partition.sync()
        assert partition.statistics().total_syncs == 1


def test_closing_makes_everything_durable(open_directory: OpenDirectory) -> None:
    for name, config in (("never", PartitionConfig(sync="never")), ("interval", PartitionConfig(sync=3000))):
        disk = WatchedDisk()
        partition = open_directory(config, name=name, disk=disk)
        partition.append(encode([b"x"]))
        log = partition.path / f"{0:020d}.log"
        assert disk.synced[log.stat().st_ino] < log.stat().st_size
        partition.close()
        assert disk.synced[log.stat().st_ino] == log.stat().st_size
        before = disk.syncs
        again = open_directory(config, name=name, disk=disk)
        assert again.bounds() == (0, 1, 1)
        assert disk.syncs == before


def test_an_interval_syncs_without_further_appends(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(sync=0.02))
    for number in range(1, 4):
        partition.append(encode([b"x"]))
        while partition.bounds().durable_end < number:
            time.sleep(0.001)
        assert partition.bounds().end == number
    assert partition.statistics().total_syncs >= 3


def test_an_interval_syncs_less_often_than_it_appends(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(sync=30))
    for _ in range(100):
        partition.append(encode([b"x"]))
    assert partition.statistics().total_syncs < 10
    assert partition.bounds().end == 100


def test_a_partition_that_was_closed_is_not_synced_later(open_directory: OpenDirectory) -> None:
    disk = WatchedDisk()
    short = open_directory(PartitionConfig(sync=0.01), name="short", disk=disk)
    short.append(encode([b"x"]))
    short.close()
    syncs = disk.syncs
    other = open_directory(PartitionConfig(sync=0.02), name="other")
    other.append(encode([b"x"]))
    while other.bounds().durable_end < 1:
        time.sleep(0.001)
    assert disk.syncs == syncs
