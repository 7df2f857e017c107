"""The state page: a partition's ends and live metrics, readable at any moment from any process.

One kilobyte holds two copies of the state, each with a sequence number and a checksum. The owner of the partition's
lock writes them in turn with `pwrite`; a reader takes the newest copy that is whole. So a reader never waits, and
neither a torn read nor a power loss in the middle of a write leaves it without a valid copy.

The state is never synced on the way: it is a hint that recovery checks against the log. It says only what was true
when it was written, so a stale one is behind the log, not wrong.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from headwater.core.errors import PartitionDeleted
from headwater.log.files.counters import COUNTERS_BYTES
from headwater.log.files.disk import Disk
from headwater.log.files.index import NEVER
from headwater.log.files.open_files import OpenFile
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, SegmentHeader

MAGIC: Final = b"HWSTATE1"
_COPY_BYTES: Final = 512
STATE_BYTES: Final = 2 * _COPY_BYTES
_CHECKED_BYTES: Final = _COPY_BYTES - 4

# Flags.
POISONED: Final = 1
"""A sync failed: nothing beyond the durable end can be trusted, whatever it looks like."""
CHANGING: Final = 2
"""Files are being created, replaced or removed. The next owner of the lock that finds this finishes it by recovery."""


class State(NamedTuple):
    """A partition at one moment. `end` is what readers may see; everything below `durable_end` is on the device.

    The list of closed segments had `listed` entries then, and was of `list_generation`: 0 says that there was none yet.
    `records_before` is what `total_records` was when the growing segment was begun. `counters` are packed: see
    `headwater.log.files.counters`.
    """

    magic: bytes
    sequence: int
    partition: bytes
    flags: int
    leader_epoch: int
    layout: int
    start: int
    end: int
    position: int
    stamp: int
    durable_end: int
    durable_position: int
    durable_stamp: int
    segment: bytes
    segment_base: int
    segment_created_ns: int
    segment_max_timestamp: int
    index_entries: int
    index_position: int
    identified_position: int
    total_records: int
    total_frames: int
    total_bytes: int
    total_appends: int
    total_syncs: int
    last_append_ns: int
    recoveries: int
    damaged: int
    list_generation: int
    listed: int
    records_before: int
    counters: bytes

    @property
    def poisoned(self) -> bool:
        """True if a sync has failed since the last recovery."""
        return bool(self.flags & POISONED)


_LAYOUT = struct.Struct(f"<8sQ16sIIQqqqIqqI16sqqqIqqQQQQQqIIQIq{COUNTERS_BYTES}s")
BLANK: Final = tuple.__new__(State, _LAYOUT.unpack(MAGIC + bytes(_LAYOUT.size - 8)))._replace(
    segment_max_timestamp=NEVER
)
"""The state of a partition of which nothing is known yet."""


def begin_segment(state: State, header: SegmentHeader) -> State:
    """The state when this new, empty segment is the growing one."""
    return state._replace(
        flags=0,
        layout=state.layout + 1,
        end=header.base,
        position=SEGMENT_HEADER_BYTES,
        stamp=header.chain,
        durable_end=header.base,
        durable_position=SEGMENT_HEADER_BYTES,
        durable_stamp=header.chain,
        segment=header.log,
        segment_base=header.base,
        segment_created_ns=header.created_ns,
        segment_max_timestamp=NEVER,
        index_entries=0,
        index_position=0,
        identified_position=0,
        records_before=state.total_records,
    )


class StatePage:
    """The state file of one partition. Reading is safe at any time; writing is for the owner of the lock."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._file: OpenFile | None = OpenFile(disk.open(path))
        self._partition: bytes | None = None
        """The partition that the page belonged to before a rest."""
        self._known: tuple[bytes | None, State] = (None, BLANK)
        """The last content that was whole, and what it says: the same bytes need not be unpacked again."""
        self._written = False

    @staticmethod
    def create(disk: Disk, path: Path, state: State) -> None:
        """Put a new state file in place, durable once its directory is synced."""
        copy = _pack(state)
        disk.replace(path, copy + copy)

    def read(self) -> tuple[State | None, bool]:
        """The newest copy that is whole, if any is, and whether both are.

        A copy that is not whole is being written, or else damaged. Then the other one may be old news: who can wait
        reads again, and who owns the lock knows that nobody is writing.
        """
        try:
            file = self._file or self._reopen()
        except (FileNotFoundError, NotADirectoryError):
            return None, False
        content = os.pread(file.fd, STATE_BYTES, 0)
        known, state = self._known
        if content == known:
            return state, True
        first, second = unpack_copies(content)
        if first is None or second is None:
            return first or second, False
        state = second if second.sequence > first.sequence else first
        self._known = (content, state)
        return state, True

    def write(self, state: State) -> State:
        """Publish the state, under the next sequence number; readers see it from now on."""
        state = tuple.__new__(State, (state[0], state[1] + 1, *state[2:]))
        copy = _pack(state)
        file = self._file or self._reopen()
        (known, before), self._known = self._known, (None, BLANK)
        position = (state.sequence & 1) * _COPY_BYTES
        self._written = True
        try:
            self._disk.write(file.fd, copy, position)
        except OSError:
            # One that fails in bytes which are the same as before has published the state nevertheless.
            if os.pread(file.fd, _COPY_BYTES, position) != copy:
                raise
        if known is not None and before.sequence < state.sequence:
            # The page remembers what the file holds now: the owner's next look at it costs a comparison.
            content = known[:_COPY_BYTES] + copy if state.sequence & 1 else copy + known[_COPY_BYTES:]
            self._known = (content, state)
        return state

    def write_both(self, state: State) -> State:
        """Publish the state so that no older copy of it remains: for flags that must not be lost."""
        return self.write(self.write(state))

    def write_hint(self, state: State) -> State:
        """Publish a state in which only counters are new: closing the page does not sync it for their sake."""
        written = self._written
        try:
            return self.write(state)
        finally:
            self._written = written

    def sync(self) -> None:
        """Make the state itself durable."""
        file = self._file or self._reopen()
        self._disk.sync(file.fd)
        self._written = False

    def sync_writes(self) -> None:
        """Make durable what was written here; where that is nothing, nothing is done."""
        if self._written:
            self.sync()

    def rest(self, partition: bytes) -> None:
        """Close the file of this partition's state until it is used again."""
        self._partition = partition
        self._file = None

    def _reopen(self) -> OpenFile:
        """The file again, after a rest; raises PartitionDeleted when it is another partition's by now."""
        file = OpenFile(self._disk.open(self.path))
        copies = unpack_copies(os.pread(file.fd, STATE_BYTES, 0)) if self._partition is not None else ()
        if any(copy is not None and copy.partition != self._partition for copy in copies):
            raise PartitionDeleted(self.path.parent)
        self._file = file
        return file

    def close(self) -> None:
        """Give the descriptor back."""
        self._file = None


def _pack(state: State) -> bytes:
    content = _LAYOUT.pack(*state)
    checksum: int = crc32c(content)
    return content + checksum.to_bytes(4, "little")


def unpack_copies(content: bytes) -> tuple[State | None, State | None]:
    """Both copies in the content of a state file, each None when it is damaged; the higher sequence counts."""
    return _unpack(content[:_COPY_BYTES]), _unpack(content[_COPY_BYTES:STATE_BYTES])


def _unpack(copy: bytes) -> State | None:
    if len(copy) != _COPY_BYTES or copy[:8] != MAGIC:
        return None
    if crc32c(copy[:_CHECKED_BYTES]) != int.from_bytes(copy[_CHECKED_BYTES:], "little"):
        return None
    return tuple.__new__(State, _LAYOUT.unpack_from(copy))
