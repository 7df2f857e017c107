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
from tests.log.test_seeded import work
print(work(Path(sys.argv[1]), int(sys.argv[2])))
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


def work_alone(root: Path, seed: int, hashes: str) -> str:
    """The same in a process of its own: here, stewards and clients of other tests may draw from the seed as well."""
    command = [sys.executable, "-c", WORK, str(root), str(seed)]
    printed = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": hashes}, capture_output=True, check=True)
    return printed.stdout.decode().strip()


def test_the_same_seed_gives_the_same_files_to_the_byte(tmp_path: Path) -> None:
    first = work_alone(tmp_path / "first", 7, "1")
    assert work_alone(tmp_path / "again", 7, "1") == first
    assert work_alone(tmp_path / "with other hashes", 7, "2") == first
    assert work_alone(tmp_path / "with another seed", 8, "1") != first


def test_a_memory_partition_is_the_same_too() -> None:
    stored: list[bytes] = []
    for _ in range(2):
        with seeded("memory"), MemoryPartition(clock=ManualClock()) as partition:
            partition.append(encode([b"one"], timestamps=1))
            stored += [bytes(frame.data) for frame in partition.frames(0)]
    assert stored[0] == stored[1]


def test_topics_have_the_same_uuids() -> None:
    uuids = []
    for _ in range(2):
        with seeded(1), hw.open("memory:") as store:
            uuids.append(store.create_topic("orders").info.uuid)
    assert uuids[0] == uuids[1]


def test_without_a_seed_nothing_repeats(tmp_path: Path) -> None:
    with seeded(1):
        first = random_bytes(16)
    assert random_bytes(16) != first
    with DirectoryPartition(tmp_path / "a") as a, DirectoryPartition(tmp_path / "b") as b:
        a.append(encode([b"same"], timestamps=1))
        b.append(encode([b"same"], timestamps=1))
    content, other_content = (next((tmp_path / name).glob("*.log")).read_bytes() for name in "ab")
    assert content != other_content


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
