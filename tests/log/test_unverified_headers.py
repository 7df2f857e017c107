"""A frame's header is true of its body only if the body is whole: no reader goes by it otherwise."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from headwater import FrameDamaged
from headwater.core.config import PartitionConfig
from headwater.log import DirectoryPartition, Identity, encode
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, FrameFile, Segment, seed_of
from headwater.log.recover.report import Damage

UUID = bytes(range(16))
ATTRIBUTES, DELTA, MAX_TIMESTAMP, PRODUCER, SEQUENCE = 44, 60, 72, 80, 96
WRITER = b"w" * 16


def opened(path: Path, **options: object) -> DirectoryPartition:
    return DirectoryPartition(path, PartitionConfig(**options), uuid=UUID)  # type: ignore[arg-type]


def positions(log: Path) -> list[int]:
    """Return the positions at which the frames of a segment begin."""
    with log.open("rb") as file:
        return [
            at for at, _ in FrameFile(file.fileno(), log.stat().st_size, seed_of(UUID), log).walk(SEGMENT_HEADER_BYTES)
        ]


def overwrite(log: Path, frame: int, field: int, layout: str, value: int) -> None:
    """Let a frame say something else, without its checksums."""
    at = positions(log)[frame] + field
    with log.open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(layout, value))


def first_log(path: Path) -> Path:
    return min(path.glob("*.log"))


@pytest.mark.parametrize("delta", [0, 3, 7, 1_000_000])
@pytest.mark.parametrize("closed", [False, True])
def test_records_do_not_vanish_when_a_frame_says_that_it_has_fewer(tmp_path: Path, delta: int, closed: bool) -> None:
    with opened(tmp_path) as partition:
        for number in range(3):
            partition.append(encode([b"%d" % (10 * number + i) for i in range(10)]))
        if closed:
            partition.roll()
    overwrite(first_log(tmp_path), 1, DELTA, "<I", delta)
    with opened(tmp_path) as partition:
        for start in range(30):
            told: list[Damage] = []
            frames = list(partition.frames(start, on_damage=told.append))
            seen = [record.offset for frame in frames for record in frame.records(start)]
            lost = [offset for damage in told for offset in range(damage.offset, damage.next_offset)]
            assert sorted([*seen, *lost]) == list(range(start, 30))
            if start < 20:
                with pytest.raises(FrameDamaged):
                    list(partition.frames(start))


@pytest.mark.parametrize("indexed", [False, True])
def test_a_time_is_not_found_in_a_frame_that_only_says_so(tmp_path: Path, indexed: bool) -> None:
    with opened(tmp_path) as partition:
        for number in range(6):
            partition.append(encode([b"x"], timestamps=1000 * (number + 1)))
        partition.roll()
    overwrite(first_log(tmp_path), 1, MAX_TIMESTAMP, "<q", 1 << 60)
    if not indexed:
        first_log(tmp_path).with_suffix(".index").unlink()
    with opened(tmp_path) as partition:
        assert [partition.offset_at(time) for time in (1000, 2500, 5500)] == [0, 2, 5]
        assert partition.offset_at(6001) is None


@pytest.mark.parametrize("kept", [False, True])
def test_a_writer_is_not_taken_for_further_than_it_is(tmp_path: Path, kept: bool) -> None:
    """Else all it writes from then on would be taken for repeats, and be acknowledged without being written."""
    with opened(tmp_path) as partition:
        for number in range(3):
            partition.append(encode([b"%d" % number], identity=Identity(WRITER, 0, number, forever=True)))
        if kept:
            partition.roll()
    overwrite(first_log(tmp_path), 1, SEQUENCE, "<q", 1 << 40)
    for snapshot in tmp_path.glob("*.producers"):
        snapshot.unlink()
    with opened(tmp_path) as partition:
        assert partition.writer_sequence(WRITER) == 2
        assert partition.append(encode([b"3"], identity=Identity(WRITER, 0, 3, forever=True))).base_offset == 3
        assert partition.append(encode([b"0"], identity=Identity(WRITER, 0, 0, forever=True))).duplicate


def test_a_retry_is_known_though_another_frame_says_it_is_that_producers(tmp_path: Path) -> None:
    with opened(tmp_path) as partition:
        partition.append(encode([b"other"]))
        for number in range(2):
            partition.append(encode([b"%d" % number], identity=Identity(b"p" * 16, 1, number)))
    log = first_log(tmp_path)
    at = positions(log)[0] + PRODUCER
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"p" * 16 + struct.pack("<qI", 77, 9))
    with opened(tmp_path) as partition:
        assert partition.append(encode([b"1"], identity=Identity(b"p" * 16, 1, 1))).duplicate
        assert partition.append(encode([b"2"], identity=Identity(b"p" * 16, 1, 2))).base_offset == 3


@pytest.mark.parametrize(("field", "value"), [(ATTRIBUTES, 1 << 5), (DELTA, 1 << 20)])
def test_a_segment_is_not_taken_for_compacted_because_of_a_damaged_frame(
    tmp_path: Path, field: int, value: int
) -> None:
    with opened(tmp_path) as partition:
        for number in range(4):
            partition.append(encode([b"%d" % number]))
        partition.roll()
    log = first_log(tmp_path)
    overwrite(log, 1, field, "<I", value)
    with log.open("r+b") as file:
        file.write(b"damaged!")
    with opened(tmp_path) as partition:
        assert [record.offset for record in partition.records(2)] == [2, 3]
        assert not Segment.read(log).header.compacted


def test_offsets_go_on_where_they_were_though_the_last_frame_says_otherwise(tmp_path: Path) -> None:
    """The last segment is one that compaction wrote, and what came after it is gone, the state too."""
    with opened(tmp_path) as partition:
        for number in range(6):
            partition.append(encode([b"%d" % number], keys=[b"k%d" % (number // 2)]))
        partition.roll()
        partition.compact()
        end = partition.bounds().end
    log = first_log(tmp_path)
    for path in [tmp_path / "state", *sorted(tmp_path.glob("*.log"))[1:]]:
        path.unlink()
    overwrite(log, len(positions(log)) - 1, DELTA, "<I", 1 << 30)
    with opened(tmp_path) as partition:
        assert partition.bounds().end <= end


def test_good_frames_behind_two_bad_ones_are_found(tmp_path: Path) -> None:
    """The first only says that it reaches far, the second has lost its stamp."""
    with opened(tmp_path) as partition:
        for number in range(6):
            partition.append(encode([b"%d" % number], timestamps=1000 * (number + 1)))
        partition.roll()
    log = first_log(tmp_path)
    overwrite(log, 1, DELTA, "<I", 1 << 20)
    at = positions(log)[2]
    with log.open("r+b") as file:
        file.seek(at + 20)
        file.write(b"\xff\xff")
    log.with_suffix(".index").unlink()
    with opened(tmp_path) as partition:
        assert partition.offset_at(5000) == 4
        assert [record.offset for record in partition.records(3)] == [3, 4, 5]
