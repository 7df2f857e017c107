"""Reads stored frames of several partitions at once, as they are, and waits for them.

A read that finds nothing waits: it is woken by what it waits for, and costs nothing until then. Frames that follow one
another in a file are one piece of memory, which an edge copies once, into its answer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from headwater.broker import arrivals
from headwater.broker.arrivals import GROUP, Arrival, ArrivalWaiter, Key
from headwater.broker.backend import NamedPartition, PartitionLogs
from headwater.broker.limits.budget import Hold
from headwater.broker.runtime import Runtime
from headwater.core.errors import FrameDamaged, HeadwaterError, LeaderNotReady, OffsetOutOfRange
from headwater.core.filter import Filter
from headwater.core.options import MIB
from headwater.core.record import Record
from headwater.log import Bounds, Extent, Partition, StoredFrame, Stretch
from headwater.log.format.frame_filter import FrameFilter
from headwater.streams.topic import TopicPartition

_Content = TypeVar("_Content", bound=Sized)
_CONFIRMING: Final = 3.0
"""A read waits so many seconds for followers to say which leader they follow."""
_NOT_READY: Final = 2.0
"""A question for offsets waits so many seconds for a leader that may not answer yet."""
_LOOK_BYTES: Final = 8 * MIB
"""A read with a filter looks at about so many bytes before it answers, though nothing may match."""
_PASSING_OVER: Final = 0.1
"""A reader with a filter is told after so many seconds that others' records have come, and not each time."""
_NO_BOUNDS: Final = Bounds(0, 0, 0)


@dataclass(slots=True)
class ReadPosition:
    """The place in a partition from which to read."""

    partition: NamedPartition
    offset: int = 0
    timestamp_ns: int | None = None
    """Begin at the first record with this timestamp or a later one; the offset does not count then."""
    end: int | None = None
    """Read nothing from this offset on."""
    where: Filter | None = None
    """Read only records that match."""
    frame_filter: FrameFilter | None = None
    """The same for this partition's frames, once they were looked at."""


@dataclass(slots=True)
class PartitionRead:
    """The result for one partition. An error there does not end the reads of the others."""

    partition: TopicPartition
    bounds: Bounds = _NO_BOUNDS
    """The offsets that readers may see; zeros if they are not known."""
    start: int = 0
    end: int = 0
    """The offsets that were asked for, as far as there are records."""
    next_offset: int | None = None
    """The offset to go on from; None if it is not known, because of an error."""
    error: HeadwaterError | None = None
    frames: list[StoredFrame] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)
    """The places of frames in files, instead of the frames."""
    frame_filter: FrameFilter | None = None
    """Chooses the records of the frames, if not all are wanted."""
    filtered: bool = False
    """True if there are only records that match the filter of the position."""
    passed_on: list[memoryview] = field(default_factory=list)
    """Frames that were passed on as they were written, without being read."""
    records: Sequence[Record] | None = None
    """Plain records instead of frames, if another broker has read them."""

    def plain_records(self) -> Iterator[Record]:
        """The records that were asked for. Raises what is wrong with a frame."""
        if self.records is not None:
            yield from self.records
            return
        for frame in self.frames:
            yield from frame.records(self.start, self.end)

    def pieces(self) -> list[memoryview]:
        """The bytes of all frames, in as few pieces as they lie in."""
        spans: list[tuple[object, int, int]] = []
        for header, buffer, _, start in self.frames:
            if spans and spans[-1][0] is buffer and spans[-1][2] == start:
                spans[-1] = (buffer, spans[-1][1], start + header.length)
            else:
                spans.append((buffer, start, start + header.length))
        return self.passed_on + [memoryview(buffer)[start:end] for buffer, start, end in spans]  # type: ignore[arg-type]

    @property
    def lag(self) -> int:
        """The number of offsets behind `next_offset`."""
        return 0 if self.next_offset is None else max(self.bounds.end - self.next_offset, 0)

    @property
    def _has_records(self) -> bool:
        return self.error is None and self.start < self.end

    @property
    def _more(self) -> bool:
        """True if there is more than was read."""
        return self.next_offset is not None and self.next_offset < self.bounds.end

    @property
    def has_news(self) -> bool:
        """True if there is a reason to answer: records, an error, or nothing up to another offset.

        That the leader is not ready is told when the reader waits no longer, or if there are news of other partitions.
        """
        if self.error is not None:
            return not isinstance(self.error, LeaderNotReady)
        return self.next_offset != self.start


