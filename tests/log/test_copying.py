"""Copies: frames of one replica become frames of another, the same records at the same offsets."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headwater import PartitionError
from headwater.core.config import PartitionConfig
from headwater.log import Appended, DirectoryPartition, Identity, encode
from headwater.log.write.role import NotLeading
from headwater.testing import ManualClock, RecordingDisk

UUID = bytes(range(16))


def opened(path: Path, **options: object) -> DirectoryPartition:
    return DirectoryPartition(path, PartitionConfig(**options), uuid=UUID)  # type: ignore[arg-type]


@pytest.fixture
def leader(tmp_path: Path) -> DirectoryPartition:
    """Frames of two epochs, one of a producer, and a group of two frames."""
    partition = opened(tmp_path / "leader")
    partition.lead(3)
    partition.append(encode([b"0", b"1"], keys=[b"k", None], timestamps=5))
    partition.append(encode([b"2"], identity=Identity(b"p" * 16, 1, 0)))
    partition.lead(7)
    partition.append([encode([b"3"]), encode([b"4", b"5"], compression="zstd")])
    return partition


def test_a_copy_has_the_same_records_epochs_and_groups(leader: DirectoryPartition, tmp_path: Path) -> None:
    follower = opened(tmp_path / "follower")
    follower.copy(list(leader.frames()))
    assert list(follower.records()) == list(leader.records())
    for mine, theirs in zip(follower.frames(), leader.frames(), strict=True):
        assert mine.data[44:] == theirs.data[44:]  # all but the stamp, which is about the file that it is in
        for field in ("base_offset", "leader_epoch", "group", "body_crc", "producer_id", "base_sequence"):
            assert getattr(mine.header, field) == getattr(theirs.header, field)
    assert follower.bounds() == leader.bounds()


def test_copies_survive_reopening_and_go_over_segments(leader: DirectoryPartition, tmp_path: Path) -> None:
    with opened(tmp_path / "follower", segment_bytes=4096) as follower:
        for _ in range(20):
            leader.append(encode([b"x" * 700]))
        follower.copy(list(leader.frames(0, 10)))
    with opened(tmp_path / "follower", segment_bytes=4096) as follower:
        follower.copy(list(leader.frames(10)))
        assert follower.statistics().segments > 1
        assert list(follower.records()) == list(leader.records())


def test_the_role_decides_who_may_write(leader: DirectoryPartition, tmp_path: Path) -> None:
    frames = list(leader.frames())
    partition = opened(tmp_path / "replica")
    with pytest.raises(NotLeading), partition.leading():
        pass  # a partition that is not replicated has no leader
    partition.follow(3)
    with pytest.raises(NotLeading):
        partition.append(encode([b"x"]))
    with pytest.raises(NotLeading), partition.following(2):
        pass
    with partition.following(3):
        partition.copy(frames[:1])
    partition.lead(8)
    with pytest.raises(NotLeading):
        partition.copy(frames[1:])
    with pytest.raises(NotLeading), partition.leading(3):
        pass
    with partition.leading(8):
        partition.append(encode([b"x"]))
    assert [frame.header.leader_epoch for frame in partition.frames()] == [3, 8]


def test_a_copy_is_durable_whatever_the_mode(leader: DirectoryPartition, tmp_path: Path) -> None:
    follower = opened(tmp_path / "follower", sync="never", segment_bytes=4096)
    leader.append(encode([bytes(4000)]))
    follower.copy(list(leader.frames()))
    assert follower.statistics().segments > 1
    assert follower.bounds() == leader.bounds()


def test_a_copy_knows_the_producers(leader: DirectoryPartition, tmp_path: Path) -> None:
    follower = opened(tmp_path / "follower")
    follower.copy(list(leader.frames()))
    again = encode([b"2"], identity=Identity(b"p" * 16, 1, 0))
    assert follower.append(again) == Appended(2, 3, duplicate=True)
    assert follower.append(encode([b"6"], identity=Identity(b"p" * 16, 1, 1))) == Appended(6, 7)


def test_what_the_leader_has_taken_is_not_judged_again(tmp_path: Path) -> None:
    """A leader that has forgotten a producer takes its first number anew: a follower that has not does so too."""
    clock = ManualClock()
    config = PartitionConfig(producer_expiry=60.0)
    leader = DirectoryPartition(tmp_path / "leader", config, uuid=UUID, clock=clock)
    leader.append(encode([b"0"], identity=Identity(b"p" * 16, 1, 0)))
    clock.advance(3600.0)
    leader.roll()
    leader.append(encode([b"1"], identity=Identity(b"p" * 16, 1, 0)))
    follower = opened(tmp_path / "follower")
    follower.copy(list(leader.frames()))
    assert [record.value for record in follower.records()] == [b"0", b"1"]


def test_a_copy_that_does_not_fit_is_refused(leader: DirectoryPartition, tmp_path: Path) -> None:
    follower = opened(tmp_path / "follower")
    with pytest.raises(PartitionError, match="does not fit"):
        follower.copy(list(leader.frames(2)))
    with pytest.raises(PartitionError, match="within a group"):
        follower.copy(list(leader.frames(0, 4)))
    assert follower.bounds().end == 0
    follower.copy(list(leader.frames(0, 3)))
    with pytest.raises(PartitionError, match="does not fit"):
        follower.copy(list(leader.frames(0, 3)))
    assert follower.bounds().end == 3


def test_a_follower_that_was_cut_goes_on_copying(leader: DirectoryPartition, tmp_path: Path) -> None:
    follower = opened(tmp_path / "follower")
    follower.copy(list(leader.frames(0, 3)))
    follower.append(encode([b"stray"]))
    follower.truncate(3)
    follower.copy(list(leader.frames(3)))
    assert list(follower.records()) == list(leader.records())


def test_a_follower_that_is_too_late_goes_on_where_the_leader_begins(
    leader: DirectoryPartition, tmp_path: Path
) -> None:
    with opened(tmp_path / "follower") as follower:
        follower.copy(list(leader.frames(0, 2)))
        leader.roll()
        leader.delete_before(6)
        leader.append(encode([b"6"]))
        follower.restart(6, leader.producers_at(6))
        assert follower.bounds() == (6, 6, 6)
    with opened(tmp_path / "follower") as follower:
        follower.copy(list(leader.frames()))
        assert list(follower.records()) == list(leader.records())
        assert follower.append(encode([b"2"], identity=Identity(b"p" * 16, 1, 0))) == Appended(2, 3, duplicate=True)
        assert follower.append(encode([b"7"], identity=Identity(b"p" * 16, 1, 1))) == Appended(7, 8)


@pytest.mark.parametrize("seed", range(60))
def test_a_power_loss_while_it_restarts_leaves_the_old_log_or_the_new_one(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    (tmp_path / "disk").mkdir()
    disk = RecordingDisk(tmp_path / "disk")
    with DirectoryPartition(tmp_path / "disk" / "log", uuid=UUID, disk=disk) as follower:
        follower.append(encode([b"0", b"1"]))
        begun = len(disk.trace)
        follower.restart(9, follower.producers_at(2))
    disk.power_loss(tmp_path / "after", chance, after=chance.randrange(begun - 1, len(disk.trace)), torn=True)
    with opened(tmp_path / "after" / "log") as after:
        start, end, _ = after.bounds()
        assert (start, end) in [(0, 2), (0, 9), (9, 9)]
        assert after.append(encode([b"next"])).base_offset == end


def test_what_was_appended_before_is_durable_also_if_there_is_nothing_to_copy(tmp_path: Path) -> None:
    with opened(tmp_path / "deposed", sync="never") as partition:
        partition.append(encode([b"as the leader"]))
        assert partition.bounds().durable_end == 0
        partition.copy([])
        assert partition.bounds().durable_end == partition.bounds().end == 1
