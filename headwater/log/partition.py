"""A partition: an ordered run of records with one sequence of offsets.

This file says what every partition does; `directory.py` does it on disk and `memory.py` in memory. Readers see whole
appends only, and never past the published end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.config import PartitionConfig
from headwater.core.errors import FrameDamaged, InvalidRecord, OffsetOutOfRange
from headwater.core.limits import check_frame_size
from headwater.core.record import Record
from headwater.core.schema import RAW, Schema
from headwater.log.files.counters import Counters
from headwater.log.files.index import NEVER
from headwater.log.format.frame import CONTROL, EXPLICIT_OFFSETS, Frame, StoredFrame, Take, Taken, stored_frame
from headwater.log.format.frame_filter import FrameFilter
from headwater.log.format.projection import Projection
from headwater.log.format.schemas import Schemas
from headwater.log.maintain.compaction import CompactionReport
from headwater.log.maintain.retention import RetentionReport, SegmentFacts
from headwater.log.recover.report import OnDamage
from headwater.log.write.commit import Appended, Extent, Stretch


class Bounds(NamedTuple):
    """Readable offsets go from `start` up to, and without, `end`; below `durable_end` a power loss takes nothing."""

    start: int
    end: int
    durable_end: int


NO_ACTIVITY: Final = Counters()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """A partition in numbers. The totals count since the partition was created, over all processes."""

    start: int
    end: int
    durable_end: int
    segments: int
    bytes: int
    total_records: int
    total_frames: int
    total_bytes: int
    total_appends: int
    total_syncs: int
    last_append_ns: int
    recoveries: int
    damaged: int
    poisoned: bool
    mapped_bytes: int
    counters: Counters = NO_ACTIVITY


def no_statistics() -> PartitionStatistics:
    """Return the numbers of a partition that nobody has used."""
    names = (field.name for field in fields(PartitionStatistics))
    numbers: dict[str, Any] = dict.fromkeys(names, 0) | {"poisoned": False, "counters": NO_ACTIVITY}
    return PartitionStatistics(**numbers)


class Partition(ABC):
    """The interface and shared behaviour of directory and memory partitions. Thread-safe."""

    config: PartitionConfig
    schemas: Schemas

    @abstractmethod
    def configure(self, config: PartitionConfig) -> None:
        """Go on with another configuration."""

    # Writing.

    def append(self, frames: Frame | list[Frame] | tuple[Frame, ...]) -> Appended:
        """Add one frame, or several that become visible together or not at all.

        With `sync="always"` it returns when the records are durable, and visible from then on. Concurrent appends share
        one write and one sync. A retry of an identified frame is answered with the place of the original.
        """
        group = (frames,) if isinstance(frames, Frame) or not isinstance(frames, list | tuple) else tuple(frames)
        self._check(group)
        for frame in group:
            self.schemas.put(frame.schema)
        return self._append(group)

    def append_all(
        self,
        groups: Sequence[Sequence[Frame]],
        stretches: list[Stretch] | None = None,  # noqa: ARG002 - for those that have files
    ) -> list[Appended | Exception]:
        """Several appends of one caller at once, in their order: they share a write and a sync. Returns the outcome of
        each.

        One that fails does not keep the others from being appended. A log in files adds what it has written to
        `stretches`, for who passes it on without reading it again.
        """
        outcomes: list[Appended | Exception] = []
        for group in groups:
            try:
                outcomes.append(self.append(tuple(group)))
            except Exception as error:  # noqa: BLE001 - it is the caller's to raise, after the others
                outcomes.append(error)
        return outcomes

    def _check(self, group: tuple[Frame, ...]) -> None:
        if not group:
            raise InvalidRecord("append takes at least one frame")
        for frame in group:
            if not isinstance(frame, Frame):
                raise InvalidRecord(f"append takes frames, not {type(frame).__name__}: make one with encode()")
            if frame.body_crc is None:
                raise InvalidRecord("a frame must be signed before it is appended")
            decided = frame.identity is not None and frame.identity.forever  # whatever the limit has become since
            if not decided:
                check_frame_size(self.config, frame.length, self)
            if frame.attributes & (EXPLICIT_OFFSETS | CONTROL):
                raise InvalidRecord("only plain frames can be appended")
            if frame.identity != group[0].identity or (
                len(group) > 1 and frame.identity and not frame.identity.forever
            ):
                raise InvalidRecord("frames that are appended together must have the same writer, or none")

    @abstractmethod
    def _append(self, group: tuple[Frame, ...]) -> Appended: ...

    @abstractmethod
    def sync(self) -> None:
        """Make everything appended so far durable, whatever the mode."""

    @abstractmethod
    def writer_sequence(self, writer: bytes) -> int:
        """The last sequence under which this writer of atomic groups has appended; -1 for none."""

    # Reading.

    @abstractmethod
    def bounds(self) -> Bounds:
        """Return the offsets that can be read now."""

    def frames(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        on_damage: OnDamage | None = None,
        where: FrameFilter | None = None,
    ) -> Iterator[StoredFrame]:
        """The frames with records in [start, end): all of them, or an error. By default all there is at this moment.

        Frames are views on the log's bytes, verified. Damage raises, or is passed to `on_damage` and passed over.
        With `where`, they are frames of the records in [start, end) that match.
        """
        take = partial(stored_frame, schema_of=self.schemas.get)
        first, last = self._range(start, end)
        if where is None:
            return self._read(first, last, take, on_damage)
        frames = self._read_matching(first, last, take, on_damage, where)
        return (frame for stored in frames if (frame := where.matching(stored, first, last)) is not None)

    def _range(self, start: int | None, end: int | None) -> tuple[int, int]:
        """Return the range that is asked for; raise OffsetOutOfRange if it is not there."""
        bounds = self.bounds()
        first = bounds.start if start is None else start
        last = bounds.end if end is None else end
        for offset in (first, last):
            if not bounds.start <= offset <= bounds.end:
                raise OffsetOutOfRange(offset, bounds.start, bounds.end, str(self))
        return first, last

    @abstractmethod
    def _read(self, start: int, end: int, take: Take[Taken], on_damage: OnDamage | None = None) -> Iterator[Taken]:
        """Yield what `take` makes of each frame with records in [start, end)."""

    def _read_matching(
        self,
        start: int,
        end: int,
        take: Take[Taken],
        on_damage: OnDamage | None,
        where: FrameFilter,  # noqa: ARG002 - for those that have someone to leave out the rest
    ) -> Iterator[Taken]:
        """The same, where frames without a record that matches may be left out, and records that do not match."""
        return self._read(start, end, take, on_damage)

    def locate(self, start: int, end: int, most_bytes: int) -> tuple[Extent, int] | None:
        """Return the place of frames with records in [start, end), up to about `most_bytes`, and the next offset.

        The reader of those bytes verifies them. None where that cannot be said, or there are no files.
        """
        bounds = self.bounds()
        return self._locate(start, end, most_bytes) if bounds.start <= start < end <= bounds.end else None

    def _locate(self, start: int, end: int, most_bytes: int) -> tuple[Extent, int] | None:  # noqa: ARG002
        return None

    def read(self, offset: int, *, max_bytes: int = 1024 * 1024) -> list[StoredFrame]:
        """Frames from the one that holds `offset` on: at least one, if there is one, and about `max_bytes`."""
        frames: list[StoredFrame] = []
        size = 0
        try:
            for frame in self.frames(offset):
                frames.append(frame)
                size += frame.header.length
                if size >= max_bytes:
                    break
        except FrameDamaged:
            if not frames:  # the good frames before the damage are given first
                raise
        return frames

    def records(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        on_damage: OnDamage | None = None,
        where: FrameFilter | None = None,
    ) -> Iterator[Record]:
        """The records in [start, end) as Python objects; with `where`, those that match."""
        first = self.bounds().start if start is None else start
        for frame in self.frames(first, end, on_damage=on_damage, where=where):
            yield from frame.records(first, end)

    def scan(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        columns: list[str] | None = None,
        schema: Schema = RAW,
        on_damage: OnDamage | None = None,
        where: FrameFilter | None = None,
    ) -> pa.RecordBatchReader:
        """The records in [start, end) as Arrow batches: what DuckDB, Polars and pandas read without copying.

        `columns` chooses and orders; columns that are not chosen are not decompressed. `where` chooses records, of the
        same schema.
        """
        if where is not None:
            return self._scan_matching(start, end, columns, schema, on_damage, where)
        projection = Projection(schema, columns)
        first, last = self._range(start, end)
        batches = self._read(first, last, projection.taking(self.schemas.get, first, last), on_damage)
        return pa.RecordBatchReader.from_batches(projection.schema, batches)

    def _scan_matching(
        self,
        start: int | None,
        end: int | None,
        columns: list[str] | None,
        schema: Schema,
        on_damage: OnDamage | None,
        where: FrameFilter,
    ) -> pa.RecordBatchReader:
        output = schema.project(columns)
        names = output.names
        projection = Projection(schema, [*names, *sorted(where.condition.columns.difference(names))])
        first, last = self._range(start, end)
        take = projection.taking(self.schemas.get, first, last)
        batches = map(where.matching_rows, self._read_matching(first, last, take, on_damage, where))
        chosen = (batch.select(names) for batch in batches if batch.num_rows)
        return pa.RecordBatchReader.from_batches(output, chosen)

    def offset_at(self, timestamp: int) -> int | None:
        """The least offset whose record is not older than `timestamp` (nanoseconds); None when all are older."""
        timestamp = max(timestamp, NEVER)
        hint = self._time_hint(timestamp) if timestamp < 1 << 63 else None
        if hint is None:
            return None
        start = self.bounds().start
        for frame in self.frames(max(hint, start), on_damage=lambda _: None):
            if frame.header.max_timestamp < timestamp:
                continue
            batch = frame.batch()
            times = batch.column(frame.schema.system("timestamp")).view(pa.int64())
            late = pc.and_(pc.greater_equal(times, timestamp), pc.greater_equal(frame.offsets(batch), start))
            number = pc.index(late, True).as_py()
            if number >= 0:
                offset: int = frame.offsets(batch)[number].as_py()
                return offset
        return None

    @abstractmethod
    def _time_hint(self, timestamp: int) -> int | None:
        """An offset at or before the answer to `offset_at`, or None when there is none."""

    # Cleaning.

    @abstractmethod
    def segments(self) -> list[SegmentFacts]:
        """The segments, the oldest first; the last one is growing."""

    @abstractmethod
    def roll(self) -> bool:
        """Close the growing segment, if it holds anything, so that retention and compaction can work on it."""

    @abstractmethod
    def truncate(self, offset: int) -> None:
        """Remove every record from `offset` on, durably. New records take those offsets again."""

    @abstractmethod
    def delete_before(self, offset: int) -> None:
        """Remove every record before `offset`, durably. Offsets stay as they are."""

    def remove_expired(self, offset: int | None, protected: Sequence[SegmentFacts] = ()) -> None:  # noqa: ARG002
        """Remove every record before `offset`, unless that is None, as a run of retention; see `Counters`.

        `protected` are the segments that the run has kept only because a group has yet to read them.
        """
        if offset is not None:
            self.delete_before(offset)

    @abstractmethod
    def compact(self) -> CompactionReport:
        """Keep only the newest record of each key in the closed segments. Offsets stay; readers are undisturbed."""

    @abstractmethod
    def retain(self, *, keep_from: int | None = None) -> RetentionReport:
        """Delete closed segments that the configuration no longer wants, but nothing from `keep_from` on."""

    # The handle.

    @abstractmethod
    def statistics(self) -> PartitionStatistics:
        """The partition in numbers."""

    @abstractmethod
    def close(self) -> None:
        """Make everything durable and give the resources back. Closing twice does no harm."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
