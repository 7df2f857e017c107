"""Changes of whole segments: cutting the log at either end, and putting a rewritten segment in the place of another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from headwater.core.errors import Damaged, OffsetOutOfRange
from headwater.log.files.counters import count, put
from headwater.log.files.marks import START_FILE, TRUNCATE_FILE, pack_mark
from headwater.log.files.segment import SEGMENT_HEADER_BYTES, Segment, delete_segment
from headwater.log.files.segment_list import (
    NO_LOG,
    UNKNOWN,
    ListedSegment,
    SegmentList,
    Successor,
    replace_list,
    with_newest,
)
from headwater.log.files.state import CHANGING, State
from headwater.log.maintain.retention import SegmentFacts
from headwater.log.recover.damage import read_damage, write_damage
from headwater.log.write.owner import PartitionOwner
from headwater.log.write.producers import ProducerTable
from headwater.log.write.syncer import Syncer
from headwater.log.write.writer import Writer


class SegmentChanges:
    """Changes the segments of one partition, under its lock."""

    def __init__(self, owner: PartitionOwner, syncer: Syncer, writer: Writer) -> None:
        self._owner = owner
        self._syncer = syncer
        self._writer = writer
        self._disk = owner.disk
        self._directory = owner.directory

    # Cutting at either end.

    def truncate(self, offset: int) -> None:
        """Remove everything from `offset` on. The intent is durable first; carrying it out is recovery's job."""
        with self._owner.locked() as state:
            if not state.start <= offset <= state.end:
                raise OffsetOutOfRange(offset, state.start, state.end, str(self._directory))
            if offset == state.end:
                return
            # The records that the decision relies on are durable before it: else a power loss could leave it alone.
            self._owner.page.write(self._syncer.make_durable(state)._replace(flags=CHANGING))
            self._disk.replace(self._directory / TRUNCATE_FILE, pack_mark(TRUNCATE_FILE, offset))
            self._disk.sync_directory(self._directory)
            self._owner.recover()

    def delete_before(self, offset: int, producers: ProducerTable | None = None) -> int:
        """Make `offset` the first one and delete the segments that lie wholly below it; how many.

        With `producers`, who have written what is below, it may lie beyond the end: the log goes on from there.
        """
        with self._owner.locked() as state:
            return len(self._delete_before(state, offset, producers))

    def expire(self, offset: int | None, protected: Sequence[SegmentFacts]) -> None:
        """Delete up to `offset`, unless that is None, as a run of retention, and count the run.

        `protected` are the segments that the run has kept because a group has yet to read them.
        """
        owner = self._owner
        started = owner.clock.boot_ns()
        with owner.locked() as state:
            start, doomed = state.start, list[ListedSegment]()
            try:
                if offset is not None:
                    doomed = self._delete_before(state, offset, None)
            except OSError:
                owner.count_failure("failed_retentions")
                raise
            counters = count(
                owner.state.counters,
                retention_runs=1,
                retention_ns=owner.clock.boot_ns() - started,
                retention_records=sum(_records_in(entry, start) for entry in doomed),
                retention_bytes=sum(entry.length for entry in doomed),
                removed_segments=len(doomed),
            )
            counters = put(
                counters,
                last_retention_ns=max(owner.clock.now_ns(), 0),
                protected_segments=len(protected),
                protected_bytes=sum(segment.size for segment in protected),
            )
            owner.state = owner.page.write_hint(owner.state._replace(counters=counters))

    def _delete_before(self, state: State, offset: int, producers: ProducerTable | None) -> list[ListedSegment]:
        """Do it under the lock; return the entries of the segments that are gone."""
        if offset > state.end and producers is not None:
            state = self._writer.roll_locked(state, offset, producers)
        if offset > state.end:
            raise OffsetOutOfRange(offset, state.start, state.end, str(self._directory))
        if offset <= state.start:
            return []
        if offset == state.end and state.position > SEGMENT_HEADER_BYTES:
            state = self._writer.roll_locked(state)
        if offset > state.durable_end:
            state = self._syncer.make_durable(state)
        state, doomed, kept = self._divided_list(state, offset)
        state = self._owner.page.write(state._replace(flags=CHANGING))
        self._disk.replace(self._directory / START_FILE, pack_mark(START_FILE, offset))
        self._disk.sync_directory(self._directory)
        # Readers learn where the log begins before the list forgets what lies before.
        state = self._owner.page.write(state._replace(start=offset))
        if doomed:
            state = state._replace(list_generation=state.list_generation + 1, listed=len(kept))
            replace_list(self._disk, self._directory, state.partition, state.list_generation, kept)
            self._disk.sync_directory(self._directory)
        forgotten = self._forget_damage(offset)
        self._owner.state = self._owner.page.write_both(
            state._replace(flags=0, layout=state.layout + 1, damaged=max(state.damaged - forgotten, 0))
        )
        for entry in doomed:
            delete_segment(self._disk, self._directory / f"{entry.base:020d}.log")
        return doomed

    def _divided_list(self, state: State, start: int) -> tuple[State, list[ListedSegment], list[ListedSegment]]:
        """The entries of segments that lie wholly below `start`, and the others."""
        state, listed = self._owner.open_list(state)
        if listed is None:
            return state, [], []
        try:
            entries = list(listed.entries())
        finally:
            listed.close(self._disk)
        number = sum(entry.end <= start for entry in entries)
        return state, entries[:number], list(with_newest(entries[number:]))

    def _forget_damage(self, start: int) -> int:
        """Forget damage to records that are deleted; how many stretches that were."""
        known = read_damage(self._directory)
        kept = [damage for damage in known if damage.next_offset > start]
        if kept != known:
            write_damage(self._disk, self._directory, kept)
        return len(known) - len(kept)

    # Replacing.

    def settle_replacements(self) -> None:
        """Find out how replacements of segments ended whose writers died, before anyone begins another one.

        Otherwise the list would name, as the file before, one that never was in the segment's place.
        """
        with self._owner.locked() as state:
            state, listed = self._owner.open_list(state)
            if listed is None:
                return
            try:
                unsettled = [
                    (number, entry) for number, entry in enumerate(listed.entries()) if entry.former_log != NO_LOG
                ]
                if not unsettled:
                    return
                self._disk.sync_directory(self._directory)  # the file that is found is the one that stays
                for number, entry in unsettled:
                    listed.write(self._disk, number, entry.settled_as(self._log_of(entry)))
            finally:
                listed.close(self._disk)
            self._owner.state = self._owner.page.write_both(state._replace(layout=state.layout + 1))

    def _log_of(self, entry: ListedSegment) -> bytes | None:
        try:
            return Segment.read(self._directory / f"{entry.base:020d}.log").header.log
        except (FileNotFoundError, Damaged):
            return None

    def swap(self, old: Segment, successor: Successor) -> bool:
        """Put a rewritten segment in the place of `old`, unless that was deleted or replaced in the meantime.

        The list tells that, so a file that is lost can be replaced as well. It names both files until the new one has
        the name: so whichever a crash leaves is the right one, and neither can come back in the place of the other.
        """
        with self._owner.locked() as state:
            state, listed = self._owner.open_list(state)
            if listed is None:
                return False
            try:
                if not self._put_in_place(listed, old, successor):
                    return False
            finally:
                listed.close(self._disk)
            self._owner.state = self._owner.page.write_both(state._replace(layout=state.layout + 1))
            return True

    def _put_in_place(self, listed: SegmentList, old: Segment, successor: Successor) -> bool:
        number = listed.holding(old.base)
        entry = listed[number] if number >= 0 else None
        if entry is None or entry.base != old.base or entry.log != old.header.log or entry.former_log != NO_LOG:
            return False
        try:
            listed.write(self._disk, number, entry.replaced(successor))
            self._disk.rename(successor.path, old.path)
        except OSError:
            with suppress(OSError):
                listed.write(self._disk, number, entry, sync=False)
            raise
        self._disk.sync_directory(self._directory)
        listed.write(self._disk, number, entry.replaced(successor).settled(), sync=False)
        return True


def _records_in(entry: ListedSegment, start: int) -> int:
    """Return the number of records that a segment has from `start` on; if nobody has counted them, that of offsets."""
    if start <= entry.base and entry.records != UNKNOWN:
        return entry.records
    return entry.end - max(entry.base, start)
