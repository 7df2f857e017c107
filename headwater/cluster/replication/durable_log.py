"""The log of a replica, on disk: a partition, the epochs of its records, and how far it was acknowledged.

Beside the partition's own files there are others. `epochs` says where each leader's epoch begins; one is noted there,
durably, before its first record can be in the log, so that what is noted beyond the log's end means nothing and what is
below it is complete. `watermark` is a high watermark that was true once, and durable: a log that ends below it has lost
what was acknowledged, and says so. Where a topic is compacted there is a third, `compacted`: the offset from which on
nothing was ever removed, neither here nor where it was copied from; and `markers`, the same for delete markers.

The numbers here are for the event loop, which is told of every change; the disk's work is done in threads, one at a
time, by methods that are named as such.
"""

from __future__ import annotations

import json
import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from headwater.cluster.replication.markers import ALL_THERE, Markers, new_state
from headwater.cluster.replication.replica import EpochEnd
from headwater.core.config import StewardConfig
from headwater.core.errors import Damaged, FrameDamaged
from headwater.log import ClosedSegment, CompactionReport, DirectoryPartition, StoredFrame
from headwater.log.files.disk import REAL_DISK, Disk, read_plain
from headwater.log.format.frame import GROUP_LAST
from headwater.log.maintain.retention import expired
from headwater.log.recover.damage import read_damage
from headwater.log.recover.mending import Hole
from headwater.log.recover.report import Damage

_log = logging.getLogger(__name__)
EPOCHS_FILE: Final = "epochs"
WATERMARK_FILE: Final = "watermark"
COMPACTED_FILE: Final = "compacted"
MARKERS_FILE: Final = "markers"


class EpochStart(NamedTuple):
    """An epoch, and the offset of its first record."""

    epoch: int
    start: int


class OffsetSpan(NamedTuple):
    """Some of a log's records, in place of their bytes, which are read when they are sent."""

    start: int
    end: int


class Intact(NamedTuple):
    """The intact frames of some offsets, for a replica that lacks them."""

    frames: list[StoredFrame]
    next_offset: int
    """Up to where they are intact."""
    damaged_until: int = 0
    """From there on up to here nothing is intact; 0 where there is more."""


