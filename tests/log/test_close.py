"""Closing: a closed handle says so, and what was read through it stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater import PartitionClosed
from headwater.log import Partition, encode
from tests.support.backends import OpenPartition


def append_all(partition: Partition) -> None:
    """Append, and raise the error of an append: `append_all` returns it as an outcome."""
    for outcome in partition.append_all([[encode([b"x"])]]):
        if isinstance(outcome, Exception):
            raise outcome


USES: dict[str, Callable[[Partition], object]] = {
    "append": lambda partition: partition.append(encode([b"x"])),
    "append_all": append_all,
    "sync": lambda partition: partition.sync(),
    "writer_sequence": lambda partition: partition.writer_sequence(b"w" * 16),
    "bounds": lambda partition: partition.bounds(),
    "frames": lambda partition: partition.frames(),
    "read": lambda partition: partition.read(0),
    "locate": lambda partition: partition.locate(0, 1, 1),
    "records": lambda partition: list(partition.records()),
    "scan": lambda partition: partition.scan(),
    "offset_at": lambda partition: partition.offset_at(0),
    "segments": lambda partition: partition.segments(),
    "roll": lambda partition: partition.roll(),
    "truncate": lambda partition: partition.truncate(0),
    "delete_before": lambda partition: partition.delete_before(0),
    "compact": lambda partition: partition.compact(),
    "remove_expired": lambda partition: partition.remove_expired(0),
    "retain": lambda partition: partition.retain(),
    "statistics": lambda partition: partition.statistics(),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_partition_cannot_be_used(open_partition: OpenPartition, use: str) -> None:
    partition = open_partition()
    partition.append(encode([b"a"]))
    partition.close()
    with pytest.raises(PartitionClosed, match="open it again"):
        USES[use](partition)


def test_every_use_is_tried() -> None:
    public = {name for name in vars(Partition) if not name.startswith("_")}
    assert public - {"close", "configure"} == set(USES)


def test_closing_twice_does_no_harm(open_partition: OpenPartition) -> None:
    partition = open_partition()
    partition.close()
    partition.close()


def test_the_end_of_a_block_closes(open_partition: OpenPartition) -> None:
    with open_partition() as partition:
        partition.append(encode([b"a"]))
    with pytest.raises(PartitionClosed):
        partition.bounds()


def test_a_reader_ends_with_the_handle(open_partition: OpenPartition) -> None:
    partition = open_partition()
    for _ in range(3):
        partition.append(encode([b"a"]))
        partition.roll()
    frames = partition.frames()
    next(frames)
    partition.close()
    with pytest.raises(PartitionClosed):
        list(frames)
