"""The part of a partition that a consumer behind a broker holds, as its cursor reads it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from headwater.client.fetched_partition import FetchedPartition, Held
from headwater.log import DirectoryPartition, encode
from headwater.streams.catalog import partition_uuid
from headwater.streams.topic import TopicPartition

UUID = bytes(range(16))


def test_what_comes_twice_is_read_once(tmp_path: Path) -> None:
    """A question and a stream may both bring the same, whole or in part."""
    with DirectoryPartition(tmp_path, uuid=partition_uuid(UUID, 0)) as partition:
        for count in (2, 9, 3):
            partition.append(encode([b"x"] * count))

        def held(start: int, end: int) -> Held:
            content = b"".join(memoryview(frame.data) for frame in partition.frames(start, end))
            return Held(start, end, 0, content, None, False)

        source = FetchedPartition(TopicPartition("orders", 0), (UUID, 0), partition.schemas, lambda *_: None)
        source.cursor = cast("Any", SimpleNamespace(frames=[], next=2, records=[]))
        source.held.extend([held(2, 11), held(2, 11), held(2, 14)])
        frames = source.read(2, max_bytes=1 << 20)
        assert [frame.header.base_offset for frame in frames] == [2, 11]
