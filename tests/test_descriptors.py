"""Descriptors: a store holds no more of them than it needs at the moment, however much there is in it."""

from __future__ import annotations

import os

from headwater import PartitionConfig
from headwater.log.encode import encode
from tests.backends import OpenDirectory


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


def test_reading_a_log_of_many_segments_takes_no_descriptor_for_each(open_directory: OpenDirectory) -> None:
    partition = open_directory(PartitionConfig(segment_bytes=4096, sync="never"))
    for number in range(40):
        partition.append(encode([bytes([number]) * 3000]))
    assert partition.statistics().segments >= 40
    before = descriptors()
    frames = list(partition.frames())
    assert len(frames) == 40
    assert descriptors() <= before + 1
    partition.close()
    assert [frame.batch().num_rows for frame in frames] == [1] * 40  # what is held stays readable
