"""The list of a partition's closed segments: what must be there, and where to look for an offset or a time.

Without it a lost file would look like one that was never written. The list is durable before a segment counts as
closed, so a file that is missing, shorter, or another one than the list names is damage, with known offsets. Entries
have a fixed size and are sorted, so that a search takes a few reads however many segments there are.

A roll adds one entry in place, and compaction overwrites one; every other change replaces the file. Its `generation`
rises with each replacement: a list that is older than the state says was brought back from another time.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, overload

from crc32c import crc32c

from headwater.core.errors import SegmentListDamaged
from headwater.log.files.disk import Disk, open_plain
from headwater.log.files.index import NEVER
from headwater.log.files.segment import SEGMENT_MAGIC, Segment, SegmentHeader, seed_of

LIST_FILE: Final = "segments"
LIST_MAGIC: Final = b"HWSLIST1"
ENTRY_BYTES: Final = 128
"""The size of an entry, and of the header: a power of two, so that none crosses a page."""
_HEADER = struct.Struct("<8s16sQ")
_ENTRY = struct.Struct("<qq16sqqqqqq16sqII")
_AT_ONCE: Final = 512
"""The number of entries that a walk over all of them reads at once."""

# Flags.
COMPACTED: Final = 1
"""The segment was written at once, and may leave out offsets."""
FORMER_COMPACTED: Final = 2
"""The same of the file that it replaces."""
UNCUT: Final = 4
"""Bytes of a failed sync may lie behind the segment's end."""

UNKNOWN: Final = -1
"""In the place of a number of records that nobody has counted."""
FOREVER: Final = (1 << 63) - 1
"""After any timestamp."""
NO_LOG: Final = bytes(16)


class ListedSegment(NamedTuple):
    """One closed segment. It has the offsets from `base` up to, and without, `end`.

    `newest` is the greatest `max_timestamp` of this segment and all before it. It may be too great: compaction does not
    lower it. While compaction puts a rewritten file in place, `former_log` and `former_length` name the one before.
    """

    base: int
    end: int
    log: bytes
    length: int
    records: int
    max_timestamp: int
    newest: int
    created_ns: int
    sealed_ns: int
    former_log: bytes
    former_length: int
    chain: int
    flags: int

    def pack(self, seed: int) -> bytes:
        """The entry's bytes; `seed` is the partition's."""
        content = _ENTRY.pack(*self)
        checksum: int = crc32c(content, seed)
        return (content + checksum.to_bytes(4, "little")).ljust(ENTRY_BYTES, b"\0")

    @property
    def lost(self) -> bool:
        """True if nothing is known of the file: the entry only says that there were these offsets."""
        return self.log == NO_LOG

    def segment(self, directory: Path, partition: bytes) -> Segment:
        """The segment with the header that its file must have."""
        length = self.length if self.flags & COMPACTED else 0
        return self._segment(directory, partition, self.log, length)

    def former(self, directory: Path, partition: bytes) -> Segment | None:
        """The segment that this one is just replacing, if it is."""
        if self.former_log == NO_LOG:
            return None
        length = self.former_length if self.flags & FORMER_COMPACTED else 0
        return self._segment(directory, partition, self.former_log, length)

    def _segment(self, directory: Path, partition: bytes, log: bytes, length: int) -> Segment:
        header = SegmentHeader(SEGMENT_MAGIC, partition, log, self.base, self.created_ns, length, self.chain, 0)
        return Segment(directory / f"{self.base:020d}.log", header)

    def settled(self) -> ListedSegment:
        """The entry when the file before is out of the way."""
        return self._replace(former_log=NO_LOG, former_length=0, flags=self.flags & ~FORMER_COMPACTED)

    def settled_as(self, log: bytes | None) -> ListedSegment:
        """The entry after an interrupted replacement, when `log` is what the file turned out to be."""
        if log is None or log != self.former_log:
            return self.settled()
        flags = self.flags & ~(COMPACTED | FORMER_COMPACTED)
        return self._replace(
            log=self.former_log,
            length=self.former_length,
            records=UNKNOWN,
            max_timestamp=self.newest,  # at least: it had more records than the file that was to replace it
            former_log=NO_LOG,
            former_length=0,
            flags=flags | (COMPACTED if self.flags & FORMER_COMPACTED else 0),
        )

    def replaced(self, successor: Successor) -> ListedSegment:
        """The entry while another file takes the segment's place."""
        return self._replace(
            log=successor.header.log,
            length=successor.length,
            records=successor.records,
            max_timestamp=min(successor.max_timestamp, self.max_timestamp),
            former_log=self.log,
            former_length=self.length,
            flags=(COMPACTED if successor.header.compacted else 0)
            | (FORMER_COMPACTED if self.flags & COMPACTED else 0),
        )


class Successor(NamedTuple):
    """A file that is to take the place of a segment: complete and durable, under another name."""

    path: Path
    header: SegmentHeader
    length: int
    records: int
    max_timestamp: int
    """No record in it is newer."""


def lost_segment(base: int, end: int) -> ListedSegment:
    """An entry for offsets whose file is gone and of which nothing else is known."""
    return ListedSegment(base, end, NO_LOG, 0, UNKNOWN, FOREVER, FOREVER, 0, 0, NO_LOG, 0, 0, 0)


def listed_segment(
    header: SegmentHeader, end: int, length: int, records: int, max_timestamp: int, sealed_ns: int, flags: int = 0
) -> ListedSegment:
    """The entry of a segment with this header. Its `newest` is for the list to say."""
    if header.compacted:
        flags |= COMPACTED
    return ListedSegment(
        header.base,
        end,
        header.log,
        length,
        records,
        max_timestamp,
        max_timestamp,
        header.created_ns,
        sealed_ns,
        NO_LOG,
        0,
        header.chain,
        flags,
    )


