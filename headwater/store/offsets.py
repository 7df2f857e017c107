"""Committed positions: a table of slots, one for each partition that a group has read.

A slot holds two copies, written in turn, each with a sequence number and a checksum, and says itself which partition it
is for. So a commit is one small `pwrite`, visible to every process at once, and neither a torn write nor a lost page
takes a position with it: the worst is the one before it. Positions are not synced: a power loss may repeat records that
were done, never skip any.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from headwater.log.disk import REAL_DISK, Disk

_COPY = struct.Struct("<16sIIqqQ")
_COPY_BYTES: Final = 64
_SLOT_BYTES: Final = 2 * _COPY_BYTES
_CHECKED: Final = _COPY_BYTES - 4


class Position(NamedTuple):
    """How far a group is in one partition: everything before `offset` is done."""

    topic: bytes
    partition: int
    sequence: int
    offset: int
    committed_ns: int
    generation: int


class OffsetTable:
    """The slots of one group. The caller holds the group's lock for writing; reading is safe at any time."""

    def __init__(self, path: Path, disk: Disk = REAL_DISK) -> None:
        self._disk = disk
        self._fd = disk.open_or_create(path)
        self._slots: dict[tuple[bytes, int], int] = {}

    def read_all(self) -> dict[tuple[bytes, int], Position]:
        """Every position; slots that are not readable are left out."""
        size = os.fstat(self._fd).st_size
        content = os.pread(self._fd, size, 0)
        found: dict[tuple[bytes, int], Position] = {}
        for number in range(-(-size // _SLOT_BYTES)):
            position = _newest(content[number * _SLOT_BYTES : (number + 1) * _SLOT_BYTES])
            if position is not None:
                key = (position.topic, position.partition)
                self._slots[key] = number
                found[key] = position
        return found

    def read(self, topic: bytes, partition: int) -> Position | None:
        """The position in one partition, None when there is none."""
        number = self._slots.get((topic, partition))
        if number is not None:
            found = _newest(os.pread(self._fd, _SLOT_BYTES, number * _SLOT_BYTES))
            if found is not None:
                return found
            del self._slots[topic, partition]  # damaged, both copies: others may have begun another slot
        return self.read_all().get((topic, partition))

    def write(self, topic: bytes, partition: int, offset: int, now_ns: int, generation: int) -> None:
        """Set the position in one partition."""
        before = self.read(topic, partition)
        if before is None:
            self._slots[topic, partition] = self._free_slot()
        number = self._slots[topic, partition]
        sequence = before.sequence + 1 if before else 1
        position = Position(topic, partition, sequence, offset, now_ns, generation)
        self._disk.write(self._fd, _pack(position), number * _SLOT_BYTES + (sequence & 1) * _COPY_BYTES)

    def _free_slot(self) -> int:
        """Behind the last one. A slot whose both copies are damaged is not used again: it may be anyone's."""
        return -(-os.fstat(self._fd).st_size // _SLOT_BYTES)

    def sync(self) -> None:
        """Return when the positions are on the device, for those who promise more than this table does."""
        self._disk.sync(self._fd)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


def _pack(position: Position) -> bytes:
    content = _COPY.pack(*position).ljust(_CHECKED, b"\0")
    checksum: int = crc32c(content)
    return content + checksum.to_bytes(4, "little")


def _newest(slot: bytes) -> Position | None:
    one, other = _unpack(slot[:_COPY_BYTES]), _unpack(slot[_COPY_BYTES:])
    if one is None or other is None:
        return one or other
    return one if one.sequence > other.sequence else other


def _unpack(copy: bytes) -> Position | None:
    if len(copy) != _COPY_BYTES or crc32c(copy[:_CHECKED]) != int.from_bytes(copy[_CHECKED:], "little"):
        return None
    return Position._make(_COPY.unpack_from(copy))
