"""The index of a segment: a sparse table that serves offsets and times with one binary search.

Each entry says: the frame with this base offset begins at this position, and no record before it in the segment is
newer than this timestamp. Entries carry their own checksum, begun with the log's uuid, so that an entry of another
file, a torn one or a zeroed one is noticed when it is used. Indexes are never synced: losing one costs a walk over the
frame headers, no data.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, overload

from crc32c import crc32c

from headwater.core.errors import IndexDamaged
from headwater.log.files.disk import open_plain
from headwater.log.format.frame import FrameHeader

INDEX_MAGIC: Final = b"HWINDEX1"
_HEADER = struct.Struct("<8s16sqqI")
INDEX_HEADER_BYTES: Final = 64
_ENTRY = struct.Struct("<qqqI")
ENTRY_BYTES: Final = 32
NEVER: Final = -(1 << 63)
"""Before any timestamp."""


class IndexHeader(NamedTuple):
    """`covered` is the length of the log when it was sealed and indexed to its end, 0 while it grows."""

    log: bytes
    covered: int
    max_timestamp: int
    entries: int

    def pack(self) -> bytes:
        """The header's bytes."""
        content = _HEADER.pack(INDEX_MAGIC, *self)
        checksum: int = crc32c(content)
        return (content + checksum.to_bytes(4, "little")).ljust(INDEX_HEADER_BYTES, b"\0")

    @classmethod
    def unpack(cls, content: bytes) -> IndexHeader:
        """The header in these bytes, verified."""
        size = _HEADER.size
        if len(content) < INDEX_HEADER_BYTES or content[:8] != INDEX_MAGIC:
            raise IndexDamaged("not an index of this version")
        if crc32c(content[:size]) != int.from_bytes(content[size : size + 4], "little"):
            raise IndexDamaged("the header of an index does not match its checksum")
        return cls(*_HEADER.unpack_from(content)[1:])


class IndexEntry(NamedTuple):
    """One place in a segment; `max_timestamp` is that of all frames before it there."""

    offset: int
    position: int
    max_timestamp: int


def pack_entry(log: bytes, entry: IndexEntry) -> bytes:
    """The entry's bytes in the index of `log`."""
    content = _ENTRY.pack(*entry, 0)[:24]
    checksum: int = crc32c(content, crc32c(log))
    return (content + checksum.to_bytes(4, "little")).ljust(ENTRY_BYTES, b"\0")


_FRAMES_APART: Final = 4
"""Passing over so many frames takes a reader less time than an entry takes a writer."""


class IndexBuilder:
    """Chooses which frames get an entry: the first, and then one for each `interval` bytes of log.

    Where frames are large there are fewer: one for each four of them.
    """

    def __init__(self, interval: int, *, position: int = 0, max_timestamp: int = NEVER) -> None:
        self._interval = interval
        self.position = position
        """The position of the last indexed frame; 0 when there is none."""
        self.max_timestamp = max_timestamp
        self.entries: list[IndexEntry] = []

    def add(self, position: int, length: int, offset: int, max_timestamp: int) -> None:
        """The next frame of the segment."""
        if not self.position or position - self.position >= max(self._interval, _FRAMES_APART * length):
            self.entries.append(IndexEntry(offset, position, self.max_timestamp))
            self.position = position
        self.max_timestamp = max(self.max_timestamp, max_timestamp)

    def add_all(self, frames: Iterable[tuple[int, FrameHeader]]) -> IndexBuilder:
        """Frames found by a walk."""
        for position, header in frames:
            self.add(position, header.length, header.base_offset, header.max_timestamp)
        return self

    def pack(self, log: bytes, covered: int) -> bytes:
        """A whole index file."""
        header = IndexHeader(log, covered, self.max_timestamp, len(self.entries))
        return header.pack() + b"".join(pack_entry(log, entry) for entry in self.entries)


class IndexReader(Sequence[IndexEntry]):
    """The entries of an open index, read one by one as the search needs them."""

    def __init__(self, fd: int, log: bytes, entries: int) -> None:
        self._fd = fd
        self._seed = crc32c(log)
        self._entries = entries

    def __len__(self) -> int:
        return self._entries

    @overload
    def __getitem__(self, number: int) -> IndexEntry: ...
    @overload
    def __getitem__(self, number: slice) -> list[IndexEntry]: ...
    def __getitem__(self, number: int | slice) -> IndexEntry | list[IndexEntry]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(self._entries))]
        if not 0 <= number < self._entries:
            raise IndexError(number)
        content = os.pread(self._fd, ENTRY_BYTES, INDEX_HEADER_BYTES + number * ENTRY_BYTES)
        if len(content) < ENTRY_BYTES or crc32c(content[:24], self._seed) != int.from_bytes(content[24:28], "little"):
            raise IndexDamaged(f"entry {number} of an index does not match its checksum")
        offset, position, max_timestamp, _ = _ENTRY.unpack_from(content)
        return IndexEntry(offset, position, max_timestamp)

    def at_offset(self, offset: int) -> IndexEntry | None:
        """The last indexed frame that begins at or before `offset`."""
        number = bisect_right(self, offset, key=lambda entry: entry.offset)
        return self[number - 1] if number else None

    def at_time(self, timestamp: int) -> IndexEntry | None:
        """The last indexed frame before which every record is older than `timestamp`."""
        number = bisect_left(self, timestamp, key=lambda entry: entry.max_timestamp)
        return self[number - 1] if number else None


@contextmanager
def open_index(path: Path, log: bytes, entries: int | None = None) -> Iterator[IndexReader]:
    """The index at `path`, for as long as the block lasts; raises IndexDamaged unless it is that of `log`.

    `entries` is how many there are, which for a growing segment only the state knows.
    """
    try:
        fd = open_plain(path)
    except OSError as error:
        raise IndexDamaged(f"no index: {error}") from error
    try:
        header = IndexHeader.unpack(os.pread(fd, INDEX_HEADER_BYTES, 0))
        if header.log != log:
            raise IndexDamaged("an index belongs to another file")
        if entries is None and not header.covered:
            raise IndexDamaged("an index does not cover its segment")
        yield IndexReader(fd, log, header.entries if entries is None else entries)
    finally:
        os.close(fd)
