"""A partition in a directory: many processes append to it and read it at once, with no one in charge."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

from headwater.core.config import PartitionConfig
from headwater.core.errors import (
    FrameDamaged,
    HeadwaterError,
    OffsetOutOfRange,
    OpenFailed,
    PartitionError,
    WriteFailed,
)
from headwater.log.clock import REAL_CLOCK, Clock
from headwater.log.elapsed import Elapsed
from headwater.log.files.counters import unpack_counters
from headwater.log.files.disk import REAL_DISK, Disk, refuse_network_file_system
from headwater.log.files.lock import PartitionLock
from headwater.log.files.refusals import opening, writing
from headwater.log.files.segment import Segment
from headwater.log.files.segment_list import Successor
from headwater.log.files.state import State
from headwater.log.format.frame import GROUP_LAST, Frame, FrameHeader, StoredFrame, Take, Taken
from headwater.log.format.schemas import SchemaDirectory, Schemas
from headwater.log.maintain.compaction import CompactionReport, Compactor, Rewritten, rewrite_frames
from headwater.log.maintain.retention import RetentionReport, SegmentFacts, expired
from headwater.log.partition import Bounds, Partition, PartitionStatistics
from headwater.log.read.reader import Reader
from headwater.log.recover.damage import read_damage, with_damage
from headwater.log.recover.mending import COMPACTING, COMPACTION_LOCK, Mending
from headwater.log.recover.report import Damage, OnDamage, RecoveryReport
from headwater.log.recover.survivors import Survivors
from headwater.log.write.commit import Appended, CommitQueue, Extent, Stretch, Ticket
from headwater.log.write.owner import PartitionOwner
from headwater.log.write.producers import ProducerTable, load_producers
from headwater.log.write.rewrite import Rewriter, cut_beginning
from headwater.log.write.role import WriterRole
from headwater.log.write.segment_changes import SegmentChanges
from headwater.log.write.syncer import Syncer
from headwater.log.write.writer import Writer

_READS = 3
"""The number of looks at a state page with one copy in the middle of a write, before it counts as damaged."""


class ClosedSegment(NamedTuple):
    """A segment that does not grow any more, and which of its offsets are readable."""

    segment: Segment
    size: int
    first: int
    end: int
    closed_ns: int


class DirectoryPartition(Partition):
    """A partition whose files are in a directory of their own."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: PartitionConfig | None = None,
        *,
        schemas: Schemas | None = None,
        uuid: bytes | None = None,
        disk: Disk = REAL_DISK,
        clock: Clock = REAL_CLOCK,
        elapsed: Elapsed | None = None,
        exclusive: bool = False,
        create: bool = True,
        always_repair: bool = False,
    ) -> None:
        """Open the partition and recover what the last owner left behind.

        Its directory is created if need be; without `create` it must be there, or OpenFailed is raised.

        `schemas` is where typed frames find their schemas, by default `schemas/` in the directory. `uuid` names the
        partition when it is created, by default at random. `elapsed` tells how old things are, for partitions that
        are cleaned together. An `exclusive` handle is the only one that writes: once it has the lock, it keeps it.
        With `always_repair`, an unsound end is repaired whatever the configuration says.
        """
        self.path = Path(path)
        self.schemas = schemas if schemas is not None else SchemaDirectory(self.path / "schemas", disk)
        self._disk = disk
        try:
            if create:
                disk.make_directory(self.path)
            refuse_network_file_system(self.path)
            self._own_clock = elapsed is None
            self.elapsed = elapsed or Elapsed(clock, self.path, disk)
            """The ages of segments and records."""
            self._owner = PartitionOwner(
                self.path,
                config or PartitionConfig(),
                disk,
                clock,
                self.elapsed,
                self.schemas,
                uuid,
                exclusive,
                always_repair,
            )
        except HeadwaterError:
            raise
        except OSError as error:
            raise OpenFailed(self.path, error) from error
        self._syncer = Syncer(self._owner)
        self._writer = Writer(self._owner, self._syncer)
        self._changes = SegmentChanges(self._owner, self._syncer, self._writer)
        self._queue = CommitQueue(self._writer.commit)
        self._reader = Reader(self._owner, self._state)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def recovery_reports(self) -> list[RecoveryReport]:
        """The reports of what this handle recovered, at opening and later, after another writer had died."""
        return list(self._owner.reports)

    def _state(self) -> State:
        state = None
        for _ in range(_READS):
            state, whole = self._owner.look()
            if state is not None and whole:
                return state
        try:
            # A copy stays damaged: the log tells it anew. With one good copy nobody has to wait for that.
            with self._owner.locked(timeout=None if state is None else 0) as mended:
                return mended
        except PartitionError:
            if state is None:
                raise
            return state

    @property
    def config(self) -> PartitionConfig:  # type: ignore[override]
        """The configuration, which `configure` replaces."""
        return self._owner.config

    def configure(self, config: PartitionConfig) -> None:
        self._owner.config = config

    # Writing.

    def _append(self, group: tuple[Frame, ...]) -> Appended:
        self._owner.check_open()  # a forked child has no leader to wait for in its copy of the queue
        ticket = Ticket(group)
        if self._writer.role is None:
            return self._queue.append(ticket)
        self._writer.commit([ticket])  # by the one thread that keeps the role: there is nobody to share a sync with
        return ticket.outcome()

    def append_all(
        self, groups: Sequence[Sequence[Frame]], stretches: list[Stretch] | None = None
    ) -> list[Appended | Exception]:
        outcomes: list[Ticket | Exception] = []
        for group in groups:
            try:
                self._check(tuple(group))
                for frame in group:
                    self.schemas.put(frame.schema)
                outcomes.append(Ticket(group))
            except HeadwaterError as error:
                outcomes.append(error)
        tickets = [outcome for outcome in outcomes if isinstance(outcome, Ticket)]
        failure: Exception | None = None
        try:
            if tickets:
                self._writer.commit(tickets, stretches)
        except Exception as error:  # noqa: BLE001 - it is told to those whom it concerns
            failure = error
        return [outcome if isinstance(outcome, Exception) else _outcome(outcome, failure) for outcome in outcomes]

    def copy(self, frames: Sequence[StoredFrame], *, compacted_until: int = 0, joined_until: int | None = None) -> None:
        """Add frames that another replica of this partition has, behind the end: the same records at the same offsets.

        They keep their bodies, byte for byte, their epochs and their groups, of which only whole ones can be copied.
        Frames of identified producers are recognised as repeats here. Where one does not fit, the whole groups before
        it stay. Below `compacted_until` the other one has been compacted, and offsets may be missing. Below
        `joined_until`, by default the same, one of the two has, and the first frame may begin before the end. Else
        either is an error. Everything up to the new end is durable when this returns, whatever the mode, also if there
        was nothing to copy: a follower tells its leader so.
        """
        tickets: list[Ticket] = []
        group: list[tuple[Frame, FrameHeader]] = []
        end = self.bounds().end
        joined_until = compacted_until if joined_until is None else joined_until
        for number, frame in enumerate(frames):
            joined = number == 0 and frame.header.base_offset < end < frame.header.next_offset <= joined_until
            group.append(cut_beginning(frame, end) if joined else (frame.unstamped(), frame.header))
            if frame.header.group & GROUP_LAST:
                bodies, headers = zip(*group, strict=True)
                tickets.append(Ticket(bodies, headers, compacted_until=compacted_until))
                group = []
        if group:
            raise PartitionError(f"{self}: the frames to be copied end within a group")
        if not tickets:
            self.sync()
            return
        self._writer.commit(tickets, durable=True)
        for ticket in tickets:
            ticket.outcome()

    def restart(self, offset: int, producers: bytes) -> None:
        """Go on at an offset beyond the end, as another replica does that has removed everything before it.

        `producers` is what that one's `producers_at` says.
        """
        self._changes.delete_before(offset, ProducerTable.unpack(producers))

    def learn_producers(self, producers: bytes) -> None:
        """Know from now on who has written what, also behind the end: in frames that have lost that to compaction.

        `producers` is what `producers_at` says of an offset there, in another replica.
        """
        self._writer.learn_producers(ProducerTable.unpack(producers))

    def producers_at(self, offset: int) -> bytes:
        """Return the producer table as of an offset, for `restart`."""
        with opening(self.path):
            return load_producers(self.path, self._state().partition, offset).pack()

    @property
    def guard(self) -> threading.RLock:
        """The lock that every writer of this handle holds. Hold it to do something between two appends."""
        return self._owner.mutex

    def lead(self, epoch: int) -> None:
        """Take appends from now on, and no copies. Frames get this epoch."""
        with self.guard:
            self._writer.role = WriterRole(epoch, leads=True)

    def follow(self, epoch: int) -> None:
        """Take copies of what the leader of this epoch has from now on, and no appends."""
        with self.guard:
            self._writer.role = WriterRole(epoch, leads=False)

    def leading(self, epoch: int | None = None) -> AbstractContextManager[None]:
        """Keep the right to append for the length of a block, in this epoch if one is named; raises NotLeading."""
        return self._writer.acting(leads=True, epoch=epoch)

    def following(self, epoch: int) -> AbstractContextManager[None]:
        """Keep the right to copy from the leader of an epoch for the length of a block; raises NotLeading."""
        return self._writer.acting(leads=False, epoch=epoch)

    def sync(self) -> None:
        self._syncer.sync()

    def writer_sequence(self, writer: bytes) -> int:
        with self._owner.locked():
            return self._writer.producers.table().writer_sequence(writer)

    # Reading.

    def bounds(self) -> Bounds:
        state = self._state()
        return Bounds(state.start, state.end, state.durable_end)

    def _read(self, start: int, end: int, take: Take[Taken], on_damage: OnDamage | None = None) -> Iterator[Taken]:
        return self._reader.read(start, end, take, on_damage)

    def _locate(self, start: int, end: int, most_bytes: int) -> tuple[Extent, int] | None:
        return self._reader.locate(start, end, most_bytes)

    def _time_hint(self, timestamp: int) -> int | None:
        return self._reader.time_position(timestamp)

    def note_damage(self, damage: Damage) -> None:
        """Note damage that was met otherwise than by reading, as if it had been."""
        self._reader.note(damage)

    # Cleaning.

    def roll(self) -> bool:
        return self._writer.roll()

    def truncate(self, offset: int) -> None:
        self._changes.truncate(offset)

    def delete_before(self, offset: int) -> None:
        self._changes.delete_before(offset)

    def remove_expired(self, offset: int | None, protected: Sequence[SegmentFacts] = ()) -> None:
        self._changes.expire(offset, protected)

    def segments(self) -> list[SegmentFacts]:
        self._owner.check_present()
        state, closed = self._reader.closed()
        facts = [SegmentFacts(entry.base, entry.length, entry.created_ns, entry.sealed_ns) for entry in closed]
        return [*facts, SegmentFacts(state.segment_base, state.position, state.segment_created_ns, None)]

    def missing(self) -> list[Damage]:
        """Return the lost parts of closed segments: their files are gone, or shorter than when they were closed.

        The names and the sizes of the files tell, so it takes a moment. Reading and scrubbing find damage inside of a
        file.
        """
        self._owner.check_present()
        return self._reader.missing()

    def retain(self, *, keep_from: int | None = None) -> RetentionReport:
        self._look()
        facts = self.segments()
        count = expired(facts, self.config, self.elapsed.age_ns, keep_from)
        wanted = expired(facts, self.config, self.elapsed.age_ns, None)
        if wanted:
            self.remove_expired(facts[count].base if count else None, facts[count:wanted])
        return RetentionReport(count, sum(fact.size for fact in facts[:count]), self.bounds().start)

    def _look(self) -> None:
        """Compare the clocks. Of a partition that is cleaned by itself, the next program has to know what was seen."""
        self.elapsed.look()
        if self._own_clock:
            with suppress(OSError):  # without it things only stay longer, and cleaning may be what a full disk needs
                self.elapsed.keep()

    def compact(
        self, survivors: Survivors | None = None, *, until: int | None = None, markers_until: int | None = None
    ) -> CompactionReport:
        """Keep only the newest record of each key in the closed segments. Offsets stay; readers are undisturbed.

        `survivors` says which records those are, for logs with more keys than fit in memory. Segments that end beyond
        `until` are left alone, and do not count: what is there may still be taken back. Delete markers of segments that
        end beyond `markers_until` stay, however old.
        """
        self._owner.check_open()
        self._owner.check_present()
        with opening(self.path):
            lock = PartitionLock(self.path / COMPACTION_LOCK)
        try:
            lock.acquire(0)
            self._look()
            self._changes.settle_replacements()
            with writing(self.path):
                for leftover in sorted(self.path.glob(f"*{COMPACTING}")):
                    self._disk.unlink(leftover)
            return self._compact(survivors, until, markers_until)
        finally:
            lock.close()

    def _learn(self, segments: list[ClosedSegment]) -> Compactor:
        compactor = Compactor(self.config.compaction_memory)
        for closed in reversed(segments):
            with suppress(FrameDamaged, OffsetOutOfRange):
                if not compactor.learn(self.frames(closed.first, closed.end)):
                    break
        compactor.finish_learning()
        return compactor

    def _compact(self, survivors: Survivors | None, until: int | None, markers_until: int | None) -> CompactionReport:
        segments = [closed for closed in self.closed() if until is None or closed.end <= until]
        if survivors is not None:
            segments = [
                closed for closed in segments if survivors.cover(closed.segment.base, closed.segment.header.log)
            ]
        judge = self._learn(segments) if survivors is None else survivors
        rewritten = damaged = removed = before = after = 0
        for closed in segments:
            before, after = before + closed.size, after + closed.size
            try:
                if survivors is not None:
                    survivors.check(closed.segment.base)
                markers_stay = damaged > 0 or (markers_until is not None and closed.end > markers_until)
                gone, new_size = self._compact_segment(judge, closed, markers_stay=markers_stay)
            except FrameDamaged:
                damaged += 1
            except OffsetOutOfRange:
                continue  # retention was faster
            else:
                if gone:
                    rewritten, removed, after = rewritten + 1, removed + gone, after + new_size - closed.size
        return CompactionReport(len(segments), rewritten, damaged, removed, before, after)

    def closed(self) -> list[ClosedSegment]:
        """The closed segments, each with the offsets that are readable there. Their files need not be sound."""
        state, entries = self._reader.closed()
        segments = [
            ClosedSegment(
                entry.segment(self.path, state.partition),
                entry.length,
                max(entry.base, state.start),
                entry.end,
                entry.sealed_ns,
            )
            for entry in entries
        ]
        return [segment for segment in segments if segment.first < segment.end]

    def _compact_segment(
        self, judge: Compactor | Survivors, closed: ClosedSegment, *, markers_stay: bool
    ) -> tuple[int, int]:
        """Rewrite one segment; return the number of records removed, and the size of the new file.

        Delete markers have to stay behind a damaged segment, which may still hold what they delete.
        """
        segment, _, first, end, closed_ns = closed
        of_age = self.elapsed.age_ns(closed_ns) > self.config.delete_grace * 1e9
        drop_markers = of_age and not markers_stay
        masks = judge.plan(self.frames(first, end), drop_markers=drop_markers)
        if all(mask is None for mask in masks):
            return 0, 0
        count = sum(frame.header.record_count for frame in self.frames(first, end))
        path = segment.path.with_suffix(COMPACTING)
        try:
            successor = self._rewrite(segment, path, rewrite_frames(self.frames(first, end), masks))
            swapped = self._changes.swap(segment, successor)
        except HeadwaterError:
            raise
        except OSError as error:
            raise WriteFailed(self.path, error) from error
        finally:
            self._disk.unlink(path)  # gone by now if all went well; else the space it takes is given back
        return (count - successor.records, successor.length) if swapped else (0, 0)

    def mending(self, closed: ClosedSegment) -> Mending:
        """Write a closed segment anew, with frames of another replica in the place of what is damaged."""
        self._changes.settle_replacements()
        return Mending(
            self.path, self._disk, self.schemas, closed.segment, closed.first, closed.end, self._replace_segment
        )

    def _replace_segment(self, segment: Segment, successor: Successor, left: Sequence[Damage]) -> bool:
        """Put a mended file in a segment's place; the damage that was known there is no more, but what is left."""
        if not self._changes.swap(segment, successor):
            return False
        end = next(closed.end for closed in self.closed() if closed.segment.base == segment.base)
        self.forget_damage(segment.base, end)
        for damage in left:
            self.note_damage(damage)
        return True

    def forget_damage(self, start: int, end: int) -> None:
        """Forget the damage in [start, end): it is mended, or a reader will meet it again."""
        self._owner.forget_damage(start, end)
        self._reader.forget_damage(start, end)

    def _rewrite(self, segment: Segment, path: Path, frames: Iterator[Rewritten]) -> Successor:
        """Write the successor of a segment."""
        rewriter = Rewriter(self._disk, segment, path)
        try:
            for frame, base_offset, leader_epoch in frames:
                rewriter.add(frame, base_offset, leader_epoch)
            return rewriter.finish(compacted=True)
        finally:
            rewriter.close()

    # The handle.

    def statistics(self) -> PartitionStatistics:
        self._owner.check_present()
        missing = self._reader.missing()
        state, closed = self._reader.closed()
        return PartitionStatistics(
            start=state.start,
            end=state.end,
            durable_end=state.durable_end,
            segments=len(closed) + 1,
            bytes=sum(entry.length for entry in closed) + state.position,
            total_records=state.total_records,
            total_frames=state.total_frames,
            total_bytes=state.total_bytes,
            total_appends=state.total_appends,
            total_syncs=state.total_syncs,
            last_append_ns=state.last_append_ns,
            recoveries=state.recoveries,
            damaged=state.damaged + with_damage(read_damage(self.path), missing)[1],
            poisoned=state.poisoned,
            mapped_bytes=self._reader.mappings.mapped_bytes,
            counters=self._reader.with_own(unpack_counters(state.counters)),
        )

    def close(self) -> None:
        self._reader.publish_counts()
        self._writer.close()
        # Now, and not when garbage is collected: until then a file that was deleted keeps its place on the disk.
        self._reader.mappings.drop(self._reader.mappings.mapped())


def _outcome(ticket: Ticket, failure: Exception | None) -> Appended | Exception:
    """Return the outcome of one of several appends, when `failure` has ended the work on them."""
    if ticket.result is not None:
        return ticket.result
    error = ticket.error if ticket.error is not None else failure
    assert isinstance(error, Exception), "an append ended without an outcome"
    return error