@dataclass(slots=True)
class ReadRequest(Generic[_Content]):
    """A request to read, and the way to answer it."""

    positions: list[ReadPosition]
    max_bytes: int
    """About so many bytes are read at once, and at least one frame."""
    encode: Callable[[Sequence[PartitionRead], int], _Content]
    """Makes the answer of the results and the group's generation, in a thread or in the event loop."""
    group: str = ""
    """Answer as well when the generation of this group is not `generation` any more."""
    generation: int = 0
    member_id: str = ""
    owner: str = ""
    """The member of the group that reads, if any, and the user whose member it is."""
    pass_on: bool = False
    """True if frames that were just written are passed on without being read."""
    direct: bool = False
    """True if the caller can read files of this machine: then it is told where large frames lie."""

    def partitions(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return [position.partition.tp for position in self.positions]

    def go_on(self, answer: ReadAnswer[_Content]) -> None:
        """Make it a request of what comes behind an answer.

        Partitions whose error was told are left out, and those that were read to their end.
        """
        self.generation = answer.generation
        kept: list[ReadPosition] = []
        for position, offset in zip(self.positions, answer.next_offsets, strict=True):
            if offset is not None and (position.end is None or offset < position.end):
                position.offset, position.timestamp_ns = offset, None
                kept.append(position)
        self.positions = kept


class ReadAnswer(NamedTuple, Generic[_Content]):
    """The answer to a read."""

    content: _Content
    has_news: bool
    """True if there is a reason to answer: records, an error, or another generation."""
    next_offsets: list[int | None]
    """The offset to go on from in each partition; None where that is not known."""
    generation: int
    size: int
    """Of the content, and of the frames in files whose places it tells."""
    more: bool = False
    """True if there is more than was read."""
    passed_over: bool = False
    """True if it only tells that nothing matches a filter, up to other offsets."""


class PartitionOffsets(NamedTuple):
    """The offsets of a partition that readers may see."""

    partition: TopicPartition
    bounds: Bounds = _NO_BOUNDS
    removed_tombstones: tuple[int, int] = (0, 0)
    offset_at: int | None = None
    """The offset of the first record at or after a time; None if there is none."""
    error: HeadwaterError | None = None


class CallLimits(Protocol):
    """The limits of the call on whose behalf something is read."""

    def within_deadline(self, seconds: float) -> float:
        """So many seconds, or fewer if the call ends before."""

    async def hold_response(self, size: int) -> Hold:
        """Wait until the answer may take so many bytes of memory, and hold them."""


class Unlimited:
    """The limits of the broker itself."""

    def within_deadline(self, seconds: float) -> float:
        """So many seconds."""
        return seconds

    async def hold_response(self, size: int) -> Hold:  # noqa: ARG002 - nobody counts it
        """Hold nothing."""
        return Hold()


class Polls(Protocol):
    """Takes note of members that read."""

    def polled(self, group: str, member_id: str, owner: str, known: int) -> int:
        """In any thread: note that a member has polled. Return the group's generation, or `known` if it is not here."""


class NoGroups:
    """For readers that read for no group."""

    def polled(self, group: str, member_id: str, owner: str, known: int) -> int:  # noqa: ARG002
        """Return what is known."""
        return known


class WaitingReader:
    """Reads of partitions that wait for records. For the event loop."""

    def __init__(self, runtime: Runtime, logs: PartitionLogs, groups: Polls) -> None:
        self._runtime = runtime
        self._logs = logs
        self._groups = groups

    def expecting(self, request: ReadRequest[_Content]) -> AbstractContextManager[ArrivalWaiter]:
        """A waiter for what is read, for the length of a block. Begin it before the first read."""
        keys: list[Key] = list(chain(request.partitions(), [(request.group, GROUP)] if request.group else []))
        return self._runtime.arrivals.expecting(keys, extents_only=request.direct)

    async def read(
        self, request: ReadRequest[_Content], waiter: ArrivalWaiter, deadline: float, limits: CallLimits
    ) -> tuple[ReadAnswer[_Content], Hold]:
        """Read what there is, after waiting for it until the deadline, which is by the monotonic clock.

        The memory of the answer is held; the caller gives it back. A read with a filter waits on over records that do
        not match, and the request moves with it; its reader is told a moment later how far it is.
        """
        told_by = deadline
        while True:
            brought = waiter.take(request.max_bytes) if request.pass_on else None
            answer = None if brought is None else _passed_on(request, brought)
            if answer is not None:
                hold = await limits.hold_response(len(answer.content))
            else:
                waiter.clear()
                # Asked before the look: who led before may not lead after it.
                timeout = limits.within_deadline(_CONFIRMING)
                in_doubt = await self._logs.in_doubt(request.partitions(), timeout)
                hold = await limits.hold_response(request.max_bytes)
                try:
                    answer = await self._runtime.read(self._look, request, in_doubt)
                except BaseException:
                    hold.give_back()
                    raise
                if answer.more:
                    waiter.wake()
            now = time.monotonic()
            if answer.passed_over and now < deadline:
                told_by = min(told_by, now + _PASSING_OVER)
                request.go_on(answer)
                answer = answer._replace(has_news=False)
            left = told_by - now
            if answer.has_news or left <= 0 or self._runtime.draining.is_set():
                if told_by < deadline:
                    answer = answer._replace(has_news=True)
                hold.shrink(len(answer.content))
                return answer, hold
            hold.give_back()
            if not await waiter.wait(left):
                waiter.wake()  # to be sure, it looks once more

    def _look(self, request: ReadRequest[_Content], in_doubt: Collection[TopicPartition]) -> ReadAnswer[_Content]:
        """In a thread: read what there is now."""
        generation = request.generation
        if request.group:
            generation = self._groups.polled(request.group, request.member_id, request.owner, generation)
        opened = [self._opened(position, in_doubt) for position in request.positions]
        with_records = [(read, log) for read, log in opened if log is not None and read._has_records]
        # The first one gets its frames even if there is no room for more: each partition has its turn at that.
        random.shuffle(with_records)
        left = request.max_bytes
        for number, (read, log) in enumerate(with_records):
            if left <= 0:
                break
            budget = max(left // (len(with_records) - number), 1)
            left -= self._read(read, log, budget, direct=request.direct)
        reads = [read for read, _ in opened]
        has_news = generation != request.generation or any(read.has_news for read in reads)
        answer = answer_of(request, reads, generation, has_news=has_news, more=any(read._more for read in reads))
        if has_news and generation == request.generation and all(position.where for position in request.positions):
            passed_over = not any(
                read.error or read.frames or position.end is not None
                for read, position in zip(reads, request.positions, strict=True)
            )
            answer = answer._replace(passed_over=passed_over)
        return answer

    def _opened(
        self, position: ReadPosition, in_doubt: Collection[TopicPartition]
    ) -> tuple[PartitionRead, Partition | None]:
        read = PartitionRead(position.partition.tp)
        try:
            log, read.bounds = self._logs.visible(position.partition, in_doubt)
            read.start = read.next_offset = _start(position, log, read.bounds)
            read.end = read.bounds.end if position.end is None else min(read.bounds.end, position.end)
            if position.where is not None and position.frame_filter is None:
                position.frame_filter = self._logs.frame_filter(position.partition, position.where)
            read.frame_filter, read.filtered = position.frame_filter, position.where is not None
        except HeadwaterError as error:
            read.error = error
            return read, None
        return read, log

    def _read(self, read: PartitionRead, log: Partition, budget: int, *, direct: bool) -> int:
        """Read about so many bytes, at least one frame, or tell where they lie; return how many bytes it were."""
        if read.frame_filter is not None:
            return self._read_matching(read, log, budget, read.frame_filter)
        size = 0
        try:
            located = log.locate(read.start, read.end, budget) if direct else None
            if located is not None and located[0].length >= arrivals.SMALL:
                extent, read.next_offset = located
                read.extents.append(extent)
                return extent.length
            for frame in log.frames(read.start, read.end):
                read.frames.append(frame)
                size += frame.header.length
                if size >= budget:
                    break
            # Compaction may have removed all that was left before the end.
            read.next_offset = read.frames[-1].header.next_offset if size >= budget else read.end
        except FrameDamaged as error:
            if read.frames:  # good frames before the damage come first
                read.next_offset = read.frames[-1].header.next_offset
            else:
                read.error, read.next_offset = self._logs.damage(read.partition, error), None
        except HeadwaterError as error:
            read.error, read.next_offset = error, None
        return size

    def _read_matching(self, read: PartitionRead, log: Partition, budget: int, frame_filter: FrameFilter) -> int:
        """Read about so many bytes of matching records, and look at no more than a bounded number of bytes."""
        size = looked_at = 0
        reached = read.start
        try:
            for frame in log.frames(read.start, read.end):
                matching = frame_filter.matching(frame, read.start, read.end)
                if matching is not None:
                    read.frames.append(matching)
                    size += matching.header.length
                looked_at += frame.header.length
                reached = min(frame.header.next_offset, read.end)
                if size >= budget or looked_at >= max(budget, _LOOK_BYTES):
                    break
            else:
                reached = read.end
            read.next_offset = reached
        except HeadwaterError as error:
            if reached > read.start:  # the good frames before come first
                read.next_offset = reached
            else:
                read.next_offset = None
                read.error = self._logs.damage(read.partition, error) if isinstance(error, FrameDamaged) else error
        return size

    async def offsets(
        self, partitions: Sequence[NamedPartition], timestamp_ns: int | None, limits: CallLimits
    ) -> list[PartitionOffsets]:
        """The offsets of partitions, and where a time begins in them. It waits a moment for leaders to get ready."""
        named = [partition.tp for partition in partitions]
        deadline = time.monotonic() + limits.within_deadline(_NOT_READY)
        with self._runtime.arrivals.expecting(named) as waiter:
            while True:
                waiter.clear()
                in_doubt = await self._logs.in_doubt(named, limits.within_deadline(_CONFIRMING))
                results = await self._runtime.read(self._offsets, partitions, timestamp_ns, in_doubt)
                left = deadline - time.monotonic()
                waits = any(isinstance(offsets.error, LeaderNotReady) for offsets in results)
                if not waits or left <= 0 or self._runtime.draining.is_set():
                    return results
                await waiter.wait(left)

    def _offsets(
        self, partitions: Sequence[NamedPartition], timestamp_ns: int | None, in_doubt: Collection[TopicPartition]
    ) -> list[PartitionOffsets]:
        results: list[PartitionOffsets] = []
        for partition in partitions:
            offsets = PartitionOffsets(partition.tp)
            try:
                log, bounds = self._logs.visible(partition, in_doubt)
                offsets = offsets._replace(bounds=bounds)
                offsets = offsets._replace(removed_tombstones=self._logs.removed_tombstones(partition.tp))
                offset = None if timestamp_ns is None else log.offset_at(timestamp_ns)
                if offset is not None and offset < bounds.end:
                    offsets = offsets._replace(offset_at=offset)
            except HeadwaterError as error:
                offsets = offsets._replace(error=error)
            results.append(offsets)
        return results


def _start(position: ReadPosition, log: Partition, bounds: Bounds) -> int:
    """The offset to read from."""
    if position.timestamp_ns is not None:
        offset = log.offset_at(position.timestamp_ns)
        return bounds.end if offset is None else offset
    if position.offset < bounds.start:  # an offset beyond the end may still come
        partition = position.partition
        raise OffsetOutOfRange(position.offset, bounds.start, bounds.end, f"{partition.topic}/{partition.partition}")
    return position.offset


def _passed_on(request: ReadRequest[_Content], brought: list[Arrival]) -> ReadAnswer[_Content] | None:
    """An answer of what has just been written, if it is what comes next; None if one has to look."""
    at: dict[Key, ReadPosition] = {position.partition[:2]: position for position in request.positions}
    offsets = {key: position.offset for key, position in at.items()}
    fitting: dict[Key, list[Stretch]] = {}
    for key, uuid, stretch in brought:
        if key not in at or stretch.end <= offsets[key]:
            continue  # an error was told there, or it was read by the last look
        if stretch.start != offsets[key] or at[key].end is not None or at[key].timestamp_ns is not None:
            return None
        if at[key].partition.topic_uuid not in (b"", uuid):
            return None
        fitting.setdefault(key, []).append(stretch)
        offsets[key] = stretch.end
    reads = [_of_stretches(key, stretches, direct=request.direct) for key, stretches in fitting.items()]
    after: list[int | None] = [offsets[position.partition[:2]] for position in request.positions]
    return answer_of(request, reads, request.generation, has_news=bool(reads), next_offsets=after)


def _of_stretches(key: Key, stretches: list[Stretch], *, direct: bool) -> PartitionRead:
    last = stretches[-1]
    bounds = Bounds(last.log_start, last.end, last.durable_end)
    read = PartitionRead(TopicPartition(*key), bounds, stretches[0].start, last.end, last.end)
    if direct and sum(stretch.extent.length for stretch in stretches) >= arrivals.SMALL:
        read.extents = [stretch.extent for stretch in stretches]
    else:
        read.passed_on = [memoryview(piece) for stretch in stretches for piece in stretch.pieces]
    return read


def answer_of(
    request: ReadRequest[_Content],
    reads: list[PartitionRead],
    generation: int,
    *,
    has_news: bool,
    next_offsets: list[int | None] | None = None,
    more: bool = False,
) -> ReadAnswer[_Content]:
    """The answer to a request that consists of these results."""
    content = request.encode(reads, generation)
    located = sum(extent.length for read in reads for extent in read.extents)
    if next_offsets is None:
        next_offsets = [read.next_offset for read in reads]
    return ReadAnswer(content, has_news, next_offsets, generation, len(content) + located, more)
