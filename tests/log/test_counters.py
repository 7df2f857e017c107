"""Counters: what was done with a partition, in the state page, for every process to see."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwater import PartitionConfig
from headwater.core.errors import PartitionPoisoned, WriteFailed
from headwater.log import Counters, DirectoryPartition, encode
from headwater.log.files.counters import (
    COUNTERS_BYTES,
    LAYOUT,
    NO_COUNTERS,
    count_failure,
    count_sync,
    count_write,
    sum_counters,
    unpack_counters,
)
from headwater.log.files.disk import Disk
from headwater.testing import ManualClock
from tests.golden.reader import GoldenReader
from tests.support.backends import OpenDirectory, OpenPartition

GOLDEN = Path(__file__).parents[1] / "golden" / "log"
SMALL = PartitionConfig(segment_bytes=4096, retention_bytes=0)


class SlowDisk(Disk):
    """A disk that takes its time, by the clock of the test, and refuses what it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.refused: set[str] = set()
        self.write_seconds = 1.0

    def _refuse(self, call: str) -> None:
        if call in self.refused:
            raise OSError(errno.ENOSPC, "no space left")

    def writev(self, fd: int, buffers: Any, position: int, size: int) -> None:
        self._clock.advance(self.write_seconds)
        self._refuse("writev")
        if "first writev" in self.refused:
            self.refused.clear()
            raise OSError(errno.ENOSPC, "no space left")
        super().writev(fd, buffers, position, size)

    def sync(self, fd: int) -> None:
        self._clock.advance(2)
        self._refuse("sync")
        super().sync(fd)

    def replace(self, path: Path, content: bytes, *, sync: bool = True) -> None:
        self._clock.advance(3)
        self._refuse("replace")
        super().replace(path, content, sync=sync)


def opened(directory: Path, config: PartitionConfig | None = None) -> tuple[DirectoryPartition, SlowDisk]:
    clock = ManualClock()
    disk = SlowDisk(clock)
    return DirectoryPartition(directory, config, disk=disk, clock=clock), disk


def test_the_counters_fill_the_place_that_the_page_has_for_them() -> None:
    assert LAYOUT.size == COUNTERS_BYTES
    assert unpack_counters(NO_COUNTERS) == Counters()


def test_writes_and_syncs_are_timed(tmp_path: Path) -> None:
    partition, disk = opened(tmp_path)
    with partition:
        partition.append(encode([b"a"]))
        disk.write_seconds = 5.0
        partition.append(encode([b"b"]))
        counters = partition.statistics().counters
    assert (counters.writes, counters.write_ns, counters.mean_write_ns) == (2, 6 * 10**9, 3 * 10**9)
    assert (counters.shortest_write_ns, counters.longest_write_ns) == (10**9, 5 * 10**9)
    assert (counters.syncs, counters.sync_ns, counters.mean_sync_ns) == (2, 4 * 10**9, 2 * 10**9)
    assert (counters.shortest_sync_ns, counters.longest_sync_ns) == (2 * 10**9, 2 * 10**9)
    assert (counters.index_writes, counters.errors) == (1, 0)


def test_a_sync_on_its_own_counts_too(tmp_path: Path) -> None:
    partition, _ = opened(tmp_path, PartitionConfig(sync="never"))
    with partition:
        partition.append(encode([b"a"]))
        assert partition.statistics().counters.syncs == 0
        partition.sync()
        assert partition.statistics().counters.syncs == 1


def test_writes_that_fail_are_counted_and_the_log_goes_on(tmp_path: Path) -> None:
    partition, disk = opened(tmp_path)
    with partition:
        partition.append(encode([b"a"]))
        disk.refused.add("writev")
        for _ in range(2):
            with pytest.raises(WriteFailed):
                partition.append(encode([b"b"]))
        disk.refused.clear()
        assert partition.statistics().counters.errors == 0, "not even the page could be written"
        assert partition.append(encode([b"c"])).base_offset == 1
        counters = partition.statistics().counters
        assert (counters.failed_writes, counters.errors, counters.writes) == (2, 2, 2)
        assert counters.last_error_ns > 1_700_000_000 * 10**9
        disk.refused.add("first writev")
        with pytest.raises(WriteFailed):
            partition.append(encode([b"d"]))
        assert partition.statistics().counters.failed_writes == 3, "the page could be written"
        assert partition.recovery_reports == []


