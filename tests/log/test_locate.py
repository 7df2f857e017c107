"""The places of frames: a reader finds there what the partition itself reads, and passes nothing over."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import PartitionConfig
from headwater.client.direct import read_extents
from headwater.core.errors import FrameDamaged
from headwater.core.record import Record
from headwater.log import DirectoryPartition, Extent, MemoryPartition, encode
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, list_segments, seed_of
from headwater.log.format.frame import BODY, HEADER_BYTES, stored_frame
from headwater.log.format.verify import verified
from headwater.v1 import broker_pb2 as pb
from headwater.wire.packing import View
from tests.support.backends import temporary

CONFIG: Final = PartitionConfig(segment_bytes=4096, index_interval=512, delete_grace=0)


def read(extent: Extent) -> View | None:
    return read_extents([pb.Extent(**extent._asdict())])


def followed(partition: DirectoryPartition, start: int, end: int, budget: int) -> Iterator[list[Record]]:
    """The records in [start, end), extent by extent, up to where no place is told; raises FrameDamaged."""
    seed = seed_of(partition._state().partition)
    while start < end and (extent_and_end := partition.locate(start, end, budget)) is not None:
        extent, after = extent_and_end
        content = read(extent)
        assert content is not None
        assert start < after <= end
        records: list[Record] = []
        for located in verified(content, seed, start):
            frame = stored_frame(*located, partition.schemas.get)
            records += [record for record in frame.records(start) if record.offset < end]
        yield records
        start = after


@contextmanager
def filled(chance: random.Random, *, compacted: bool) -> Iterator[DirectoryPartition]:
    """A partition of random frames, in several segments."""
    with temporary("directory", CONFIG) as partition:
        assert isinstance(partition, DirectoryPartition)
        for _ in range(chance.randrange(1, 60)):
            keys = [b"%d" % chance.randrange(8) for _ in range(chance.randrange(1, 6))]
            partition.append(encode([chance.randbytes(chance.randrange(60)) for _ in keys], keys=keys))
            if chance.random() < 0.1:
                partition.roll()
        if compacted:
            partition.compact()
        yield partition


@given(seed=st.integers(0, 1 << 32), compacted=st.booleans())
def test_all_records_lie_where_it_is_told(seed: int, compacted: bool) -> None:
    chance = random.Random(seed)
    with filled(chance, compacted=compacted) as partition:
        truth = list(partition.records())
        last = partition.bounds().end
        for _ in range(8):
            start = chance.randrange(last)
            end = chance.randrange(start + 1, last + 1)
            budget = chance.choice((1, 500, 100_000))
            expected = [record for record in truth if start <= record.offset < end]
            read_back = [record for part in followed(partition, start, end, budget) for record in part]
            assert read_back == expected[: len(read_back)]
            if not compacted:
                assert read_back == expected


@given(seed=st.integers(0, 1 << 32), compacted=st.booleans())
def test_whatever_is_damaged_nothing_is_passed_over_and_nothing_wrong_is_read(seed: int, compacted: bool) -> None:
    chance = random.Random(seed)
    with filled(chance, compacted=compacted) as partition:
        truth = list(partition.records())
        last = partition.bounds().end
        segments, _ = list_segments(partition.path, partition._state().partition)
        chosen = chance.choice(segments).path
        content = bytearray(chosen.read_bytes())
        if len(content) == SEGMENT_HEADER_BYTES:
            return
        content[chance.randrange(SEGMENT_HEADER_BYTES, len(content))] ^= 1 << chance.randrange(8)
        with chosen.open("r+b") as file:
            file.write(content)
        for _ in range(8):
            start = chance.randrange(last)
            expected = [record for record in truth if record.offset >= start]
            read_back: list[Record] = []
            try:
                for records in followed(partition, start, last, chance.choice((1, 500, 100_000))):
                    read_back += records
            except FrameDamaged:
                pass
            assert read_back == expected[: len(read_back)]


def test_a_segment_whose_end_is_missing_is_not_told(tmp_path: Path) -> None:
    with DirectoryPartition(tmp_path, CONFIG) as partition:
        for number in range(4):
            partition.append(encode([b"%d" % number]))
        partition.roll()
        partition.append(encode([b"last"]))
        first = min(tmp_path.glob("*.log"))
        frames = list(partition.frames(0, 4))
        with first.open("r+b") as file:
            file.truncate(first.stat().st_size - frames[-1].header.length)
        assert partition.locate(0, 3, 1) is not None
        assert partition.locate(0, 5, 100_000) is None


def test_a_frame_that_is_missing_is_not_passed_over(tmp_path: Path) -> None:
    with DirectoryPartition(tmp_path, CONFIG) as partition:
        for number in range(4):
            partition.append(encode([b"%d" % number]))
        partition.roll()
        file = min(tmp_path.glob("*.log"))
        size = next(partition.frames()).header.length
        content = file.read_bytes()
        second = SEGMENT_HEADER_BYTES + size
        file.write_bytes(content[:second] + content[second + size :])
        assert partition.locate(0, 4, 100_000) is None
        assert partition.locate(0, 4, 1) is None


def test_a_frame_that_says_it_ends_before_an_offset_is_not_believed(tmp_path: Path) -> None:
    """The stamp does not vouch for how far a frame reaches. Only one that is whole ends before a gap."""
    with DirectoryPartition(tmp_path, CONFIG) as partition:
        partition.append(encode([b"a", b"b", b"c"]))
        partition.append(encode([b"d"]))
        file = min(tmp_path.glob("*.log"))
        content = bytearray(file.read_bytes())
        delta = SEGMENT_HEADER_BYTES + HEADER_BYTES - BODY.size + struct.calcsize("<IQI")
        assert content[delta] == 2
        content[delta] = 0
        with file.open("r+b") as opened:
            opened.write(content)
        assert partition.locate(1, 4, 100_000) is None
        assert partition.locate(3, 4, 100_000) is not None


def test_what_is_not_there_has_no_place(tmp_path: Path) -> None:
    with DirectoryPartition(tmp_path, CONFIG) as partition:
        partition.append(encode([b"a", b"b"]))
        partition.roll()
        partition.append(encode([b"c"]))
        partition.delete_before(2)
        assert partition.locate(0, 3, 1) is None
        assert partition.locate(2, 4, 1) is None
        assert partition.locate(3, 3, 1) is None
        assert partition.locate(2, 3, 1) is not None
    with MemoryPartition() as partition:
        partition.append(encode([b"a"]))
        assert partition.locate(0, 1, 1) is None


def test_a_copy_of_the_log_that_went_another_way_is_not_read(tmp_path: Path) -> None:
    """It has the same name, and frames of the same offsets in the same places, all of them whole."""
    with DirectoryPartition(tmp_path / "log", CONFIG) as partition:
        partition.append(encode([b"common"], timestamps=1))
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    extents: list[tuple[Extent, int]] = []
    for name in ("log", "copy"):
        with DirectoryPartition(tmp_path / name, CONFIG) as partition:
            partition.append(encode([name.encode()], timestamps=2))
            partition.append(encode([b"same"], timestamps=3))
            located = partition.locate(1, 3, 100_000)
            assert located is not None
            extents.append(located)
    (mine, _), (other, _) = extents
    assert (mine.log, mine.position, mine.length) == (other.log, other.position, other.length)
    assert read(mine) is not None
    assert read(mine._replace(file=other.file)) is None


@pytest.mark.parametrize("how", ["gone", "another", "shorter", "none of ours", "not a file", "huge", "cut"])
def test_a_file_that_is_another_one_by_now_is_not_read(tmp_path: Path, how: str) -> None:
    with DirectoryPartition(tmp_path / "log", CONFIG) as partition:
        partition.append(encode([b"a"]))
        located = partition.locate(0, 1, 1)
        assert located is not None
        extent, _ = located
    file = Path(extent.file)
    assert read(extent) is not None
    if how == "another":
        extent = extent._replace(log=b"x" * 16)
    elif how == "huge":
        extent = extent._replace(length=1 << 62)
    elif how == "cut":
        extent = extent._replace(length=extent.length - 8)
    elif how == "shorter":
        file.write_bytes(file.read_bytes()[:-1])
    elif how == "none of ours":
        file.write_bytes(b"x" * 10_000)
    else:
        file.unlink()
        if how == "not a file":
            file.mkdir()
    assert read(extent) is None