def with_newest(entries: Iterable[ListedSegment]) -> Iterator[ListedSegment]:
    """The entries, each with the greatest timestamp up to and including it."""
    newest = NEVER
    for entry in entries:
        newest = max(newest, entry.max_timestamp)
        yield entry._replace(newest=newest)


class SegmentList(Sequence[ListedSegment]):
    """An open list, read entry by entry as a search needs them; `write` and `cut` are for the owner of the lock."""

    def __init__(self, fd: int, path: Path, partition: bytes) -> None:
        self._fd = fd
        self.path = path
        self._seed = seed_of(partition)
        content = os.pread(fd, ENTRY_BYTES, 0)
        body = content[: _HEADER.size]
        checksum = int.from_bytes(content[_HEADER.size : _HEADER.size + 4], "little")
        if len(content) < ENTRY_BYTES or content[:8] != LIST_MAGIC or crc32c(body) != checksum:
            raise SegmentListDamaged("the list of segments has no sound header", file=path, position=0)
        _, of, self.generation = _HEADER.unpack(body)
        if of != partition:
            raise SegmentListDamaged("the list of segments is another partition's", file=path, position=0)
        self._entries = max(os.fstat(fd).st_size // ENTRY_BYTES - 1, 0)

    def __len__(self) -> int:
        return self._entries

    @overload
    def __getitem__(self, number: int) -> ListedSegment: ...
    @overload
    def __getitem__(self, number: slice) -> list[ListedSegment]: ...
    def __getitem__(self, number: int | slice) -> ListedSegment | list[ListedSegment]:
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(self._entries))]
        if not 0 <= number < self._entries:
            raise IndexError(number)
        entry = self._unpack(os.pread(self._fd, ENTRY_BYTES, _position(number)), 0)
        if entry is None:
            raise SegmentListDamaged(
                "an entry of the list of segments does not match its checksum",
                file=self.path,
                position=_position(number),
            )
        return entry

    def _unpack(self, content: bytes, at: int) -> ListedSegment | None:
        """The entry at a position of these bytes, None when it is damaged."""
        body = content[at : at + _ENTRY.size]
        checksum = content[at + _ENTRY.size : at + _ENTRY.size + 4]
        if len(checksum) < 4 or crc32c(body, self._seed) != int.from_bytes(checksum, "little"):
            return None
        return tuple.__new__(ListedSegment, _ENTRY.unpack(body))

    def scan(self, first: int = 0) -> Iterator[ListedSegment | None]:
        """All entries from this one on, in large reads; None for one that is damaged."""
        while first < self._entries:
            content = os.pread(self._fd, min(_AT_ONCE, self._entries - first) * ENTRY_BYTES, _position(first))
            if not content:
                return
            for at in range(0, len(content), ENTRY_BYTES):
                yield self._unpack(content, at)
            first += _AT_ONCE

    def entries(self, first: int = 0) -> Iterator[ListedSegment]:
        """All entries from this one on; raises SegmentListDamaged at one that is damaged."""
        for number, entry in enumerate(self.scan(first), first):
            yield self[number] if entry is None else entry

    def holding(self, offset: int) -> int:
        """The number of the entry that has this offset, or would have it; -1 when it lies before the first."""
        return bisect_right(self, offset, key=lambda entry: entry.base) - 1

    def at_time(self, timestamp: int) -> int:
        """The number of the first entry before which all records are older than this."""
        return bisect_left(self, timestamp, key=lambda entry: entry.newest)

    def write(self, disk: Disk, number: int, entry: ListedSegment, *, sync: bool = True) -> None:
        """Put an entry in its place, which may be the one behind the last."""
        disk.write(self._fd, entry.pack(self._seed), _position(number))
        if sync:
            disk.sync(self._fd)
        self._entries = max(self._entries, number + 1)

    def cut(self, disk: Disk, entries: int) -> None:
        """Remove all entries but the first ones, durably: what was closed may be growing again."""
        disk.truncate(self._fd, _position(entries))
        disk.sync(self._fd)
        self._entries = entries

    def close(self, disk: Disk | None = None) -> None:
        """Give the descriptor back, to the disk that it is from."""
        if disk is None:
            os.close(self._fd)
        else:
            disk.close(self._fd)

    @classmethod
    def read(cls, directory: Path, partition: bytes) -> SegmentList:
        """The list for reading; raises FileNotFoundError when there is none, and SegmentListDamaged."""
        path = directory / LIST_FILE
        try:
            fd = open_plain(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SegmentListDamaged(f"the list of segments cannot be read: {error}", file=path) from error
        try:
            return cls(fd, path, partition)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def open(cls, disk: Disk, directory: Path, partition: bytes) -> SegmentList:
        """The list for reading and writing."""
        path = directory / LIST_FILE
        fd = disk.open(path)
        try:
            return cls(fd, path, partition)
        except BaseException:
            disk.close(fd)
            raise


def pack_list(partition: bytes, generation: int, entries: Iterable[ListedSegment]) -> bytes:
    """The content of a whole list."""
    header = _HEADER.pack(LIST_MAGIC, partition, generation)
    checksum: int = crc32c(header)
    seed = seed_of(partition)
    first = (header + checksum.to_bytes(4, "little")).ljust(ENTRY_BYTES, b"\0")
    return b"".join((first, *(entry.pack(seed) for entry in entries)))


def replace_list(
    disk: Disk, directory: Path, partition: bytes, generation: int, entries: Iterable[ListedSegment]
) -> None:
    """Put a new list in place of the old one. It is durable once the directory is synced."""
    disk.replace(directory / LIST_FILE, pack_list(partition, generation, entries))


def _position(number: int) -> int:
    return (number + 1) * ENTRY_BYTES
