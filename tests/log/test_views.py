"""Views: what a reader holds stays as it was, whatever happens to the log meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headwater import HeadwaterError, PartitionConfig
from headwater.log import DirectoryPartition, Disk, encode
from headwater.log.files.segment import SEGMENT_HEADER_BYTES
from headwater.log.read.reader import MAPPED_FROM
from tests.support.backends import OpenDirectory

CONFIG = PartitionConfig(segment_bytes=4 * MAPPED_FROM, mapping_cache_bytes=0, retention_bytes=0, sync="never")


def values(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch["value"].to_pylist()]


@pytest.fixture
def partition(open_directory: OpenDirectory) -> DirectoryPartition:
    """Twelve records of half a megabyte with three keys, in several segments, all mapped when they are read."""
    partition = open_directory(CONFIG)
    for number in range(12):
        partition.append(encode([b"%02d" % number * (MAPPED_FROM // 4)], keys=[b"%d" % (number % 3)]))
    assert partition.statistics().segments > 1
    return partition


CHANGES: dict[str, Callable[[DirectoryPartition], object]] = {
    "append": lambda partition: partition.append(encode([b"x" * MAPPED_FROM] * 10)),
    "roll": lambda partition: partition.roll(),
    "compact": lambda partition: (partition.roll(), partition.compact()),
    "retain": lambda partition: (partition.roll(), partition.retain()),
    "delete_before": lambda partition: partition.delete_before(11),
    "truncate": lambda partition: partition.truncate(1),
    "close": lambda partition: partition.close(),
    "delete": lambda partition: shutil.rmtree(partition.path),
}


@pytest.mark.parametrize("change", CHANGES)
def test_batches_that_are_held_stay_as_they_were(partition: DirectoryPartition, change: str) -> None:
    batches = list(partition.scan())
    before = values(batches)
    CHANGES[change](partition)
    assert values(batches) == before == [b"%02d" % number * (MAPPED_FROM // 4) for number in range(12)]


def test_batches_that_are_held_outlive_everything_at_once(
    open_directory: OpenDirectory, partition: DirectoryPartition
) -> None:
    reader = open_directory(CONFIG)
    batches = list(reader.scan())
    partition.roll()
    partition.compact()
    partition.truncate(10)
    partition.retain()
    partition.close()
    reader.close()
    shutil.rmtree(partition.path)
    assert values(batches) == [b"%02d" % number * (MAPPED_FROM // 4) for number in range(12)]


def test_a_published_file_is_not_cut_under_its_readers(open_directory: OpenDirectory) -> None:
    """Recovery replaces the file and does not cut it: the kernel would end a reader that has mapped it."""
    partition = open_directory(CONFIG)
    for number in range(3):
        partition.append(encode([b"%02d" % number * (MAPPED_FROM // 4)]))
    segment = max(partition.path.glob("*.log"))
    first = next(partition.frames()).header
    batches = list(partition.scan())
    before = values(batches)
    with segment.open("r+b", buffering=0) as file:
        file.seek(SEGMENT_HEADER_BYTES + first.length + 20)  # in the header of the second frame, which is not synced
        file.write(b"damage")
        file.seek(0, os.SEEK_END)
        file.write(b"not published, by a writer that died")
        size = file.tell()
        appended = partition.append(encode([b"goes on"]))
        assert appended.base_offset == 1, "the rest was cut"
        assert os.fstat(file.fileno()).st_size == size
    assert values(batches) == before


def test_large_values_are_not_copied(partition: DirectoryPartition) -> None:
    before = pa.total_allocated_bytes()
    batches = list(partition.scan(columns=["value"]))
    assert sum(batch.nbytes for batch in batches) > 5 * MAPPED_FROM
    assert pa.total_allocated_bytes() - before < MAPPED_FROM / 4


class SwappingDisk(Disk):
    """Calls back when a rewritten segment has just taken its place and no reader can know it yet."""

    def __init__(self) -> None:
        self.swapped: Callable[[], None] = lambda: None

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        if target.suffix == ".log":
            self.swapped()


@pytest.mark.parametrize("warm", [False, True], ids=["nothing mapped", "old file mapped"])
def test_a_read_in_the_very_moment_of_a_swap_is_undisturbed(open_directory: OpenDirectory, warm: bool) -> None:
    disk = SwappingDisk()
    config = PartitionConfig(index_interval=128, sync="never")
    partition, reader = open_directory(config, disk=disk), open_directory(config)
    for number in range(60):
        partition.append(encode([b"%d" % number] * 2, keys=[b"%d" % (number % 8), None]))
        if number % 20 == 19:
            partition.roll()
    everything = list(reader.records()) if warm else []
    assert len(everything) in (0, 120)
    reader.statistics()
    wrong: list[object] = []
    reads = 0

    def read() -> None:
        nonlocal reads
        reads += 1
        for start in range(0, 121, 5):
            try:
                rows = [(record.offset, record.value) for record in reader.records(start) if record.key is None]
            except HeadwaterError as error:
                wrong.append(error)
                continue
            if rows != [(offset, b"%d" % (offset // 2)) for offset in range(start, 120) if offset % 2]:
                wrong.append(rows)

    disk.swapped = read
    assert partition.compact().rewritten == 3
    read()
    assert reads == 4
    assert wrong == []


def test_an_iterator_goes_on_through_compaction_in_every_segment(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(sync="never"))
    for number in range(30):
        partition.append(encode([b"%d" % number] * 2, keys=[b"k", None]))
        if number % 10 == 9:
            partition.roll()
    seen = []
    for number, record in enumerate(partition.records()):
        if number % 7 == 0:
            partition.compact()
        if record.key is None:
            seen.append(record.value)
    assert seen == [b"%d" % number for number in range(30)]
