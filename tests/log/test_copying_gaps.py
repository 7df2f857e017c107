"""Copies of a log that was compacted: records are missing, and only those that compaction has removed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from headwater import PartitionError
from headwater.core.config import PartitionConfig
from headwater.core.record import Record
from headwater.log import Appended, DirectoryPartition, Disk, Identity, encode
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, list_segments, seed_of
from headwater.log.maintain.check import Check
from headwater.log.recover.report import Damage
from headwater.testing import RecordingDisk
from tests.support.disks import HastyDisk

UUID = bytes(range(16))
HASTY = HastyDisk()
CONFIG = PartitionConfig(segment_bytes=4096, index_interval=128)
Truth = dict[int, Record]
"""Every record that was ever appended, by its offset."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def opened(stack: ExitStack, path: Path, disk: Disk = HASTY) -> DirectoryPartition:
    return stack.enter_context(DirectoryPartition(path, CONFIG, uuid=UUID, disk=disk))


def fill(leader: DirectoryPartition, chance: random.Random, truth: Truth, appends: int) -> None:
    """Records of few keys, in frames of many sizes and epochs that rise."""
    for _ in range(appends):
        epoch = len(truth) // 8 + 1
        leader.lead(epoch)
        count = chance.choice([1, 1, 2, 7])
        keys = [b"%d" % chance.choice([chance.randrange(6), chance.randrange(500)]) for _ in range(count)]
        start = leader.bounds().end
        values = [chance.randbytes(chance.choice([5, 200])) for _ in range(count)]
        leader.append(encode(values, keys=keys, headers=[{"epoch": b"%d" % epoch}] * count))
        truth.update({record.offset: record for record in leader.records(start)})


def compact(leader: DirectoryPartition) -> int:
    """Compact all that is closed; up to where that is."""
    leader.compact(markers_until=0)
    return max((closed.end for closed in leader.closed()), default=0)


def newest(truth: Truth, end: int) -> dict[bytes | None, int]:
    return {record.key: offset for offset, record in sorted(truth.items()) if offset < end}


