"""A flush: the frames of one or many appends, stamped to follow the log's end, ready for one write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwater.core.errors import PartitionError, UntrustedFrame
from headwater.log.clock import Clock
from headwater.log.files.counters import count_compression, count_write
from headwater.log.files.index import IndexBuilder, pack_entry
from headwater.log.files.segment import SEGMENT_HEADER_BYTES
from headwater.log.files.state import State
from headwater.log.format.frame import AFTER_GAP, CODEC_MASK, GROUP_FIRST, GROUP_LAST, Frame
from headwater.log.format.untrusted import decoded_bytes
from headwater.log.write.commit import Appended, Extent, Stretch, Ticket

(
    _LEADER_EPOCH,
    _END,
    _POSITION,
    _STAMP,
    _SEGMENT_CREATED_NS,
    _SEGMENT_MAX_TIMESTAMP,
    _INDEX_ENTRIES,
    _INDEX_POSITION,
    _IDENTIFIED_POSITION,
    _TOTAL_RECORDS,
    _TOTAL_FRAMES,
    _TOTAL_BYTES,
    _TOTAL_APPENDS,
    _LAST_APPEND_NS,
    _COUNTERS,
) = map(
    State._fields.index,
    (
        "leader_epoch",
        "end",
        "position",
        "stamp",
        "segment_created_ns",
        "segment_max_timestamp",
        "index_entries",
        "index_position",
        "identified_position",
        "total_records",
        "total_frames",
        "total_bytes",
        "total_appends",
        "last_append_ns",
        "counters",
    ),
)
"""The places of the fields that an append changes: `_replace` takes three times as long."""


class Flush:
    """Collects what one write adds behind `state`; `published` is the state once it is written."""

    def __init__(self, state: State, *, seed: int, leader_epoch: int, index_interval: int) -> None:
        self._before = state
        self._compression: list[int] | None = None
        self._seed = seed
        self._leader_epoch = leader_epoch
        self._index = IndexBuilder(
            index_interval, position=state.index_position, max_timestamp=state.segment_max_timestamp
        )
        self.buffers: list[object] = []
        self._added: list[tuple[int, int, slice, tuple[int, int, int]]] = []
        self.position = state.position
        self._offset = state.end
        self._stamp = state.stamp
        self._records = self._frames = self._appends = 0
        self._identified = state.identified_position

    @property
    def size(self) -> int:
        """The number of bytes to write."""
        return self.position - self._before.position

    def add(self, ticket: Ticket) -> Appended:
        """Stamp the ticket's frames as one atomic group. Raises PartitionError for a copy that does not fit here."""
        last = len(ticket.frames) - 1
        after_gap = 0
        if ticket.copied:
            after_gap = self._find_place(ticket)
            self._leader_epoch = ticket.copied[0].leader_epoch
        base, written, position = self._offset, len(self.buffers), self.position
        for number, frame in enumerate(ticket.frames):
            header, self._stamp = frame.stamp(
                self._offset,
                durable_end=self._before.durable_end,
                leader_epoch=self._leader_epoch,
                previous=self._stamp,
                group=(GROUP_FIRST | after_gap if number == 0 else 0) | (GROUP_LAST if number == last else 0),
                seed=self._seed,
            )
            self.buffers += (header, frame.message)
            length = frame.length
            self._index.add(self.position, length, self._offset, frame.max_timestamp)
            self.position += length
            self._offset += frame.last_offset_delta + 1
            self._records += frame.record_count
            if frame.identity is not None:
                self._identified = self.position
        self._compression = compression_of(ticket.frames, self._compression)
        self._frames += len(ticket.frames)
        self._appends += 1
        extent = position, self.position - position, self._stamp
        self._added.append((base, self._offset, slice(written, len(self.buffers)), extent))
        return Appended(base, self._offset)

    def _find_place(self, ticket: Ticket) -> int:
        """Go on where a copy belongs; the bits that tell how that is. Raises PartitionError where it does not fit."""
        base = ticket.copied[0].base_offset
        offset = base
        for header in ticket.copied:
            if header.base_offset != offset:
                raise PartitionError(f"a copy of offset {header.base_offset} does not fit behind {offset}")
            offset = header.next_offset
        if base != self._offset and not self._offset < base <= ticket.compacted_until:
            raise PartitionError(f"a copy of offset {base} does not fit behind {self._offset}")
        after_gap = AFTER_GAP if base > self._offset else 0
        self._offset = base
        return after_gap

    def index_entries(self) -> list[bytes]:
        """The new entries of the segment's index."""
        return [pack_entry(self._before.segment, entry) for entry in self._index.entries]

    def stretches(self, state: State, directory: Path) -> list[Stretch]:
        """Return the bytes that each append has added, once this state publishes them."""
        file = f"{directory}/{state.segment_base:020d}.log"
        return [
            Stretch(
                start,
                end,
                state.start,
                state.durable_end,
                self.buffers[buffers],
                Extent(file, state.segment, *extent),
            )
            for start, end, buffers, extent in self._added
        ]

    def published(self, clock: Clock, indexed: int, write_ns: int) -> State:
        """The state after the write, which took `write_ns`, and of which `indexed` entries have reached the index."""
        before = self._before
        now_ns = clock.now_ns()
        counters = count_write(before.counters, write_ns, indexed=indexed > 0)
        if self._compression is not None:
            *counted, compression_ns = self._compression
            counters = count_compression(counters, [*counted, clock.measured(compression_ns)])
        first = before.position == SEGMENT_HEADER_BYTES
        values: list[Any] = list(before)
        values[_LEADER_EPOCH] = self._leader_epoch
        values[_END] = self._offset
        values[_POSITION] = self.position
        values[_STAMP] = self._stamp
        values[_SEGMENT_CREATED_NS] = now_ns if first else before.segment_created_ns
        values[_SEGMENT_MAX_TIMESTAMP] = self._index.max_timestamp
        values[_INDEX_ENTRIES] = before.index_entries + indexed
        values[_INDEX_POSITION] = self._index.position if indexed else before.index_position
        values[_IDENTIFIED_POSITION] = self._identified
        values[_TOTAL_RECORDS] = before.total_records + self._records
        values[_TOTAL_FRAMES] = before.total_frames + self._frames
        values[_TOTAL_BYTES] = before.total_bytes + self.size
        values[_TOTAL_APPENDS] = before.total_appends + self._appends
        values[_LAST_APPEND_NS] = now_ns
        values[_COUNTERS] = counters
        return tuple.__new__(State, values)


def compression_of(frames: Sequence[Frame], before: list[int] | None = None) -> list[int] | None:
    """Return what `count_compression` is told of these frames, added to what was `before`; None for nothing."""
    counted = before
    for frame in frames:
        compressed = frame.attributes & CODEC_MASK
        if not compressed and not frame.encoded_bytes:
            continue
        if counted is None:
            counted = [0] * 5
        if not compressed:
            counted[3] += 1
        else:
            counted[0] += 1
            counted[1] += frame.encoded_bytes or _size_before(frame)
            counted[2] += frame.message.size
            counted[4] += frame.compression_ns
    return counted


def _size_before(frame: Frame) -> int:
    """Return the size of a message before it was compressed, somewhere else."""
    try:
        return decoded_bytes(memoryview(frame.message), compressed=True)
    except UntrustedFrame:
        return int(frame.message.size)  # it is no statistics' task to refuse it