def test_a_sync_that_fails_is_counted(tmp_path: Path) -> None:
    partition, disk = opened(tmp_path)
    disk.refused.add("sync")
    with pytest.raises(PartitionPoisoned):
        partition.append(encode([b"a"]))
    counters = partition.statistics().counters
    assert (counters.failed_syncs, counters.failed_writes, counters.errors) == (1, 0, 1)
    partition.close()


def test_rotations_are_counted_with_their_time_and_those_that_fail(tmp_path: Path) -> None:
    partition, disk = opened(tmp_path)
    with partition:
        partition.append(encode([b"a"]))
        partition.roll()
        counters = partition.statistics().counters
        assert (counters.rotations, counters.failed_rotations) == (1, 0)
        assert counters.rotation_ns >= 3 * 10**9
        partition.append(encode([b"b"]))
        disk.refused.add("replace")
        with pytest.raises(WriteFailed):
            partition.roll()
        disk.refused.clear()
        counters = partition.statistics().counters
        assert (counters.rotations, counters.failed_rotations, counters.errors) == (1, 1, 1)
        assert [record.value for record in partition.records()] == [b"a", b"b"]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compression_is_counted(open_partition: OpenPartition, codec: Any) -> None:
    partition = open_partition()
    large = encode([b"x" * 10_000], compression=codec)
    partition.append([large, encode([b"small"], compression=codec)])
    partition.append(encode([b"plain"]))
    counters = partition.statistics().counters
    assert (counters.compressed_frames, counters.compression_skipped) == (1, 1)
    assert counters.compression_bytes_in >= 10_000
    assert counters.compression_bytes_out == large.message.size
    assert 0 < counters.compression_ratio < 0.2
    assert counters.compression_ns == large.compression_ns > 0


def test_frames_that_others_have_compressed_are_measured(open_directory: OpenDirectory) -> None:
    frame = encode([b"x" * 10_000], compression="zstd")
    partition = open_directory()
    partition.append(frame._replace(encoded_bytes=0, compression_ns=0))
    counters = partition.statistics().counters
    assert 10_000 <= counters.compression_bytes_in <= frame.encoded_bytes + 64
    assert counters.compression_ns == 0


def test_retention_is_counted_with_what_it_removed_and_protected(open_partition: OpenPartition) -> None:
    clock = ManualClock()
    partition = open_partition(SMALL, clock=clock)
    for _ in range(6):
        partition.append(encode([b"x" * 1500] * 2))
    segments = partition.segments()
    assert len(segments) == 6
    partition.retain(keep_from=segments[2].base)
    counters = partition.statistics().counters
    assert (counters.retention_runs, counters.removed_segments, counters.retention_records) == (1, 2, 4)
    assert counters.retention_bytes == sum(segment.size for segment in segments[:2])
    assert (counters.protected_segments, counters.last_retention_ns) == (3, clock.now_ns())
    assert counters.protected_bytes == sum(segment.size for segment in segments[2:5])
    partition.retain(keep_from=segments[2].base)
    counters = partition.statistics().counters
    assert (counters.retention_runs, counters.retention_records, counters.protected_segments) == (2, 4, 3)
    partition.retain()
    counters = partition.statistics().counters
    assert (counters.retention_runs, counters.retention_records, counters.protected_segments) == (3, 10, 0)
    partition.retain()
    assert partition.statistics().counters.retention_runs == 3, "there was nothing to remove"


