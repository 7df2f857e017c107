"""Truncation: everything from an offset on is gone, and the offsets are given out again."""

from __future__ import annotations

from contextlib import suppress
from errno import EIO
from pathlib import Path
from random import Random

import pytest

from headwater import OffsetOutOfRange, PartitionConfig, WriteFailed
from headwater.core.config import Sync
from headwater.log import Appended, DirectoryPartition, Partition, encode
from headwater.log.files.segment import SEGMENT_HEADER_BYTES
from headwater.log.format.frame import BODY_START
from headwater.log.recover.report import Damage
from headwater.testing import Device, FailingDisk, Failpoint, ManualClock, RecordingDisk, write_image
from tests.support.backends import OpenDirectory, OpenPartition
from tests.support.power import values_after_power_loss


@pytest.fixture
def partition(open_partition: OpenPartition) -> Partition:
    partition = open_partition()
    fill(partition)
    return partition


def fill(partition: Partition) -> None:
    """Twelve records, in frames of three, in two segments."""
    for base in range(0, 12, 3):
        if base == 6:
            partition.roll()
        partition.append(encode([b"%d" % offset for offset in range(base, base + 3)], timestamps=base))


def values(partition: Partition) -> list[bytes]:
    return [record.value for record in partition.records()]


@pytest.mark.parametrize("offset", range(12))
def test_truncation_keeps_exactly_what_is_before(partition: Partition, offset: int) -> None:
    partition.truncate(offset)
    assert partition.bounds() == (0, offset, offset)
    assert values(partition) == [b"%d" % number for number in range(offset)]


@pytest.mark.parametrize("offset", range(12))
def test_appends_take_the_truncated_offsets(partition: Partition, offset: int) -> None:
    partition.truncate(offset)
    assert partition.append(encode([b"new", b"newer"])) == Appended(offset, offset + 2)
    assert values(partition) == [*(b"%d" % number for number in range(offset)), b"new", b"newer"]


def test_truncating_at_the_end_changes_nothing(partition: Partition) -> None:
    segments = partition.statistics().segments
    partition.truncate(12)
    assert partition.bounds().end == 12
    assert partition.statistics().segments == segments


@pytest.mark.parametrize("offset", [-1, 13, 1 << 40])
def test_truncating_where_nothing_is_is_refused(partition: Partition, offset: int) -> None:
    with pytest.raises(OffsetOutOfRange):
        partition.truncate(offset)
    assert partition.bounds().end == 12


def test_truncating_below_the_start_is_refused(partition: Partition) -> None:
    partition.delete_before(7)
    with pytest.raises(OffsetOutOfRange):
        partition.truncate(6)
    partition.truncate(7)
    assert partition.bounds() == (7, 7, 7)
    assert partition.append(encode([b"next"])) == Appended(7, 8)
    assert values(partition) == [b"next"]


def test_truncation_again_and_again(partition: Partition) -> None:
    for offset in range(11, 0, -1):
        partition.truncate(offset)
        partition.append(encode([b"x"] * 2))
        partition.truncate(offset)
        assert values(partition) == [b"%d" % number for number in range(offset)]


def test_a_truncation_in_a_compressed_frame_keeps_the_compression(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode([b"x" * 5000, b"y" * 5000], compression="zstd"))
    partition.truncate(1)
    (frame,) = partition.frames()
    assert frame.compression == "zstd"
    assert values(partition) == [b"x" * 5000]


