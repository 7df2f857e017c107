"""A partition that is deleted, or deleted and made again, under an open handle is another one."""

from __future__ import annotations

import shutil

import pytest

from headwater import PartitionConfig, PartitionDeleted
from headwater.core.config import Sync
from headwater.log import DirectoryPartition, encode
from headwater.log.read.reader import MAPPED_FROM
from tests.log.test_close import USES
from tests.support.backends import OpenDirectory


@pytest.fixture
def deleted(open_directory: OpenDirectory) -> DirectoryPartition:
    """An open handle, on a directory that is gone."""
    partition = open_directory()
    partition.append(encode([b"a"]))
    shutil.rmtree(partition.path)
    return partition


@pytest.mark.parametrize("recreated", [False, True])
@pytest.mark.parametrize("use", ["append", "roll", "truncate", "delete_before", "compact", "writer_sequence"])
def test_a_deleted_partition_is_not_written(
    open_directory: OpenDirectory, deleted: DirectoryPartition, use: str, recreated: bool
) -> None:
    other = open_directory() if recreated else None
    if other is not None:
        other.append(encode([b"new"]))
    with pytest.raises(PartitionDeleted, match="open it again"):
        USES[use](deleted)
    if other is not None:
        assert [record.value for record in other.records()] == [b"new"]
    else:
        assert not deleted.path.exists()


@pytest.mark.parametrize("recreated", [False, True])
def test_a_deleted_partition_is_not_read(
    open_directory: OpenDirectory, deleted: DirectoryPartition, recreated: bool
) -> None:
    if recreated:
        open_directory().append(encode([b"new"]))
    for read in (lambda: list(deleted.records()), deleted.statistics, lambda: deleted.scan().read_all()):
        with pytest.raises(PartitionDeleted):
            read()


@pytest.mark.parametrize("sync", ["always", 3600.0])
def test_a_deleted_partition_can_be_closed(open_directory: OpenDirectory, sync: Sync) -> None:
    partition = open_directory(PartitionConfig(sync=sync))
    partition.append(encode([b"not durable yet, in one of the modes"]))
    shutil.rmtree(partition.path)
    partition.close()
    partition.close()


def test_what_was_read_stays(open_directory: OpenDirectory) -> None:
    partition = open_directory()
    partition.append(encode([b"x" * MAPPED_FROM, b"y"]))
    partition.roll()
    frames = list(partition.frames())
    shutil.rmtree(partition.path)
    assert [len(record.value) for frame in frames for record in frame.records()] == [MAPPED_FROM, 1]


def test_opening_again_is_all_it_takes(open_directory: OpenDirectory, deleted: DirectoryPartition) -> None:
    with pytest.raises(PartitionDeleted):
        deleted.append(encode([b"x"]))
    again = open_directory()
    assert again.append(encode([b"x"])).base_offset == 0
