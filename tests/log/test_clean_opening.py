"""Opening a clean partition: a reader leaves every byte alone, waits for nobody, and syncs nothing."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater import PartitionBusy, PartitionConfig
from headwater.core.config import Sync
from headwater.log import Damage, DirectoryPartition, encode
from headwater.log.files.disk import TEMPORARY
from headwater.log.files.marks import START_FILE, TRUNCATE_FILE, pack_mark
from headwater.log.files.segment_list import LIST_FILE
from headwater.log.recover.recovery import STATE_FILE
from headwater.log.write.owner import LOCK_FILE
from headwater.testing import RecordingDisk, Step
from tests.support.backends import OpenDirectory, OpenDirectoryStore

IMPATIENT = PartitionConfig(lock_timeout=0.05)


def everything_below(path: Path) -> dict[Path, tuple[int, bytes]]:
    """When each file was last changed, and what is in it."""
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.rglob("*") if file.is_file()}


class CountingDisk(RecordingDisk):
    """Tells what was done since it was made: what it met was there before."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._met = len(self.trace)

    @property
    def done(self) -> list[Step]:
        return self.trace[self._met :]


@pytest.fixture
def closed(open_directory: OpenDirectory) -> Path:
    """A partition with several segments, cut at its beginning, that was closed."""
    with open_directory(PartitionConfig(segment_bytes=4096)) as partition:
        for number in range(20):
            partition.append(encode([b"%d" % number * 300]))
        partition.delete_before(7)
    return partition.path