def test_readers_and_their_cache_are_counted(tmp_path: Path) -> None:
    with DirectoryPartition(tmp_path, PartitionConfig(mapping_cache_bytes=6000, segment_bytes=4096)) as partition:
        for _ in range(3):
            partition.append(encode([b"x" * 3000]))
        before = partition.statistics().counters
        assert (before.readers, before.reads) == (0, 0)
        list(partition.frames(0, 1))
        list(partition.frames(0, 1))
        list(partition.frames(1, 2))
        counters = partition.statistics().counters
        assert (counters.readers, counters.reads, counters.cache_hits) == (1, 3, 1)
        assert (counters.mappings, counters.evictions) == (2, 1)
        again = partition.statistics().counters
        assert again == counters, "looking changes nothing"
    with DirectoryPartition(tmp_path) as other:
        assert other.statistics().counters == counters


READ_AND_APPEND = """
import sys
from headwater.log import DirectoryPartition, encode
with DirectoryPartition(sys.argv[1]) as partition:
    assert len(list(partition.records())) == 3
    partition.append(encode([b"d"]))
"""


def test_other_processes_see_what_readers_and_writers_have_done(tmp_path: Path) -> None:
    with DirectoryPartition(tmp_path) as partition:
        partition.append(encode([b"a", b"b", b"c"]))
        subprocess.run([sys.executable, "-c", READ_AND_APPEND, str(tmp_path)], check=True)
        counters = partition.statistics().counters
        assert (counters.writes, counters.readers, counters.reads) == (2, 1, 1)


def test_a_handle_that_only_reads_counts_for_itself(tmp_path: Path) -> None:
    with DirectoryPartition(tmp_path) as partition:
        partition.append(encode([b"a"]))
        before = (tmp_path / "state").read_bytes()
        with DirectoryPartition(tmp_path) as reader:
            assert len(list(reader.records())) == 1
            assert reader.statistics().counters.reads == 1
        assert (tmp_path / "state").read_bytes() == before


def test_a_reader_in_the_middle_of_another_ones_work_waits_for_nobody(tmp_path: Path) -> None:
    with DirectoryPartition(tmp_path) as partition, DirectoryPartition(tmp_path) as reader:
        reader.append(encode([b"a"]))
        with partition._owner.locked():
            assert len(list(reader.records())) == 1
            reader._reader.publish_counts()
            assert partition.statistics().counters.reads == 0
            assert reader.statistics().counters.reads == 1
        reader._reader.publish_counts()
        assert partition.statistics().counters.reads == 1


def test_counters_outlive_recovery(tmp_path: Path) -> None:
    with DirectoryPartition(tmp_path) as partition:
        partition.append(encode([b"a"]))
    with next(tmp_path.glob("*.log")).open("ab") as file:
        file.write(b"torn")
    with DirectoryPartition(tmp_path) as partition:
        assert len(partition.recovery_reports) == 1
        statistics = partition.statistics()
    assert (statistics.counters.writes, statistics.recoveries) == (1, 1)


def test_a_log_of_an_older_version_counts_from_now_on(tmp_path: Path) -> None:
    copy = tmp_path / "log"
    shutil.copytree(GOLDEN, copy)
    assert not any(GoldenReader(copy).counters)
    with DirectoryPartition(copy) as partition:
        assert partition.recovery_reports == []
        assert partition.statistics().counters == Counters()
        partition.append(encode([b"more"]))
        assert partition.statistics().counters.writes == 1
    golden = GoldenReader(copy)
    assert (golden.counters[0], golden.counters[5]) == (1, 1)


def test_sums_add_up_and_keep_the_extremes() -> None:
    first = unpack_counters(count_sync(count_write(NO_COUNTERS, 5, indexed=True), 7))
    second = unpack_counters(count_failure(count_write(NO_COUNTERS, 3, indexed=False), "failed_writes", 99))
    both = sum_counters([first, second, Counters()])
    assert (both.writes, both.write_ns, both.shortest_write_ns, both.longest_write_ns) == (2, 8, 3, 5)
    assert (both.shortest_sync_ns, both.index_writes, both.last_error_ns, both.failed_writes) == (7, 1, 99, 1)
    assert sum_counters([]) == Counters()
