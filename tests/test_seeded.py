"""A seed fixes what Headwater draws at random: the same calls write the same files, to the byte."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import headwater as hw
from headwater.log import DirectoryPartition, MemoryPartition, encode
from headwater.log.entropy import random_bytes
from headwater.testing import ManualClock, RecordingDisk, seeded
from tests.faults.workload import Workload

WORK = """
import sys
from pathlib import Path
from tests.test_seeded import work
print(work(Path(sys.argv[1]), 7))
"""


def work(root: Path, seed: int) -> str:
    """The digest of everything that a workload does to its files, and of what it leaves there."""
    root.mkdir()
    disk = RecordingDisk(root)
    with seeded(seed):
        Workload(root / "partition", disk, Random(1), lambda _: None).run(60)
    digest = hashlib.sha256()
    for step in disk.trace:
        digest.update(repr(step).encode())
    for path in sorted((root / "partition").rglob("*")):
        if path.is_file() and not path.name.endswith("lock"):  # those say who held them last, and when
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_files_to_the_byte(tmp_path: Path) -> None:
    assert work(tmp_path / "one", 7) == work(tmp_path / "two", 7)


def test_another_seed_gives_others(tmp_path: Path) -> None:
    assert work(tmp_path / "one", 7) != work(tmp_path / "two", 8)


@pytest.mark.parametrize("hashes", ["1", "2"])
def test_another_process_writes_the_same_files(tmp_path: Path, hashes: str) -> None:
    command = [sys.executable, "-c", WORK, str(tmp_path / "theirs")]
    printed = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": hashes}, capture_output=True, check=True)
    assert printed.stdout.decode().strip() == work(tmp_path / "ours", 7)


def test_a_memory_partition_is_the_same_too() -> None:
    stored: list[bytes] = []
    for _ in range(2):
        with seeded("memory"), MemoryPartition(clock=ManualClock()) as partition:
            partition.append(encode([b"one"], timestamps=1))
            stored += [bytes(frame.data) for frame in partition.frames(0)]
    assert stored[0] == stored[1]


def test_topics_have_the_same_uuids() -> None:
    found = []
    for _ in range(2):
        with seeded(1), hw.open("memory:") as store:
            found.append(store.create_topic("orders").info.uuid)
    assert found[0] == found[1]


def test_without_a_seed_nothing_repeats(tmp_path: Path) -> None:
    with seeded(1):
        first = random_bytes(16)
    assert random_bytes(16) != first
    with DirectoryPartition(tmp_path / "a") as a, DirectoryPartition(tmp_path / "b") as b:
        a.append(encode([b"same"], timestamps=1))
        b.append(encode([b"same"], timestamps=1))
    one, other = (next((tmp_path / name).glob("*.log")).read_bytes() for name in "ab")
    assert one != other


def test_an_inner_seed_leaves_the_outer_one_where_it_was() -> None:
    with seeded(1):
        expected = [random_bytes(4) for _ in range(2)]
    with seeded(1):
        drawn = [random_bytes(4)]
        with seeded(2):
            random_bytes(4)
        drawn.append(random_bytes(4))
    assert drawn == expected


def test_the_seed_ends_with_its_block_whatever_happens() -> None:
    with pytest.raises(KeyError), seeded(1):
        raise KeyError
    with seeded(1):
        first = random_bytes(16)
    assert random_bytes(16) != first