def test_a_truncation_in_an_atomic_group_cuts_it(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append([encode([b"a", b"b"]), encode([b"c", b"d"])])
    partition.truncate(3)
    assert values(partition) == [b"a", b"b", b"c"]


def test_a_truncation_in_a_compacted_segment_keeps_what_is_before(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.append(encode([b"%d" % number for number in range(6)], keys=[b"a", b"b", b"a", b"c", b"b", b"d"]))
    partition.roll()
    partition.append(encode([b"6"]))
    partition.compact()
    assert [record.offset for record in partition.records()] == [2, 3, 4, 5, 6]
    partition.truncate(5)
    assert [record.offset for record in partition.records()] == [2, 3, 4]
    partition.truncate(1)
    assert values(partition) == []
    assert partition.append(encode([b"new"])) == Appended(1, 2)


def test_a_truncation_is_there_after_reopening(open_directory: OpenDirectory) -> None:
    with open_directory() as partition:
        partition.append(encode([b"a", b"b", b"c"]))
        partition.truncate(2)
    with open_directory() as partition:
        assert values(partition) == [b"a", b"b"]
        assert partition.append(encode([b"d"])) == Appended(2, 3)


def test_another_handle_sees_a_truncation(open_directory: OpenDirectory) -> None:
    partition, other = open_directory(), open_directory()
    partition.append(encode([b"a", b"b", b"c"]))
    assert values(other) == [b"a", b"b", b"c"]
    partition.truncate(1)
    assert values(other) == [b"a"]
    assert other.append(encode([b"d"])) == Appended(1, 2)
    assert values(partition) == [b"a", b"d"]


@pytest.mark.parametrize("byte", [BODY_START + 15, BODY_START + 19, 200])
def test_a_damaged_frame_is_not_asked_how_many_records_it_has(open_directory: OpenDirectory, byte: int) -> None:
    """Two of these bytes belong to that number, or to one that goes with it."""
    partition = open_directory()
    for base in range(0, 9, 3):
        partition.append(encode([b"%d" % offset for offset in range(base, base + 3)]))
    (log,) = partition.path.glob("*.log")
    frames = list(partition.frames())
    position = SEGMENT_HEADER_BYTES + frames[0].header.length
    with log.open("r+b") as file:
        file.seek(position + byte)
        (before,) = file.read(1)
        file.seek(position + byte)
        file.write(bytes([before ^ 1]))
    partition.truncate(8)
    assert partition.bounds().end == 8
    damage: list[Damage] = []
    kept = [record.value for record in partition.records(on_damage=damage.append)]
    assert kept == [b"0", b"1", b"2", b"6", b"7"]
    assert [(stretch.offset, stretch.next_offset) for stretch in damage] == [(3, 6)]


def test_a_truncation_whose_end_was_not_durable_takes_nothing_that_is_acknowledged_later(tmp_path: Path) -> None:
    """The mark of a truncation that was carried out must not come back with the power, and cut what came since."""

    def truncate(root: Path, *failpoints: Failpoint) -> tuple[RecordingDisk, FailingDisk]:
        root.mkdir()
        recording = RecordingDisk(root)
        disk = FailingDisk(recording, *failpoints)
        with DirectoryPartition(root / "partition", disk=disk, clock=ManualClock()) as partition:
            partition.append(encode([b"%d" % number for number in range(10)]))
            with suppress(WriteFailed):
                partition.truncate(5)
            partition.append(encode([b"acknowledged"]))
        return recording, disk

    done = truncate(tmp_path / "undisturbed")[1].operations
    removed = next(
        number for number, call in enumerate(done) if (call.operation, call.path.name) == ("unlink", "truncate")
    )
    synced = next(number for number in range(removed, len(done)) if done[number].operation == "sync_directory")
    recording, _ = truncate(tmp_path / "disturbed", Failpoint(number=synced + 1, error=EIO))
    image = Device().follow(recording.trace).image(Random(1), names="oldest", data="newest")
    write_image(image, tmp_path / "after")
    with DirectoryPartition(tmp_path / "after" / "partition") as partition:
        assert [record.value for record in partition.records()][-1] == b"acknowledged"


@pytest.mark.parametrize("sync", ["always", "never"])
@pytest.mark.parametrize("offset", [3, 5, 10])
def test_a_power_loss_in_a_truncation_leaves_all_records_or_those_before(
    tmp_path: Path, offset: int, sync: Sync
) -> None:
    """Without syncs it may take records at the end, as at any time, and leaves no gap."""
    recording = RecordingDisk(tmp_path)
    config = PartitionConfig(sync=sync)
    with DirectoryPartition(tmp_path / "partition", config, disk=recording, clock=ManualClock()) as partition:
        fill(partition)
        began = len(recording.trace)
        partition.truncate(offset)
        ended = len(recording.trace)
    everything = [b"%d" % number for number in range(12)]
    for number, left in values_after_power_loss(recording.trace[:ended], began, tmp_path):
        if number == ended:
            assert left == everything[:offset]
        elif sync == "always":
            assert left in (everything, everything[:offset])
        else:
            assert left == everything[: len(left)]


def test_a_truncation_that_a_dead_writer_decided_withstands_a_power_loss_while_it_is_carried_out(
    tmp_path: Path,
) -> None:
    """Recovery makes the name of the mark durable before it removes anything on its word."""

    class Died(BaseException):
        """The end of the writer."""

    class Mortal(FailingDisk):
        """Ends its writer when the name of the mark is to become durable."""

        decided = died = False

        def _ask(self, operation: str, path: Path, size: int = 0) -> None:  # noqa: ARG002 - of a write
            self.died |= self.decided and operation == "sync_directory"
            self.decided |= operation == "rename" and path.name.startswith("truncate")
            if self.died:
                raise Died

    recording = RecordingDisk(tmp_path)
    partition = DirectoryPartition(tmp_path / "partition", disk=Mortal(recording), clock=ManualClock())
    fill(partition)
    with pytest.raises(Died):
        partition.truncate(6)
    with suppress(Died):
        partition.close()
    began = len(recording.trace)
    DirectoryPartition(tmp_path / "partition", disk=recording, clock=ManualClock()).close()
    everything = [b"%d" % number for number in range(12)]
    for number, left in values_after_power_loss(recording.trace, began, tmp_path):
        assert left in (everything, everything[:6])
        assert number < len(recording.trace) or left == everything[:6]
