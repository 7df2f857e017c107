"""The disk: what is to be written is written whole, in calls that the system is good at."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.log import Disk
from headwater.log.files.disk import IOV_MAX

LARGEST = 256 * 1024
SIZES = st.sampled_from((0, 1, 104, 4096, LARGEST - 1, LARGEST, LARGEST + 1, 3 * LARGEST + 5))


class Watched(Disk):
    """Notes how much each call writes; it can write short."""

    def __init__(self, most: int | None = None) -> None:
        self.calls: list[int] = []
        self._most = most

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        content = b"".join(buffers)
        self.calls.append(len(content))
        assert len(buffers) <= IOV_MAX
        return super().pwritev(fd, [content[: self._most]], position)


@given(st.lists(SIZES, min_size=1, max_size=6), st.integers(0, 9))
def test_buffers_of_any_size_are_written_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], position: int
) -> None:
    path = tmp_path_factory.mktemp("disk") / "file"
    check(Watched(), path, [os.urandom(size) for size in sizes], position)


@pytest.mark.parametrize("most", [1000, LARGEST // 2 + 1])
def test_short_writes_are_gone_on_with(tmp_path: Path, most: int) -> None:
    check(Watched(most), tmp_path / "file", [os.urandom(size) for size in (7, 3 * LARGEST, 11, LARGEST)], 5)


def test_many_small_buffers_are_written(tmp_path: Path) -> None:
    check(Watched(), tmp_path / "file", [os.urandom(3) for _ in range(3 * IOV_MAX + 1)], 0)


def check(disk: Watched, path: Path, buffers: list[bytes], position: int) -> None:
    content = b"".join(buffers)
    fd = disk.create(path)
    try:
        disk.writev(fd, [memoryview(buffer) for buffer in buffers], position, len(content))
        assert path.read_bytes() == (bytes(position) + content if content else b"")
        assert max(disk.calls) <= LARGEST
        disk.write(fd, content, 0)
        assert os.pread(fd, len(content), 0) == content
        assert max(disk.calls) <= LARGEST
    finally:
        disk.close(fd)
