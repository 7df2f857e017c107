"""Reopening: a log goes on where it ended, whoever opens it, however it was left."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from headwater import PartitionConfig
from headwater.core.config import Sync
from headwater.log import Appended, DirectoryPartition, encode
from headwater.log.read.reader import MAPPED_FROM
from tests.support.backends import OpenDirectory


@pytest.mark.parametrize("sync", ["always", "never", 0.5])
def test_a_log_goes_on_where_it_ended(open_directory: OpenDirectory, sync: Sync) -> None:
    config = PartitionConfig(sync=sync, segment_bytes=4096)
    for number in range(10):
        with open_directory(config) as partition:
            assert partition.recovery_reports == []
            assert [record.value for record in partition.records()] == [b"%d" % n for n in range(number * 3)]
            for value in range(number * 3, number * 3 + 3):
                assert partition.append(encode([b"%d" % value])) == Appended(value, value + 1)


def test_a_handle_that_was_never_closed_leaves_a_log_that_goes_on(open_directory: OpenDirectory) -> None:
    abandoned = [open_directory(PartitionConfig(sync=sync)) for sync in ("always", "never", 3000.0)]
    for number, partition in enumerate(abandoned):
        assert partition.append(encode([b"%d" % number])) == Appended(number, number + 1)
    again = open_directory()
    assert [record.value for record in again.records()] == [b"0", b"1", b"2"]
    assert again.append(encode([b"3"])) == Appended(3, 4)


def test_the_path_may_be_text_and_is_created(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "yet"
    with DirectoryPartition(str(path)) as partition:
        partition.append(encode([b"a"]))
    assert path.is_dir()
    assert str(path) in str(partition)


def test_a_partition_can_be_given_its_name(tmp_path: Path) -> None:
    uuid = bytes(range(16))
    with DirectoryPartition(tmp_path / "log", uuid=uuid) as partition:
        partition.append(encode([b"a"]))
    with DirectoryPartition(tmp_path / "log") as partition:
        assert next(partition.records()).value == b"a"
    assert uuid in (tmp_path / "log" / f"{0:020d}.log").read_bytes()[:80]


def test_opening_a_cleanly_closed_log_reads_none_of_its_data(
    open_directory: OpenDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PartitionConfig(sync="never", segment_bytes=1 << 20)
    with open_directory(config) as partition:
        for _ in range(50):
            partition.append(encode([b"x" * 100_000]))
    read = 0
    pread = os.pread

    def counted(fd: int, size: int, position: int) -> bytes:
        nonlocal read
        content = pread(fd, size, position)
        read += len(content)
        return content

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a log was mapped to open it")

    monkeypatch.setattr(os, "pread", counted)
    monkeypatch.setattr(mmap, "mmap", refused)
    again = open_directory(config)
    assert again.bounds() == (0, 50, 50)
    assert again.recovery_reports == []
    assert read < 10_000


def test_data_that_no_one_reads_is_not_looked_at_when_a_log_is_opened(open_directory: OpenDirectory) -> None:
    with open_directory() as partition:
        partition.append(encode([b"a" * 1000]))
    path = partition.path / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[200:-200] = bytes(len(content) - 400)
    path.write_bytes(content)
    again = open_directory()
    assert again.recovery_reports == []
    assert again.bounds().end == 1


def test_many_segments_are_mapped_within_the_limit(open_directory: OpenDirectory) -> None:
    limit = 8 * MAPPED_FROM
    config = PartitionConfig(segment_bytes=2 * MAPPED_FROM, mapping_cache_bytes=limit, sync="never")
    partition = open_directory(config)
    frame = encode([b"x" * 100_000])
    for _ in range(300):
        partition.append(frame)
    assert partition.statistics().bytes > 3 * limit
    most = 0
    count = 0
    for batch in partition.scan(columns=["value"]):
        count += batch.num_rows
        most = max(most, partition.statistics().mapped_bytes)
    assert count == 300
    assert 0 < most <= limit
    assert sum(1 for start in range(0, 300, 7) for _ in partition.read(start, max_bytes=1)) == 43
    assert partition.statistics().mapped_bytes <= limit


def test_mappings_of_segments_that_are_gone_are_dropped(open_directory: OpenDirectory) -> None:
    partition = open_directory()
    partition.append(encode([b"x" * MAPPED_FROM]))
    partition.roll()
    list(partition.frames())
    assert partition.statistics().mapped_bytes > MAPPED_FROM
    partition.delete_before(1)
    list(partition.frames())
    assert partition.statistics().mapped_bytes == 0
