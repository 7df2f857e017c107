"""Specimens: small logs whose every record is known, to be damaged and then held against what was written."""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from headwater.core.config import Compression, PartitionConfig
from headwater.core.errors import Damaged
from headwater.log import Appended, Damage, DirectoryPartition, Disk, Frame, Identity, encode
from tests.faults.violation import Kind, Violation

FIRST_TIME = 1_700_000_000_000_000_000
SMALL = PartitionConfig(segment_bytes=16 * 1024, index_interval=512)


def values(first: int, counts: Sequence[int], size: int = 40) -> list[list[bytes]]:
    """Numbered values for frames with so many records each."""
    groups = []
    for count in counts:
        groups.append([f"record {number:08d} ".encode().ljust(size, b".") for number in range(first, first + count)])
        first += count
    return groups


def frames(
    first: int,
    counts: Sequence[int],
    *,
    size: int = 40,
    identity: Identity | None = None,
    compression: Compression = "none",
) -> list[Frame]:
    """The same as frames."""
    return [
        encode(group, timestamps=FIRST_TIME + first, identity=identity, compression=compression, threshold=0)
        for group in values(first, counts, size)
    ]


class UnsyncedDisk(Disk):
    """The real disk without its slowest part: where files are edited and no power is lost, the page cache will do."""

    def sync(self, fd: int) -> None:
        """Nothing to wait for."""

    def sync_directory(self, path: Path) -> None:
        """Nothing to wait for."""


def open_log(path: Path, config: PartitionConfig = SMALL) -> DirectoryPartition:
    """The partition at `path`, on an unsynced disk."""
    return DirectoryPartition(path, config, disk=UnsyncedDisk())


class Author:
    """Appends numbered records to a partition and remembers, by offset, which were acknowledged."""

    def __init__(self, partition: DirectoryPartition, number: int = 0, size: int = 40) -> None:
        self.partition = partition
        self.written: dict[int, bytes] = {}
        self._number = number
        self._size = size

    def append(self, *counts: int, identity: Identity | None = None, compression: Compression = "none") -> Appended:
        """Append frames with so many records each, as one group."""
        group = frames(self._number, counts, size=self._size, identity=identity, compression=compression)
        done = self.partition.append(group)
        content = chain.from_iterable(values(self._number, counts, self._size))
        self.written.update(zip(range(done.base_offset, done.end_offset), content, strict=True))
        self._number += sum(counts)
        return done


def copy(source: Path, target: Path) -> Path:
    """A copy of a partition's directory, in the place of whatever is there."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


def flip(file: Path, bit: int) -> None:
    """Change one bit of a file in place."""
    with file.open("r+b") as stream:
        stream.seek(bit // 8)
        byte = stream.read(1)[0]
        stream.seek(bit // 8)
        stream.write(bytes([byte ^ 1 << bit % 8]))


def compare(
    partition: DirectoryPartition, written: Mapping[int, bytes], damaged: Container[int] = ()
) -> Iterator[Violation]:
    """Hold what a partition serves against what was written there.

    Only offsets in `damaged` may be missing. Missing records must be named to a reader who asks, and stop one who
    does not.
    """
    named: list[Damage] = []
    served: dict[int, bytes] = {}
    last = -1
    for record in partition.records(on_damage=named.append):
        if record.offset <= last:
            yield Violation(Kind.REORDERED, f"offset {record.offset} came after {last}")
        last = max(last, record.offset)
        served[record.offset] = record.value
    yield from _wrong(served, written)
    lost = {offset for damage in named for offset in range(damage.offset, damage.next_offset)}
    for offset in written:
        if offset not in served and (offset not in damaged or offset not in lost):
            how = "named, though its bytes are good" if offset in lost else "and not named"
            yield Violation(Kind.LOST_WRITE, f"offset {offset} is missing, {how}")
    try:
        unaware = sum(frame.header.record_count for frame in partition.frames())
    except Damaged:
        if not named:
            yield Violation(Kind.LOST_WRITE, "a read of everything raises, though there is no damage")
    else:
        if named:
            yield Violation(Kind.FALSE_SUCCESS, f"a read of everything gives {unaware} records and hides {named[0]}")


def _wrong(served: Mapping[int, bytes], written: Mapping[int, bytes]) -> Iterator[Violation]:
    for offset, value in served.items():
        if offset not in written:
            yield Violation(Kind.UNSEEN, f"offset {offset} has {value[:16]!r}, which nobody wrote there")
        elif value != written[offset]:
            yield Violation(Kind.SERVED_DAMAGE, f"offset {offset} has {value[:16]!r}, not {written[offset][:16]!r}")


def goes_on(author: Author, least: int) -> Iterator[Violation]:
    """Append once more: the new record must take an offset that never was another's."""
    done = author.append(1)
    if done.base_offset < least:
        yield Violation(Kind.DUPLICATE, f"offset {done.base_offset} was given out again: {least} records were safe")