def check(copy: DirectoryPartition, truth: Truth) -> list[Record]:
    """Whatever is there is as it was appended, wherever one begins to read, and nothing is taken for damage."""
    end = copy.bounds().end
    records = {record.offset: record for record in copy.records()}
    assert all(truth[offset] == record for offset, record in records.items())
    for start in range(0, end, 29):
        assert [record.offset for record in copy.records(start, end)] == [
            offset for offset in records if offset >= start
        ]
    assert [finding for finding in Check(copy.path).run() if finding.kind == "damage"] == []
    return list(records.values())


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_has_what_compaction_has_left(stack: ExitStack, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    leader = opened(stack, tmp_path / "leader")
    follower = opened(stack, tmp_path / "follower")
    truth: Truth = {}
    until = joined = 0
    for _ in range(12):
        fill(leader, chance, truth, chance.choice([0, 5, 20]))
        if chance.random() < 0.5:
            until = compact(leader)
            joined = max(joined, until)
        at, end = follower.bounds().end, leader.bounds().end
        if at < end:
            frames = list(leader.frames(at))
            del frames[chance.randint(1, len(frames)) :]
            follower.copy(frames, compacted_until=until, joined_until=joined)
            assert follower.bounds().end == frames[-1].header.next_offset
        if chance.random() < 0.2:
            joined = max(joined, compact(follower))
        if chance.random() < 0.2:
            target = chance.randint(0, follower.bounds().end)  # also in the middle of a gap
            for frame in list(follower.frames(max(target - 1, 0), target) if target else ()):
                target = frame.header.base_offset if frame.header.next_offset > target else target
            target = target if target >= joined else 0
            follower.truncate(target)
            assert follower.bounds().end == target
        if chance.random() < 0.3:
            follower.close()
            follower = opened(stack, tmp_path / "follower")
    if follower.bounds().end < leader.bounds().end:
        follower.copy(list(leader.frames(follower.bounds().end)), compacted_until=until, joined_until=joined)
    for copy in (leader, follower):
        assert {record.offset for record in check(copy, truth)} >= set(newest(truth, copy.bounds().end).values())
        for frame in copy.frames():
            assert {epoch_of(record.offset, truth) for record in frame.records()} == {frame.header.leader_epoch}


def epoch_of(offset: int, truth: Truth) -> int:
    """In which epoch it was appended."""
    return int(truth[offset].headers["epoch"])


def gapped(stack: ExitStack, tmp_path: Path, disk: Disk = HASTY) -> tuple[DirectoryPartition, Truth, int]:
    """A copy in one growing segment, with gaps; what was ever appended; and up to where that was compacted."""
    chance = random.Random(5)
    leader = opened(stack, tmp_path / "origin")
    truth: Truth = {}
    fill(leader, chance, truth, 90)
    until = compact(leader)
    path = tmp_path / "disk" / "copy"
    copy = DirectoryPartition(path, PartitionConfig(index_interval=128), uuid=UUID, disk=disk)
    stack.enter_context(copy)
    frames = list(leader.frames())
    assert sum(after.header.base_offset > before.header.next_offset for before, after in pairwise(frames)) > 5
    for frame in frames:
        copy.copy([frame], compacted_until=until)
    return copy, truth, until


def test_only_what_compaction_has_removed_may_be_missing(stack: ExitStack, tmp_path: Path) -> None:
    leader = opened(stack, tmp_path / "leader")
    follower = opened(stack, tmp_path / "follower")
    for number in range(6):
        leader.append(encode([b"%d" % number, b"-"], keys=[b"k", b"k"]))
    follower.copy(list(leader.frames(0, 2)))
    for until in (0, 2, 5):
        with pytest.raises(PartitionError, match="a copy of offset 6 does not fit behind 2"):
            follower.copy(list(leader.frames(6, 8)), compacted_until=until)
    with pytest.raises(PartitionError, match="does not fit"):
        follower.copy(list(leader.frames(0, 2)), compacted_until=12)  # all of it is there already
    follower.copy(list(leader.frames(6, 8)), compacted_until=6)
    assert [record.offset for record in follower.records()] == [0, 1, 6, 7]
    with pytest.raises(PartitionError, match="does not fit"):
        follower.copy([frame for frame in leader.frames(8) if frame.header.base_offset != 8], compacted_until=8)


@pytest.mark.parametrize("seed", range(6))
def test_gaps_survive_a_power_loss(stack: ExitStack, tmp_path: Path, seed: int) -> None:
    (tmp_path / "disk").mkdir()
    disk = RecordingDisk(tmp_path / "disk")
    copy, truth, _ = gapped(stack, tmp_path, disk)
    whole = check(copy, truth)
    copy.truncate(copy.bounds().end - 20)
    chance = random.Random(seed)
    disk.power_loss(tmp_path / "after", chance, after=chance.randrange(len(disk.trace)), torn=True)
    with DirectoryPartition(tmp_path / "after" / "copy", CONFIG, uuid=UUID) as after:
        assert check(after, truth) == [record for record in whole if record.offset < after.bounds().end]


def test_a_log_can_end_before_within_and_behind_a_gap(stack: ExitStack, tmp_path: Path) -> None:
    copy, truth, _ = gapped(stack, tmp_path)
    whole = check(copy, truth)
    gaps = [
        (before.header.next_offset, after.header.base_offset)
        for before, after in pairwise(copy.frames())
        if after.header.base_offset > before.header.next_offset
    ]
    for first, after in reversed(gaps):
        for target in (after + 1, after, (first + after) // 2, first):
            copy.truncate(target)
            assert copy.bounds().end == target
            assert check(copy, truth) == [record for record in whole if record.offset < target]


def test_a_lost_state_and_a_lost_index_are_made_anew(stack: ExitStack, tmp_path: Path) -> None:
    copy, truth, _ = gapped(stack, tmp_path)
    bounds, whole = copy.bounds(), check(copy, truth)
    copy.close()
    for path in [copy.path / "state", *copy.path.glob("*.index")]:
        path.unlink()
    with DirectoryPartition(copy.path, CONFIG, uuid=UUID, disk=HASTY) as again:
        assert again.bounds() == bounds
        assert check(again, truth) == whole


@pytest.mark.parametrize("seed", range(12))
def test_what_is_damaged_beside_a_gap_is_told(stack: ExitStack, tmp_path: Path, seed: int) -> None:
    """Whatever byte of whatever frame changes, and wherever a reader begins: it sees a record, or hears of it."""
    chance = random.Random(seed)
    copy, truth, _ = gapped(stack, tmp_path)
    whole = [record.offset for record in copy.records()]
    copy.roll()
    copy.close()
    segment = list_segments(copy.path, UUID)[0][0]
    position = damage(segment, chance)
    with DirectoryPartition(copy.path, CONFIG, uuid=UUID, disk=HASTY) as after:
        for start in (0, *chance.sample(range(after.bounds().end), 12)):
            told: list[Damage] = []
            seen: list[Record] = []
            for frame in after.frames(start, on_damage=told.append):
                seen += frame.records(start)
            assert all(truth[record.offset] == record for record in seen)
            missing = {offset for offset in whole if offset >= start} - {record.offset for record in seen}
            assert all(any(damage.offset <= offset < damage.next_offset for damage in told) for offset in missing), (
                position
            )


def damage(segment: Segment, chance: random.Random) -> int:
    """Change a byte of a frame's header, or of its body; where."""
    with segment.path.open("r+b") as log:
        file = FrameFile(log.fileno(), segment.path.stat().st_size, seed_of(UUID), segment.path)
        frame = chance.choice([at for at, _ in file.walk(SEGMENT_HEADER_BYTES)])
        position = frame + chance.choice([chance.randrange(112), 60, 61, chance.randrange(112, 128)])
        log.seek(position)
        byte = log.read(1)[0]
        log.seek(position)
        log.write(bytes([byte ^ 1 << chance.randrange(8)]))
    return position


def test_who_has_written_what_is_known_where_frames_have_forgotten_it(stack: ExitStack, tmp_path: Path) -> None:
    leader = opened(stack, tmp_path / "leader")
    producer, writer = b"p" * 16, b"w" * 16
    for number in range(8):
        leader.append(encode([b"%d" % number], keys=[b"k"], identity=Identity(producer, 1, number)))
        leader.append(encode([b"%d" % number], keys=[b"k"], identity=Identity(writer, 0, number, forever=True)))
    leader.roll()
    until = compact(leader)
    assert all(frame.header.producer_id == bytes(16) for frame in leader.frames())
    for number in (8, 9):
        leader.append(encode([b"%d" % number], keys=[b"k"], identity=Identity(producer, 1, number)))
    follower = opened(stack, tmp_path / "follower")
    follower.learn_producers(leader.producers_at(until))
    follower.copy(list(leader.frames()), compacted_until=until)
    for _ in range(2):
        for number in (5, 8, 9):
            retry = encode([b"%d" % number], keys=[b"k"], identity=Identity(producer, 1, number))
            assert follower.append(retry) == leader.append(retry)
            assert leader.append(retry).duplicate
        assert follower.writer_sequence(writer) == 7
        follower.close()
        follower = opened(stack, tmp_path / "follower")
    assert follower.append(encode([b"new"], keys=[b"k"], identity=Identity(producer, 1, 10))) == Appended(18, 19)