def busy(path: Path) -> int:
    """Take the partition's lock, as a process does that has stopped in the middle of an append."""
    fd = os.open(path / LOCK_FILE, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


@pytest.mark.parametrize("sync", ["always", "never", 0.5])
def test_a_reader_of_a_clean_partition_writes_and_syncs_nothing(closed: Path, sync: Sync) -> None:
    before = everything_below(closed)
    disk = CountingDisk(closed)
    with DirectoryPartition(closed, PartitionConfig(sync=sync), disk=disk) as partition:
        assert partition.bounds() == (7, 20, 20)
        assert [record.offset for record in partition.records()] == list(range(7, 20))
        assert sum(batch.num_rows for batch in partition.scan()) == 13
        assert len(partition.segments()) > 1
        assert partition.offset_at(0) == 7
        assert partition.statistics().end == 20
    assert disk.done == []
    assert everything_below(closed) == before


def test_a_reader_of_a_store_writes_and_syncs_nothing(open_directory_store: OpenDirectoryStore) -> None:
    with open_directory_store() as store:
        store.create_topic("orders", partitions=3)
        with store.producer("orders") as out:
            for number in range(30):
                out.send(b"%d" % number, key=b"%d" % number)
    before = everything_below(store.path)
    disk = CountingDisk(store.path)
    with open_directory_store(disk=disk) as store:
        topic = store.topic("orders")
        assert sum(batch.num_rows for batch in topic.scan()) == 30
        assert sum(bounds.end for bounds in topic.bounds().values()) == 30
    assert disk.done == []
    assert everything_below(store.path) == before


def test_opening_reading_and_closing_do_not_wait_for_the_lock(closed: Path) -> None:
    holder = busy(closed)
    try:
        for sync in ("always", "never"):
            with DirectoryPartition(closed, PartitionConfig(lock_timeout=0.05, sync=sync)) as partition:
                assert len(list(partition.records())) == 13
                with pytest.raises(PartitionBusy):
                    partition.append(encode([b"later"]))
    finally:
        os.close(holder)


def test_a_partition_opened_so_is_appended_to_like_any_other(closed: Path) -> None:
    with DirectoryPartition(closed) as partition:
        other = DirectoryPartition(closed)
        assert other.append(encode([b"other"])).base_offset == 20
        assert partition.append(encode([b"own"])).base_offset == 21
        other.close()
        assert [record.value for record in partition.records(20)] == [b"other", b"own"]
    disk = CountingDisk(closed)
    with DirectoryPartition(closed, disk=disk) as partition:
        assert partition.bounds().end == 22
    assert disk.done == []


def test_who_has_written_syncs_the_state_when_it_closes(closed: Path) -> None:
    disk = CountingDisk(closed)
    partition = DirectoryPartition(closed, disk=disk)
    partition.append(encode([b"one"]))
    before = len(disk.done)
    partition.close()
    assert [type(step).__name__ for step in disk.done[before:]] == ["Synced"]


def _longer(path: Path) -> None:
    with max(path.glob("*.log")).open("ab") as file:
        file.write(b"the beginning of an append")


def _half_a_state(path: Path) -> None:
    with (path / STATE_FILE).open("r+b") as file:
        file.seek(100)
        file.write(b"damage")


def _truncated(path: Path) -> None:
    (path / TRUNCATE_FILE).write_bytes(pack_mark(TRUNCATE_FILE, 12))


def _begun_later(path: Path) -> None:
    (path / START_FILE).write_bytes(pack_mark(START_FILE, 9))


def _unfinished(path: Path) -> None:
    (path / f"something{TEMPORARY}").write_bytes(b"")


def _without_its_first_segment(path: Path) -> None:
    min(path.glob("*.log")).unlink()


def _without_its_last_segment(path: Path) -> None:
    max(path.glob("*.log")).unlink()


def _without_its_index(path: Path) -> None:
    max(path.glob("*.index")).unlink()


def _without_its_list(path: Path) -> None:
    (path / LIST_FILE).unlink()


def _with_an_older_list(path: Path) -> None:
    content = (path / LIST_FILE).read_bytes()
    with DirectoryPartition(path) as partition:
        partition.roll()
    (path / LIST_FILE).write_bytes(content)


def _with_a_damaged_list(path: Path) -> None:
    with (path / LIST_FILE).open("r+b") as file:
        file.seek(140)
        file.write(b"damage")


def _with_a_stranger(path: Path) -> None:
    (path / f"{5000:020d}.log").write_bytes(b"not a segment")


def _with_a_segment_that_was_given_up(path: Path) -> None:
    first = min(path.glob("*.log"))
    with DirectoryPartition(path) as partition:
        content = first.read_bytes()
        partition.delete_before(partition.bounds().end - 1)
    first.write_bytes(content)


@pytest.mark.parametrize(
    "leave",
    [
        _longer,
        _half_a_state,
        _truncated,
        _begun_later,
        _without_its_last_segment,
        _without_its_index,
        _without_its_list,
        _with_an_older_list,
        _with_a_damaged_list,
    ],
)
def test_what_is_not_clean_is_brought_in_order_under_the_lock(closed: Path, leave: Callable[[Path], None]) -> None:
    leave(closed)
    holder = busy(closed)
    try:
        with pytest.raises(PartitionBusy):
            DirectoryPartition(closed, IMPATIENT)
    finally:
        os.close(holder)
    with DirectoryPartition(closed) as partition:
        end = partition.bounds().end
        assert partition.append(encode([b"on"])).base_offset == end


@pytest.mark.parametrize(
    "leave", [_unfinished, _without_its_first_segment, _with_a_stranger, _with_a_segment_that_was_given_up]
)
def test_what_lies_beside_the_log_and_its_closed_segments_cost_an_opening_nothing(
    closed: Path, leave: Callable[[Path], None]
) -> None:
    """A reader of a closed segment looks at its file; recovery and the steward remove what is left over."""
    leave(closed)
    holder = busy(closed)
    try:
        with DirectoryPartition(closed, IMPATIENT) as partition:
            bounds = partition.bounds()
            lost: list[Damage] = []
            readable = [record.offset for record in partition.records(on_damage=lost.append)]
    finally:
        os.close(holder)
    named = [offset for damage in lost for offset in range(damage.offset, damage.next_offset)]
    assert sorted([*readable, *named]) == list(range(bounds.start, bounds.end))
    assert bool(named) == (leave is _without_its_first_segment)


def test_records_that_are_not_durable_yet_are_made_so(open_directory: OpenDirectory) -> None:
    abandoned = open_directory(PartitionConfig(sync="never"))
    abandoned.append(encode([b"a"]))
    with open_directory() as partition:
        assert partition.bounds().durable_end == 1


def test_a_state_from_before_the_last_roll_is_not_clean(open_directory: OpenDirectory) -> None:
    with open_directory() as partition:
        state = (partition.path / STATE_FILE).read_bytes()
    with open_directory() as partition:
        partition.append(encode([b"a"]))
        partition.roll()
    (partition.path / STATE_FILE).write_bytes(state)  # what a power loss may leave: the state is synced at the close
    with open_directory() as partition:
        assert [record.value for record in partition.records()] == [b"a"]


def test_a_state_from_before_the_first_roll_is_not_clean(open_directory: OpenDirectory) -> None:
    with open_directory() as partition:
        partition.append(encode([b"first"]))
    state = (partition.path / STATE_FILE).read_bytes()
    with DirectoryPartition(partition.path) as again:
        again.roll()
        again.append(encode([b"second"]))
    (partition.path / STATE_FILE).write_bytes(state)  # as a loss of power leaves it, which is synced at the end alone
    with DirectoryPartition(partition.path) as after:
        assert [record.value for record in after.records()] == [b"first", b"second"]


def test_an_exclusive_handle_keeps_the_lock_until_it_is_closed(tmp_path: Path) -> None:
    with DirectoryPartition(tmp_path, IMPATIENT) as other, DirectoryPartition(tmp_path, exclusive=True) as owner:
        other.append(encode([b"before"]))
        owner.append(encode([b"mine"]))
        with pytest.raises(PartitionBusy) as caught:
            other.append(encode([b"refused"]))
        assert caught.value.pid == os.getpid()
        owner.append(encode([b"mine too"]))
        assert [record.value for record in other.records()] == [b"before", b"mine", b"mine too"]
        owner.close()
        other.append(encode([b"after"]))
        assert other.bounds().end == 4
