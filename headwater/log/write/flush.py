"""A flush: the frames of one or many appends, stamped to follow the log's end, ready for one write."""

from __future__ import annotations

from pathlib import Path

from headwater.core.errors import PartitionError
from headwater.log.files.index import IndexBuilder, pack_entry
from headwater.log.files.segment import SEGMENT_HEADER_BYTES
from headwater.log.files.state import State
from headwater.log.format.frame import AFTER_GAP, GROUP_FIRST, GROUP_LAST
from headwater.log.write.commit import Appended, Extent, Stretch, Ticket


class Flush:
    """Collects what one write adds behind `state`; `published` is the state once it is written."""

    def __init__(self, state: State, *, seed: int, leader_epoch: int, index_interval: int) -> None:
        self._before = state
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

    def published(self, now_ns: int, indexed: int) -> State:
        """The state after the write, of which `indexed` entries have reached the index."""
        before = self._before
        first = before.position == SEGMENT_HEADER_BYTES
        return before._replace(
            leader_epoch=self._leader_epoch,
            end=self._offset,
            position=self.position,
            stamp=self._stamp,
            segment_created_ns=now_ns if first else before.segment_created_ns,
            segment_max_timestamp=self._index.max_timestamp,
            index_entries=before.index_entries + indexed,
            index_position=self._index.position if indexed else before.index_position,
            identified_position=self._identified,
            total_records=before.total_records + self._records,
            total_frames=before.total_frames + self._frames,
            total_bytes=before.total_bytes + self.size,
            total_appends=before.total_appends + self._appends,
            last_append_ns=now_ns,
        )
