"""Committed positions: a table of slots, one for each partition that a group has read.

A slot holds two copies, written in turn, each with a sequence number and a checksum, and says itself which partition it
is for. So a commit is one small `pwrite`, visible to every process at once, and neither a torn write nor a lost page
takes a position with it: the worst is the one before it. Positions are not synced: a power loss may repeat records that
were done, never skip any.

A slot of zeros is free. Where a partition has its slot is remembered, and looked up again when another one has it now.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from crc32c import crc32c

from headwater.log.files.disk import REAL_DISK, Disk
from headwater.log.files.open_files import OpenFile
from headwater.streams.position import Position

_COPY = struct.Struct("<16sIIqqQ12x")
_COPY_BYTES: Final = 64
_SLOT_BYTES: Final = 2 * _COPY_BYTES
_CHECKED: Final = _COPY.size
_KEY_BYTES: Final = 20
"""A copy begins with the topic and the partition."""
_FREE: Final = bytes(_SLOT_BYTES)


class OffsetTable:
    """The slots of one group. The caller holds the group's lock for writing; reading is safe at any time."""

    def __init__(self, path: Path, disk: Disk = REAL_DISK) -> None:
        self._disk = disk
        self._file = OpenFile(disk.open_or_create(path))
        self._slots: dict[tuple[bytes, int], int] = {}
        self._known: dict[tuple[bytes, int], tuple[bytes, Position]] = {}
        """The last content of each slot, and its position: the same bytes are not checked again."""

    def read_all(self) -> dict[tuple[bytes, int], Position]:
        """Every position; slots that are not readable are left out."""
        content = self._content()
        positions: dict[tuple[bytes, int], Position] = {}
        for number in range(-(-len(content) // _SLOT_BYTES)):
            position = _newest(content[number * _SLOT_BYTES : (number + 1) * _SLOT_BYTES])
            if position is not None:
                key = (position.topic, position.partition)
                self._slots[key] = number
                positions[key] = position
        return positions

    def read(self, topic: bytes, partition: int) -> Position | None:
        """The position in one partition, None when there is none."""
        key = (topic, partition)
        number = self._slots.get(key)
        if number is not None:
            content = os.pread(self._file.fd, _SLOT_BYTES, number * _SLOT_BYTES)
            known = self._known.get(key)
            if known is not None and known[0] == content:
                return known[1]
            position = _newest(content)
            if position is not None and position[:2] == key:
                self._known[key] = (content, position)
                return position
            del self._slots[key]  # damaged, both copies, or freed: others may have begun another slot
        return self._search(topic, partition)

    def _search(self, topic: bytes, partition: int) -> Position | None:
        """Look for the bytes that its copies begin with: a group may have thousands of slots."""
        content = self._content()
        beginning = _COPY.pack(topic, partition, 0, 0, 0, 0)[:_KEY_BYTES]
        at = content.find(beginning)
        while at >= 0:
            number = at // _SLOT_BYTES
            position = _newest(content[number * _SLOT_BYTES : (number + 1) * _SLOT_BYTES])
            if position is not None and position[:2] == (topic, partition):
                self._slots[topic, partition] = number
                return position
            at = content.find(beginning, at + 1)
        return None

    def _content(self) -> bytes:
        fd = self._file.fd
        return os.pread(fd, os.fstat(fd).st_size, 0)

    def write(
        self,
        topic: bytes,
        partition: int,
        offset: int,
        now_ns: int,
        generation: int,
        before: Position | None = None,
    ) -> None:
        """Set the position in one partition; `before` is what `read` gave just now, under the same hold of the lock."""
        key = (topic, partition)
        if before is None:
            before = self.read(topic, partition)
        if before is None:
            self._slots[key] = self._free_slot()
        sequence = before.sequence + 1 if before else 1
        position = Position(topic, partition, sequence, offset, now_ns, generation)
        copy = _pack(position)
        known = self._known.pop(key, None)
        self._disk.write(self._file.fd, copy, self._slots[key] * _SLOT_BYTES + (sequence & 1) * _COPY_BYTES)
        if known is not None and known[1] is before:
            # The content of the slot is known too: nobody else writes while the caller holds the lock.
            content = known[0]
            content = content[:_COPY_BYTES] + copy if sequence & 1 else copy + content[_COPY_BYTES:]
            self._known[key] = (content, position)

    def _free_slot(self) -> int:
        """The first one of zeros, or behind the last. A slot with damage in both copies may be anyone's: it is left."""
        content = self._content()
        at = content.find(_FREE)
        while at >= 0 and at % _SLOT_BYTES:
            at = content.find(_FREE, at + _SLOT_BYTES - at % _SLOT_BYTES)
        return at // _SLOT_BYTES if at >= 0 else -(-len(content) // _SLOT_BYTES)

    def free(self, topic: bytes, partition: int) -> None:
        """Forget the position in one partition, and let others have its slot."""
        if self.read(topic, partition) is not None:
            self._disk.write(self._file.fd, _FREE, self._slots.pop((topic, partition)) * _SLOT_BYTES)

    def sync(self) -> None:
        """Return when the positions are on the device, for those who promise more than this table does."""
        self._disk.sync(self._file.fd)

    def close(self) -> None:
        """Give the descriptor back. The table cannot be used any more."""
        del self._file


def _pack(position: Position) -> bytes:
    content = _COPY.pack(*position)
    checksum: int = crc32c(content)
    return content + checksum.to_bytes(4, "little")


def _newest(slot: bytes) -> Position | None:
    first, second = _unpack(slot[:_COPY_BYTES]), _unpack(slot[_COPY_BYTES:])
    if first is None or second is None:
        return first or second
    return first if first.sequence > second.sequence else second


def _unpack(copy: bytes) -> Position | None:
    if len(copy) != _COPY_BYTES or crc32c(copy[:_CHECKED]) != int.from_bytes(copy[_CHECKED:], "little"):
        return None
    return Position._make(_COPY.unpack_from(copy))
