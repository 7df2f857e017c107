"""A replica's log on disk: epochs, the high watermark that is kept, and who may write."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.cluster.replication.durable_log import EPOCHS_FILE, WATERMARK_FILE, DurableLog, EpochStart, OffsetSpan
from headwater.cluster.replication.replica import EpochEnd, NotLeading
from headwater.core.config import PartitionConfig, StewardConfig
from headwater.core.options import DAY
from headwater.log import DirectoryPartition, Disk, encode
from headwater.log.files.disk import REAL_DISK
from headwater.testing import ManualClock, RecordingDisk

UUID = bytes(range(16))


_opened: list[DirectoryPartition] = []


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    """Close in the end what a test has opened."""
    yield
    while _opened:
        _opened.pop().close()


def opened(path: Path, disk: Disk = REAL_DISK) -> DurableLog:
    _opened.append(DirectoryPartition(path, uuid=UUID, disk=disk))
    return DurableLog(_opened[-1], disk)


def append(log: DurableLog, count: int = 1) -> None:
    with log.leading():
        for _ in range(count):
            log.partition.append(encode([b"x"]))
    log.refresh()


def lead(log: DurableLog, epoch: int, count: int) -> None:
    log.lead(epoch)
    append(log, count)


def epochs_in_frames(log: DurableLog) -> list[EpochStart]:
    epochs: list[EpochStart] = []
    for frame in log.partition.frames():
        if not epochs or frame.header.leader_epoch > epochs[-1].epoch:
            epochs.append(EpochStart(frame.header.leader_epoch, frame.header.base_offset))
    return epochs


def check_epochs(log: DurableLog) -> None:
    """Check that the log knows the epochs that its frames name."""
    starts = epochs_in_frames(log)
    for frame in log.partition.frames():
        for offset in range(frame.header.base_offset, frame.header.next_offset):
            assert log.epoch_before(offset + 1) == frame.header.leader_epoch
    for number, (epoch, _) in enumerate(starts):
        end = starts[number + 1].start if number + 1 < len(starts) else log.end
        assert log.end_of(epoch) == EpochEnd(epoch, end)


def test_epochs_are_known_again(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert (log.epoch_before(0), log.end_of(9)) == (0, EpochEnd(0, 0))
    lead(log, 2, 3)
    log.lead(4)  # in which nothing is appended
    lead(log, 5, 2)
    for either in (log, opened(tmp_path)):
        check_epochs(either)
        assert [either.end_of(epoch) for epoch in (1, 2, 4, 5, 8)] == [(0, 0), (2, 3), (2, 3), (5, 5), (5, 5)]
        assert [either.epoch_before(offset) for offset in (0, 1, 3, 4, 5, 6)] == [0, 2, 2, 5, 5, 0]


@pytest.mark.parametrize("damaged", [b"", b"[[9, 0]]\n00000000\n"])
def test_a_damaged_file_of_epochs_is_made_anew(tmp_path: Path, damaged: bytes) -> None:
    log = opened(tmp_path)
    lead(log, 2, 3)
    lead(log, 5, 2)
    log.partition.close()
    (tmp_path / EPOCHS_FILE).write_bytes(damaged)
    check_epochs(opened(tmp_path))
    (tmp_path / EPOCHS_FILE).unlink()
    check_epochs(opened(tmp_path))


def test_only_a_leader_appends_and_only_its_follower_copies(tmp_path: Path) -> None:
    leader, follower = opened(tmp_path / "leader"), opened(tmp_path / "follower")
    with pytest.raises(NotLeading), leader.leading():
        pass
    lead(leader, 1, 4)
    frames = leader.frames(OffsetSpan(0, 4), 1 << 20)
    with pytest.raises(NotLeading):
        follower.copy(1, frames)
    follower.follow(1)
    follower.copy(1, frames)
    follower.follow(2)
    with pytest.raises(NotLeading):
        follower.copy(1, frames)
    with pytest.raises(NotLeading):
        follower.cut(1, 0)
    follower.add(frames)
    assert follower.end == 4
    check_epochs(follower)
    leader.follow(2)
    with pytest.raises(NotLeading), leader.leading():
        pass


def test_what_is_cut_off_is_forgotten_with_its_epochs(tmp_path: Path) -> None:
    log = opened(tmp_path)
    lead(log, 1, 3)
    lead(log, 2, 3)
    log.follow(3)
    log.truncate(2)
    assert (log.end, log.epoch_before(2), log.end_of(2)) == (2, 1, EpochEnd(1, 2))
    log.cut(3, 2)
    lead(log, 4, 1)
    for either in (log, opened(tmp_path)):
        check_epochs(either)
        assert either.end_of(3) == EpochEnd(1, 2)


def test_a_log_that_ends_below_its_watermark_is_short(tmp_path: Path) -> None:
    log = opened(tmp_path)
    lead(log, 1, 5)
    log.keep_watermark(4)
    assert (opened(tmp_path).watermark, opened(tmp_path).short) == (4, False)
    log.partition.truncate(3)
    assert opened(tmp_path).short
    (tmp_path / WATERMARK_FILE).write_bytes(b"99\n00000000\n")
    assert opened(tmp_path).watermark == 0


@pytest.mark.parametrize("seed", range(40))
def test_a_power_loss_leaves_epochs_that_are_true(tmp_path: Path, seed: int) -> None:
    """Whatever a power loss leaves of the files: the epochs are those of the frames, and the mark is not beyond."""
    chance = random.Random(seed)
    (tmp_path / "disk").mkdir()
    disk = RecordingDisk(tmp_path / "disk")
    log = opened(tmp_path / "disk" / "log", disk)
    epoch = 0
    for _ in range(chance.randint(3, 12)):
        epoch += chance.randint(1, 2)
        if chance.random() < 0.5 or not log.end:
            lead(log, epoch, chance.randint(0, 3))
        else:
            log.follow(epoch)
            log.cut(epoch, chance.randint(log.watermark, log.end))
            log.refresh()
        log.keep_watermark(chance.randint(log.watermark, log.end))
    for number in range(8):
        target = tmp_path / f"after{number}"
        disk.power_loss(target, chance, after=chance.randrange(len(disk.trace)), torn=True)
        if (target / "log").exists():
            after = opened(target / "log")
            check_epochs(after)
            assert not after.short


def test_who_led_in_another_epoch_appends_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.lead(2)
    log.follow(3)
    log.lead(4)
    with pytest.raises(NotLeading), log.leading(2):
        append(log)
    with log.leading(4):
        log.partition.append(encode([b"x"]))
    assert log.partition.bounds().end == 1


@pytest.mark.parametrize(
    ("acknowledged", "unread", "steward", "start"),
    [
        (6, 6, StewardConfig(), 5),  # all but the growing segment
        (3, 6, StewardConfig(), 3),  # what is not acknowledged stays
        (6, 2, StewardConfig(), 2),  # so does what a group has yet to read
        (6, 0, StewardConfig(), 0),  # and everything, when nobody knows what that is
        (6, 2, StewardConfig(force_after=0.0), 5),
        (6, 0, StewardConfig(force_bytes=0), 5),
        (3, 0, StewardConfig(force_bytes=0), 3),
    ],
)
def test_retention_spares_what_is_not_acknowledged_or_not_read(
    tmp_path: Path, acknowledged: int, unread: int, steward: StewardConfig, start: int
) -> None:
    config = PartitionConfig(segment_bytes=4096, retention_bytes=0)
    log = DurableLog(DirectoryPartition(tmp_path, config, uuid=UUID))
    log.lead(1)
    for _ in range(6):
        log.partition.append(encode([bytes(3000)]))  # a segment each
    log.retain(acknowledged, unread, steward)
    assert log.partition.bounds().start == start


def test_a_clock_that_is_set_deletes_neither_segments_nor_delete_markers(tmp_path: Path) -> None:
    clock = ManualClock()
    config = PartitionConfig(retention_age=DAY, delete_grace=DAY)
    partition = DirectoryPartition(tmp_path, config, uuid=UUID, clock=clock)
    _opened.append(partition)
    log = DurableLog(partition)
    log.lead(1)
    for value in (b"old", None, b"another"):
        partition.append(encode([value], keys=[b"key" if value != b"another" else b"other"]))
        partition.roll()
    log.refresh()
    log.keep_watermark(3)
    log.forgettable = 3
    clock.advance(60)
    for jump in (365 * DAY, -366 * DAY, DAY):
        clock.jump(jump)
        log.retain(3, 3, StewardConfig(force_after=DAY))
        log.compact()
        assert [record.offset for record in partition.records()] == [1, 2]
        clock.advance(60)
    clock.advance(DAY)
    log.compact()
    assert [record.offset for record in partition.records()] == [2]
    log.retain(3, 3, StewardConfig())
    assert partition.bounds().start == 3