class DurableLog:
    """The log of a replica: the view that `Replica` needs of it, and the methods that move bytes."""

    def __init__(self, partition: DirectoryPartition, disk: Disk = REAL_DISK) -> None:
        """Reads files: not for the event loop."""
        self.partition = partition
        self._disk = disk
        self._watermark_mutex = threading.Lock()
        self._compacting = threading.Lock()
        self._compacted_last = (0, 0)
        partition.follow(0)  # nobody, until the cluster says who leads
        self.start, self.end, self.durable_end = partition.bounds()
        self._epochs_guessed = False
        """True if the file of epochs was lost, and the frames that are here do not tell where all of them begin."""
        self._epochs = self._load_epochs()
        self.watermark = self._load_watermark()
        """The last that was made durable."""
        self.compacted_until = self._load_compacted()
        """Before it compaction may have removed records, and have forgotten who wrote the others."""
        self._kept = self._load_markers()
        self._state = new_state()
        self.forgettable = 0
        """Delete markers before it may go, once they have had their grace."""
        self._met = {OffsetSpan(damage.offset, damage.next_offset) for damage in partition.missing()}
        self.damaged = bool(self.known_damage())
        """True if something is known to be damaged, as of the last look."""

    @property
    def short(self) -> bool:
        """True if acknowledged records are missing here."""
        return self.end < self.watermark

    @property
    def markers(self) -> Markers:
        """The delete markers (tombstones) that may be gone from here."""
        return Markers(self._kept.until, self._state)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; 0 when there is none."""
        return self.epoch_before(self.end)

    # For the event loop.

    def epoch_before(self, offset: int) -> int:
        if offset > self.end:
            return 0
        number = bisect_left(self._epochs, offset, key=lambda entry: entry.start)
        return self._epochs[number - 1].epoch if number else 0

    def end_of(self, epoch: int) -> EpochEnd:
        known = [entry for entry in self._epochs if entry.start < self.end]
        number = bisect_right(known, epoch, key=lambda entry: entry.epoch)
        if not number:
            return EpochEnd(0, 0)
        return EpochEnd(known[number - 1].epoch, known[number].start if number < len(known) else self.end)

    def read(self, start: int) -> Sequence[OffsetSpan]:
        """Return the span behind `start`, if there is one: `frames` reads it."""
        return (OffsetSpan(start, self.end),) if start < self.end else ()

    def add(self, batches: Sequence[Any]) -> None:
        """Take note of what `copy` has written."""
        if batches:
            self.refresh()

    def truncate(self, offset: int) -> None:
        """Count on nothing from `offset` on; `cut` removes it."""
        self.end = min(self.end, offset)
        self.durable_end = min(self.durable_end, offset)

    def refresh(self) -> None:
        """See how far the log goes by now: the state page is in memory."""
        self.start, self.end, self.durable_end = self.partition.bounds()

    def fits_behind(self, markers: Markers) -> bool:
        """Return whether what is here may be gone on with from a log that lacks such markers."""
        return self.end >= markers.until or 0 != markers.state == self._kept.state

    # For threads.

    def lead(self, epoch: int) -> None:
        """Take appends, in this epoch, until `follow`."""
        with self.partition.guard:
            self.partition.follow(0)  # no copy may come in between
            self._note([EpochStart(epoch, self.partition.bounds().end)])
            self.partition.lead(epoch)
            if self._state:  # whoever copies it may have copied another leader's in between
                self._state = new_state()

    def follow(self, epoch: int) -> None:
        """Take no more appends, but copies of what the leader of this epoch has."""
        self.partition.follow(epoch)

    def leading(self, epoch: int | None = None) -> AbstractContextManager[None]:
        """Keep the right to append for the length of a block, in this epoch if one is named; raises NotLeading."""
        return self.partition.leading(epoch)

    def copy(
        self,
        epoch: int,
        frames: Sequence[StoredFrame],
        *,
        epochs: Sequence[EpochStart] = (),
        compacted_until: int = 0,
        producers: bytes = b"",
        markers: Markers = ALL_THERE,
    ) -> None:
        """Write what the leader of an epoch has sent, as it is; raises NotLeading when that one is followed no more.

        Before `compacted_until` the leader may lack records: `epochs` are those that begin among the frames, of which
        there may be none left, and `producers`, where they are given, tell who has written what up to there. It must
        fit behind what is here: see `fits_behind`.
        """
        with self.partition.following(epoch):
            if self._kept.state and self.partition.bounds().end >= markers.until:
                self._keep_markers(self._kept.until)  # from here on it is a copy of whichever log is the leader's
            if compacted_until > max(self.compacted_until, self.partition.bounds().end):
                self._keep_compacted(compacted_until)
            if producers:
                self.partition.learn_producers(producers)
            told = [EpochStart(frame.header.leader_epoch, frame.header.base_offset) for frame in frames]
            self._note(sorted([*epochs, *told]))
            joined_until = max(compacted_until, self.compacted_until)
            self.partition.copy(frames, compacted_until=compacted_until, joined_until=joined_until)

    def cut(self, epoch: int, offset: int) -> None:
        """Remove what the leader of an epoch does not have, for good; raises NotLeading like `copy`."""
        forced = offset < self.watermark  # by an operator's command
        with (
            self._compacting if forced else nullcontext(),
            self._watermark_mutex,
            self.partition.following(epoch),
        ):
            if forced:  # the watermark first, or a crash would make the log short
                if offset < self.compacted_until:  # what is to be removed was the reason to remove others
                    offset = self.partition.bounds().start
                self._keep(offset)
            if offset < self.partition.bounds().end:
                self.partition.truncate(offset)

    def begin_anew(self, epoch: int, markers: Markers) -> None:
        """Remove everything, to copy all of a log that lacks delete markers; raises NotLeading like `copy`."""
        with self._compacting, self.partition.following(epoch):
            self.partition.truncate(self.partition.bounds().start)
            self._keep_markers(*markers)  # not before: what was here is no copy

    def meet(self, damage: OffsetSpan) -> None:
        """In any thread: a reader has met damage. It counts also where the disk takes no notes."""
        self._met.add(damage)

    def known_damage(self, below: int | None = None) -> list[OffsetSpan]:
        """The offsets that are known to be damaged, those before `below` where that is given."""
        start, end, _ = self.partition.bounds()
        noted = [OffsetSpan(damage.offset, damage.next_offset) for damage in read_damage(self.partition.path)]
        known = {OffsetSpan(max(span.start, start), span.end) for span in (*noted, *self._met)}
        known = {span for span in known if span.start < min(span.end, end)}
        self.damaged = bool(known)
        return sorted(span for span in known if below is None or span.start < below)

    def damaged_at(self) -> int | None:
        """The first offset that is known to be damaged."""
        known = self.known_damage()
        return known[0].start if known else None

    def damaged_segments(self, below: int) -> list[ClosedSegment]:
        """The segments in which something before an offset is known to be damaged; all of them are closed then."""
        known = self.known_damage(below)
        if any(span.end > self.partition.segments()[-1].base for span in known):
            self.partition.roll()
        return [
            closed
            for closed in self.partition.closed()
            if any(span.start < closed.end and closed.first < span.end for span in known)
        ]

    def forget_met(self, closed: ClosedSegment) -> None:
        """A segment was written anew: what is left of its damage is noted by now."""
        self._met = {span for span in self._met if span.end <= closed.first or closed.end <= span.start}

    def note_holes(self, closed: ClosedSegment, holes: Sequence[Hole]) -> None:
        """A segment was looked at: this is all that is damaged there."""
        self.partition.forget_damage(closed.first, closed.end)
        self.forget_met(closed)
        for hole in holes:
            path = closed.segment.path
            self.partition.note_damage(Damage(path, hole.position, hole.offset, hole.next_offset, hole.reason))

    def intact(self, span: OffsetSpan, max_bytes: int) -> Intact:
        """Return the durable and intact part of a span, for a replica that lacks it."""
        start, _, durable_end = self.partition.bounds()
        end = min(span.end, durable_end)
        if not start <= span.start < end:
            return Intact([], span.start, min(start, span.end) if span.start < start else span.end)
        frames: list[StoredFrame] = []
        size = 0
        try:
            for frame in self.partition.frames(span.start, end):
                frames.append(frame)
                size += frame.header.length
                if size >= max_bytes:
                    return Intact(frames, min(frame.header.next_offset, end))
        except FrameDamaged as error:
            reached = frames[-1].header.next_offset if frames else span.start
            reached = max(reached, reached if error.offset is None else error.offset)
            return Intact(frames, reached, max(error.next_offset or end, reached + 1))
        return Intact(frames, end)

    def cut_damage(self) -> None:
        """Remove everything from the first damage on: for a replica that nobody counts on."""
        with self.partition.guard:
            offset = self.damaged_at()
            if offset is not None:
                offset = self._sound_end(offset)
                _log.warning("%s: everything from the damage at offset %d on is fetched again", self.partition, offset)
                self.partition.truncate(offset)

    def _sound_end(self, offset: int) -> int:
        """Return the end of the last sound frame before a damaged offset: a reader may have met it within a frame.

        A compacted part is fetched as a whole: its frames are not those of others, which would not fit behind one.
        """
        start = self.partition.bounds().start
        if offset < self.compacted_until:
            return start
        sound_end = max(start, *(segment.base for segment in self.partition.segments() if segment.base <= offset))
        for frame in self.partition.frames(sound_end, offset, on_damage=lambda _: None) if sound_end < offset else ():
            if frame.header.next_offset > offset:
                return frame.header.base_offset
            sound_end = frame.header.next_offset
        return sound_end

    def retain(self, high_watermark: int, unread: int, steward: StewardConfig, *, compacts: bool = False) -> None:
        """Delete what is no longer wanted, acknowledged, and read by all groups or over the limits that force it."""
        segments, config, age_ns = self.partition.segments(), self.partition.config, self.partition.elapsed.age_ns
        forcing = replace(config, retention_age=steward.force_after, retention_bytes=steward.force_bytes)
        forced = expired(segments, forcing, age_ns, high_watermark)
        if compacts:  # its oldest records may be the present ones: only its own limits count
            forced = min(forced, expired(segments, config, age_ns, high_watermark))
        count = max(expired(segments, config, age_ns, min(unread, high_watermark)), forced)
        wanted = max(count, expired(segments, config, age_ns, high_watermark))
        if wanted:
            self.partition.remove_expired(segments[count].base if count else None, segments[count:wanted])

    def compact(self) -> CompactionReport | None:
        """Keep the newest record of each key of what is acknowledged; None if nothing is new.

        Records that may still be taken back are no reason to remove others. Replicas in sync have all of this, so the
        removal concerns only those that catch up.
        """
        with self._compacting:
            closed = [segment for segment in self.partition.closed() if segment.end <= self.watermark]
            of_age = self.partition.elapsed.is_older(self.partition.config.delete_grace)
            old = [segment.end for segment in closed if segment.end <= self.forgettable and of_age(segment.closed_ns)]
            until, markers_until = closed[-1].end if closed else 0, max(old, default=0)
            done, markers_done = self._compacted_last
            if until in (0, done) and markers_until <= markers_done:
                return None
            with self.partition.guard:
                if until > self.compacted_until:
                    self._keep_compacted(until)
            with self._forgetting(markers_until) if markers_until else nullcontext():
                report = self.partition.compact(until=until, markers_until=markers_until)
            self._compacted_last = until, max(markers_until, markers_done)
            return report

    @contextmanager
    def _forgetting(self, until: int) -> Iterator[None]:
        """Delete markers go, for the length of a block."""
        with self.partition.guard:
            self._state = 0
            if until > self._kept.until:
                self._keep_markers(until, self._kept.state)
        try:
            yield
        finally:
            self._state = new_state()

    def restart(self, epoch: int, offset: int, producers: bytes, epochs: Sequence[EpochStart]) -> None:
        """Go on where the leader's log begins by now, which is beyond this one's end; raises NotLeading like `copy`."""
        with self.partition.following(epoch):
            self.partition.restart(offset, producers)
            self._write(EPOCHS_FILE, epochs)
            self._epochs, self._epochs_guessed = list(epochs), False

    def epochs_before(self, offset: int) -> list[EpochStart]:
        """The epochs that begin before an offset."""
        return [entry for entry in self._epochs if entry.start < offset]

    def frames(self, span: OffsetSpan, max_bytes: int) -> list[StoredFrame]:
        """The first frames of a span: whole groups, of about so many bytes, or those before the first damage."""
        frames: list[StoredFrame] = []
        size = whole = 0
        try:
            for frame in self.partition.frames(span.start, span.end):
                frames.append(frame)
                size += frame.header.length
                whole = len(frames) if frame.header.group & GROUP_LAST else whole
                if size >= max_bytes and whole == len(frames):
                    break
        except FrameDamaged:
            if not whole:
                raise
        return frames[:whole]

    def learn_epochs(self, epochs: Sequence[EpochStart], below: int) -> bool:
        """Take over where epochs begin before an offset from a replica that is in sync; whether what is here agrees.

        Where the file was lost, it was made anew from the frames. The first ones of an epoch may have been damaged, or
        compacted away: then only another replica can tell where that epoch begins.
        """
        with self.partition.guard:
            told = [entry for entry in epochs if entry.start < below]
            if told == self.epochs_before(below) or not self._epochs_guessed:
                return told == self.epochs_before(below)
            for epoch, start in self._epochs:
                number = bisect_right(told, start, key=lambda entry: entry.start)
                if start < below and (not number or told[number - 1].epoch != epoch):
                    return False
            last = told[-1].epoch if told else 0
            merged = [*told, *(entry for entry in self._epochs if entry.start >= below and entry.epoch > last)]
            self._write(EPOCHS_FILE, merged)
            self._epochs, self._epochs_guessed = merged, False
            return True

    def had_the_same(self, epochs: Sequence[EpochStart], until: int) -> bool:
        """Return whether a log with these epochs had the same records as this one before an offset, compacted or not.

        The records of an epoch are one leader's, and so is what is before them.
        """
        with self.partition.guard:
            return until <= self.end and [entry for entry in epochs if entry.start < until] == self.epochs_before(until)

    def note_compacted(self, until: int) -> None:
        """Frames of a replica that was compacted are about to come in: before `until` offsets may be missing."""
        with self.partition.guard:
            if until > self.compacted_until:
                self._keep_compacted(until)

    def keep_watermark(self, high_watermark: int) -> None:
        """Make it durable that everything below was acknowledged."""
        with self._watermark_mutex:
            kept = min(high_watermark, self.partition.bounds().durable_end)
            if kept != self.watermark:
                self._keep(kept)

    # The files.

    def _keep(self, watermark: int) -> None:
        """The watermark's mutex is held."""
        self._write(WATERMARK_FILE, watermark)
        self.watermark = watermark

    def _keep_compacted(self, offset: int) -> None:
        """The partition's guard is held."""
        self._write(COMPACTED_FILE, offset)
        self.compacted_until = offset

    def _keep_markers(self, until: int, state: int = 0) -> None:
        """The partition's guard is held."""
        self._write(MARKERS_FILE, (until, state))
        self._kept = Markers(until, state)

    def _note(self, starts: Sequence[EpochStart]) -> None:
        """Make epochs known that are about to begin. The partition's guard is held."""
        end = self.partition.bounds().end
        epochs = [entry for entry in self._epochs if entry.start < end]
        for entry in starts:
            if not epochs or entry.epoch > epochs[-1].epoch:
                epochs.append(entry)
        if epochs != self._epochs:
            if not self._epochs_guessed:  # else whoever opens the log next has to know that
                self._write(EPOCHS_FILE, epochs)
            self._epochs = epochs

    def _write(self, name: str, content: object) -> None:
        written = json.dumps(content).encode()
        self._disk.replace(self.partition.path / name, written + b"\n%08x\n" % crc32c(written))
        self._disk.sync_directory(self.partition.path)

    def _load_epochs(self) -> list[EpochStart]:
        try:
            return [EpochStart(*pair) for pair in _read(self.partition.path / EPOCHS_FILE)]
        except (FileNotFoundError, Damaged):
            return self._find_epochs()

    def _find_epochs(self) -> list[EpochStart]:
        """The epochs as the frames tell of them. Where compaction has removed one's beginning, that is not known."""
        epochs: list[EpochStart] = []
        end = self.start
        for frame in self.partition.frames(on_damage=lambda _: None):
            epoch, base = frame.header.leader_epoch, frame.header.base_offset
            if not epochs or epoch > epochs[-1].epoch:
                if base > end:
                    self._epochs_guessed = True
                    reason = "it is not known which epoch begins here"
                    self.partition.note_damage(Damage(self.partition.path / EPOCHS_FILE, 0, end, base, reason))
                epochs.append(EpochStart(epoch, base))
            end = frame.header.next_offset
        return epochs

    def _load_compacted(self) -> int:
        try:
            return int(_read(self.partition.path / COMPACTED_FILE))
        except FileNotFoundError:
            return 0
        except Damaged:
            return self.end  # it was somewhere before that

    def _load_markers(self) -> Markers:
        try:
            return Markers(*_read(self.partition.path / MARKERS_FILE))
        except FileNotFoundError:
            return ALL_THERE
        except Damaged:
            return Markers(self.end, 0)  # it was somewhere before that

    def _load_watermark(self) -> int:
        try:
            return int(_read(self.partition.path / WATERMARK_FILE))
        except (FileNotFoundError, Damaged):
            return 0


def _read(path: Path) -> Any:
    try:
        written, checksum, _ = read_plain(path).split(b"\n")
        if crc32c(written) != int(checksum, 16):
            raise ValueError("it does not match its checksum")
        return json.loads(written)
    except FileNotFoundError:
        raise
    except (ValueError, OSError) as error:
        raise Damaged(f"not readable: {error}", file=path) from error
