"""Reading over the wire: stored frames of several partitions, as they are, in one answer.

A fetch that finds nothing waits: it is told of what it waits for, and costs nothing until then. Frames that follow one
another in a file are one piece of memory, which is copied once, into the answer.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Final, NamedTuple

import grpc

from headwater.broker.core import Core, partition_of
from headwater.broker.limits.budget import Hold
from headwater.broker.rpc import arrivals
from headwater.broker.rpc.arrivals import GROUP, INTERVAL, Arrival, Key, Waiter
from headwater.broker.rpc.call import Call, check_readable
from headwater.broker.rpc.groups import Groups
from headwater.broker.rpc.plain import to_records
from headwater.core.errors import (
    FrameDamaged,
    HeadwaterError,
    InvalidConfiguration,
    LeaderNotReady,
    NotLeader,
    OffsetOutOfRange,
)
from headwater.core.machine import machine
from headwater.core.options import MIB
from headwater.log import Bounds, Extent, Partition, StoredFrame, Stretch
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import pack_error
from headwater.wire.packing import FetchedFrames, located_bytes, pack_fetched

_DEFAULT_BYTES: Final = MIB
_CONFIRMING: Final = 3.0
"""How long followers are waited for that are to say whom they follow. Seconds."""
_NOT_READY: Final = 2.0
"""How long a question for offsets waits for a leader that may not answer yet. Seconds."""

Doubtful = Collection[TopicPartition]
"""Partitions of which another broker may be the leader by now."""


class _Answer(NamedTuple):
    """What a look at the partitions has found."""

    content: bytes
    found: bool
    """Whether there is a reason to answer: records, an error, or another generation."""
    next_offsets: list[int | None]
    """Where to go on in each partition; None where that is not known."""
    generation: int
    size: int
    """Of the content, and of the frames that it tells the places of."""
    more: bool = False
    """Whether there is more than was read."""


class Reading:
    """The methods that read."""

    def __init__(self, core: Core, groups: Groups) -> None:
        self._core = core
        self._store = core.store
        self._groups = groups

    async def fetch(self, request: pb.FetchRequest, call: Call) -> bytes:
        self._check(request, call)
        with self._expecting(request) as waiter:
            answer, hold = await self._fetched(request, call, waiter, self._deadline(request, call))
            call.when_done(hold.give_back)
            return answer.content

    async def fetch_here(self, request: pb.FetchRequest, wait: float) -> pb.FetchResponse:
        """The same for the broker itself, whose caller was asked for its rights."""
        deadline = time.monotonic() + wait
        with self._expecting(request) as waiter:
            while True:
                waiter.clear()
                doubtful = await self._doubtful(_places(request), _CONFIRMING)
                answer = await self._core.read(self._look, request, request.max_bytes, "", doubtful)
                left = deadline - time.monotonic()
                if answer.found or left <= 0 or self._core.draining.is_set():
                    return pb.FetchResponse.FromString(answer.content)
                await waiter.wait(left)

    async def subscribe(self, request: pb.FetchRequest, call: Call) -> AsyncGenerator[bytes]:
        self._check(request, call)
        with self._expecting(request) as waiter:
            while not self._core.draining.is_set():
                deadline = time.monotonic() + self._core.config.max_wait
                answer, hold = await self._fetched(request, call, waiter, deadline)
                try:
                    call.identify_again()
                    self._check(request, call)  # rights may have changed since it began
                    if answer.found:
                        # Goes on when gRPC has taken the message: a reader that is slow is not read ahead for.
                        yield answer.content
                finally:
                    hold.give_back()
                if answer.found:
                    _go_on(request, answer)
                if not request.positions:
                    return

    async def fetch_stream(
        self,
        requests: AsyncIterator[pb.FetchRequest],  # noqa: ARG002 - read by the call, which costs less
        call: Call,
    ) -> AsyncGenerator[bytes]:
        request = await call.context.read()
        if request is grpc.aio.EOF:
            return
        check_readable(request)
        self._check(request, call)
        with self._expecting(request) as waiter:
            allowance = _Allowance(request.max_bytes or _DEFAULT_BYTES, waiter)
            listening = asyncio.create_task(allowance.listen(call))
            request.max_wait_ms = request.max_wait_ms or round(self._core.config.max_wait * 1000)
            try:
                while not self._core.draining.is_set():
                    if listening.done():
                        listening.result()  # raises what was wrong with what the client said
                    if allowance.bytes <= 0:
                        if listening.done():
                            return
                        await allowance.wait()
                        continue
                    answer, hold = await self._fetched(request, call, waiter, self._deadline(request, call))
                    try:
                        call.identify_again()
                        self._check(request, call)  # rights may have changed since it began
                        allowance.bytes -= answer.size
                        yield answer.content
                    finally:
                        hold.give_back()
                    _go_on(request, answer)
                    if not request.positions:
                        return
            finally:
                listening.cancel()

    def _expecting(self, request: pb.FetchRequest) -> AbstractContextManager[Waiter]:
        return self._core.arrivals.expecting(_keys(request), of_places=bool(request.machine))

    def _check(self, request: pb.FetchRequest, call: Call) -> None:
        if not request.positions:
            raise InvalidConfiguration("a fetch names at least one partition")
        if request.as_records or request.machine != machine():
            request.machine = b""
        for position in request.positions:
            call.check("read", "topic", position.partition.topic)
        if request.group:
            call.check("read", "group", request.group)

    def _deadline(self, request: pb.FetchRequest, call: Call) -> float:
        """Until when to wait, by the monotonic clock."""
        return time.monotonic() + call.patience(request.max_wait_ms)

    async def _fetched(
        self, request: pb.FetchRequest, call: Call, waiter: Waiter, deadline: float
    ) -> tuple[_Answer, Hold]:
        """What there is, after waiting for it until the deadline; and the memory that is held for it."""
        budget = min(request.max_bytes or _DEFAULT_BYTES, self._core.config.max_response_bytes)
        while True:
            brought = waiter.take(budget)
            answer = None if brought is None else _passed_on(request, brought)
            if answer is not None:
                hold = await call.hold_response(len(answer.content))
            else:
                waiter.clear()
                doubtful = await self._doubtful(_places(request), call.within_deadline(_CONFIRMING))
                hold = await call.hold_response(budget)
                try:
                    answer = await self._core.read(self._look, request, budget, call.caller.name, doubtful)
                except BaseException:
                    hold.give_back()
                    raise
                if answer.more:
                    waiter.wake()
            left = deadline - time.monotonic()
            if answer.found or left <= 0 or self._core.draining.is_set():
                hold.shrink(len(answer.content))
                self._core.meters.fetched_bytes += answer.size
                return answer, hold
            hold.give_back()
            if not await waiter.wait(left):
                waiter.wake()  # to be sure, it looks once more

    async def _doubtful(self, places: Iterable[TopicPartition], timeout: float) -> Doubtful:
        """Of which partitions another broker may be the leader by now. It is asked before each look, not after."""
        return () if self._core.cluster is None else await self._core.cluster.doubtful(places, timeout)

    # In a thread.

    def _look(self, request: pb.FetchRequest, budget: int, caller: str, doubtful: Doubtful = ()) -> _Answer:
        generation = self._generation(request, caller)
        found = generation != request.generation
        pieces: list[_Piece] = [_Piece(self._core, position, doubtful) for position in request.positions]
        with_records = [piece for piece in pieces if piece.has_records]
        # Who comes first gets its frames even if there is no room for more: each has its turn at that.
        random.shuffle(with_records)
        left = budget
        for number, piece in enumerate(with_records):
            if left <= 0:
                break
            left -= piece.read(max(left // (len(with_records) - number), 1), direct=bool(request.machine))
        packed = [piece.packed(request.as_records) for piece in pieces]
        found = found or any(piece.news for piece in pieces)
        offsets = [piece.next_offset for piece in pieces]
        more = any(piece.more for piece in pieces)
        return _answer(packed, found, offsets, generation, more=more)

    def _generation(self, request: pb.FetchRequest, caller: str) -> int:
        """The group's generation, after noting that the member has polled; without a group, what was asked with."""
        if not request.group:
            return request.generation
        return self._groups.polled(request.group, request.member_id, caller, request.generation)

    async def list_offsets(self, request: pb.ListOffsetsRequest, call: Call) -> pb.ListOffsetsResponse:
        for place in request.partitions:
            call.check("read", "topic", place.topic)
        places = [TopicPartition(place.topic, place.partition) for place in request.partitions]
        deadline = time.monotonic() + call.within_deadline(_NOT_READY)
        with self._core.arrivals.expecting(places) as waiter:
            while True:
                waiter.clear()
                doubtful = await self._doubtful(places, call.within_deadline(_CONFIRMING))
                answer = await self._core.read(self._list_offsets, request, doubtful)
                left = deadline - time.monotonic()
                waits = any(one.error.kind == LeaderNotReady.__name__ for one in answer.partitions)
                if not waits or left <= 0 or self._core.draining.is_set():
                    return answer
                await waiter.wait(left)

    def _list_offsets(self, request: pb.ListOffsetsRequest, doubtful: Doubtful) -> pb.ListOffsetsResponse:
        timestamp = request.timestamp_ns if request.HasField("timestamp_ns") else None
        found = [self._offsets(place, timestamp, doubtful) for place in request.partitions]
        return pb.ListOffsetsResponse(partitions=found)

    def _offsets(self, place: pb.TopicPartition, timestamp: int | None, doubtful: Doubtful) -> pb.PartitionOffsets:
        answer = pb.PartitionOffsets(topic=place.topic, partition=place.partition)
        try:
            partition, bounds = shown(self._core, place, doubtful)
            answer.log_start, answer.log_end, answer.durable_end = bounds
            if self._core.cluster is not None:
                gone = self._core.cluster.markers(TopicPartition(place.topic, place.partition))
                answer.markers_until, answer.markers_state = gone
            found = None if timestamp is None else partition.offset_at(timestamp)
            if found is not None and (self._core.cluster is None or found < answer.log_end):
                answer.offset_at = found
        except HeadwaterError as error:
            answer.error.CopyFrom(pack_error(error))
        return answer


class _Allowance:
    """How many bytes of answers a client has room for."""

    def __init__(self, size: int, waiter: Waiter) -> None:
        self.bytes = size
        self._waiter = waiter

    async def listen(self, call: Call) -> None:
        """Take what the client allows besides, for as long as it says something."""
        try:
            while (request := await call.context.read()) is not grpc.aio.EOF:
                check_readable(request)
                starved = self.bytes <= 0
                self.bytes += request.max_bytes
                if starved:
                    self._waiter.wake()
        finally:
            self._waiter.wake()

    async def wait(self) -> None:
        """Wait until something has happened: more may be allowed by then, and what is there has to be looked for."""
        self._waiter.rest()
        await self._waiter.wait(INTERVAL)


class _Piece:
    """What a fetch gets of one partition. What is wrong with it is told there, and the others go on."""

    def __init__(self, core: Core, position: pb.FetchPosition, doubtful: Doubtful) -> None:
        self._core = core
        self._place = position.partition
        self._partition: Partition | None = None
        self._bounds = Bounds(0, 0, 0)
        self.frames: list[StoredFrame] = []
        self.extents: list[Extent] = []
        """Where frames lie that are not told themselves."""
        self.error: HeadwaterError | None = None
        self.next_offset: int | None = None
        self._start = self._end = 0
        try:
            self._partition, self._bounds = shown(core, self._place, doubtful)
            self._start = self.next_offset = self._offset(position, self._partition)
            self._end = self._bounds.end
            if position.HasField("end"):
                self._end = min(self._end, position.end)
        except HeadwaterError as error:
            self.error = error

    def _offset(self, position: pb.FetchPosition, partition: Partition) -> int:
        start, end, _ = self._bounds
        if position.WhichOneof("start") == "timestamp_ns":
            found = partition.offset_at(position.timestamp_ns)
            return end if found is None else found
        if position.offset < start:  # what is beyond the end may still come
            raise OffsetOutOfRange(position.offset, start, end, f"{self._place.topic}/{self._place.partition}")
        return position.offset

    @property
    def has_records(self) -> bool:
        """Whether there is something to read."""
        return self.error is None and self._start < self._end

    @property
    def more(self) -> bool:
        """Whether there is more than was read."""
        return self.next_offset is not None and self.next_offset < self._bounds.end

    @property
    def news(self) -> bool:
        """Whether there is something to tell: records, an error, or that there is nothing up to another offset.

        That the leader is not ready is told when the reader has no more patience, or there are news of others.
        """
        if self.error is not None:
            return not isinstance(self.error, LeaderNotReady)
        return self.next_offset != self._start

    def read(self, budget: int, *, direct: bool) -> int:
        """Read about so many bytes, at least one frame; how many were read. Or say where they are to be read."""
        assert self._partition is not None
        size = 0
        try:
            located = self._partition.locate(self._start, self._end, budget) if direct else None
            if located is not None and located[0].length >= arrivals.SMALL:
                extent, self.next_offset = located
                self.extents.append(extent)
                return extent.length
            for frame in self._partition.frames(self._start, self._end):
                self.frames.append(frame)
                size += frame.header.length
                if size >= budget:
                    break
            # Compaction may have removed all that was left before the end.
            self.next_offset = self.frames[-1].header.next_offset if size >= budget else self._end
        except FrameDamaged as error:
            if self.frames:  # what is good before the damage comes first
                self.next_offset = self.frames[-1].header.next_offset
            else:
                self.error, self.next_offset = damage_told(self._core, self._place, error), None
        except HeadwaterError as error:
            self.error, self.next_offset = error, None
        return size

    def packed(self, as_records: bool) -> FetchedFrames:
        """The partition's part of the answer."""
        start, end, durable_end = self._bounds
        answer = pb.FetchedPartition(
            topic=self._place.topic,
            partition=self._place.partition,
            log_start=start,
            log_end=end,
            durable_end=durable_end,
            next_offset=self.next_offset or 0,
            lag=0 if self.next_offset is None else max(end - self.next_offset, 0),
            extents=_packed_extents(self.extents),
        )
        if as_records and self.error is None:
            try:
                answer.records.extend(to_records(self.frames, self._start, self._end))
            except HeadwaterError as error:
                self.error = error
        if self.error is not None:
            answer.error.CopyFrom(pack_error(self.error))
        return FetchedFrames(answer, () if as_records or self.error else _contiguous(self.frames))


def shown(core: Core, place: pb.TopicPartition, doubtful: Doubtful) -> tuple[Partition, Bounds]:
    """A partition, and what of it can be shown: in a cluster what is acknowledged, where it is led.

    Raises NotLeader, and LeaderNotReady.
    """
    if core.cluster is None:
        partition = partition_of(core.store, place)
        return partition, partition.bounds()
    # First who leads: a broker that does not may not even have heard of the topic yet.
    if (place.topic, place.partition) in doubtful:
        raise NotLeader(place.topic, place.partition, None)
    acknowledged = core.cluster.readable(TopicPartition(place.topic, place.partition), place.topic_uuid)
    partition = partition_of(core.store, place)
    start, end, _ = partition.bounds()
    end = max(min(acknowledged, end), start)
    return partition, Bounds(start, end, end)


def damage_told(core: Core, place: pb.TopicPartition, error: FrameDamaged) -> HeadwaterError:
    """What a reader is told who has met damage. In a cluster another replica may be whole."""
    if core.cluster is None:
        return error
    return core.cluster.damaged(TopicPartition(place.topic, place.partition), error)


def _passed_on(request: pb.FetchRequest, brought: list[Arrival]) -> _Answer | None:
    """An answer of what has just been written, if it is just what comes next; None if one has to look."""
    if request.as_records:
        return None
    at = {(one.partition.topic, one.partition.partition): one for one in request.positions}
    offsets = {key: one.offset for key, one in at.items()}
    fitting: dict[Key, list[Stretch]] = {}
    for key, uuid, stretch in brought:
        if key not in at or stretch.end <= offsets[key]:
            continue  # an error was told there, or it was read when it was looked for last
        if stretch.start != offsets[key] or at[key].HasField("end") or at[key].partition.topic_uuid not in (b"", uuid):
            return None
        fitting.setdefault(key, []).append(stretch)
        offsets[key] = stretch.end
    packed = [_packed_stretches(key, stretches, direct=bool(request.machine)) for key, stretches in fitting.items()]
    after: list[int | None] = [offsets[one.partition.topic, one.partition.partition] for one in request.positions]
    return _answer(packed, bool(packed), after, request.generation)


def _packed_stretches(key: Key, stretches: list[Stretch], *, direct: bool) -> FetchedFrames:
    last = stretches[-1]
    direct = direct and sum(one.extent.length for one in stretches) >= arrivals.SMALL
    answer = pb.FetchedPartition(
        topic=key[0],
        partition=key[1],
        log_start=last.log_start,
        log_end=last.end,
        durable_end=last.durable_end,
        next_offset=last.end,
        extents=_packed_extents([one.extent for one in stretches]) if direct else (),
    )
    return FetchedFrames(answer, () if direct else [memoryview(piece) for one in stretches for piece in one.pieces])


def _packed_extents(extents: Iterable[Extent]) -> list[pb.Extent]:
    """The places, those that follow one another as one."""
    found: list[pb.Extent] = []
    for file, log, position, length, stamp in extents:
        if found and found[-1].log == log and found[-1].position + found[-1].length == position:
            found[-1].length += length
            found[-1].stamp = stamp
        else:
            found.append(pb.Extent(file=os.path.abspath(file), log=log, position=position, length=length, stamp=stamp))
    return found


def _answer(
    packed: list[FetchedFrames], found: bool, offsets: list[int | None], generation: int, *, more: bool = False
) -> _Answer:
    content = pack_fetched(packed, generation)
    return _Answer(content, found, offsets, generation, len(content) + located_bytes(packed), more)


def _go_on(request: pb.FetchRequest, answer: _Answer) -> None:
    """Make a request of what comes next. A partition whose error was told is left out: the others go on."""
    request.generation = answer.generation
    kept: list[pb.FetchPosition] = []
    for position, offset in zip(request.positions, answer.next_offsets, strict=True):
        if offset is not None and not (position.HasField("end") and offset >= position.end):
            position.offset = offset
            kept.append(position)
    if len(kept) < len(request.positions):
        del request.positions[:]
        request.positions.extend(kept)


def _contiguous(frames: Sequence[StoredFrame]) -> list[memoryview]:
    """The bytes of frames, in as few pieces as they lie in."""
    spans: list[tuple[object, int, int]] = []
    for header, buffer, _, start in frames:
        if spans and spans[-1][0] is buffer and spans[-1][2] == start:
            spans[-1] = (buffer, spans[-1][1], start + header.length)
        else:
            spans.append((buffer, start, start + header.length))
    return [memoryview(buffer)[start:end] for buffer, start, end in spans]  # type: ignore[arg-type]


def _places(request: pb.FetchRequest) -> list[TopicPartition]:
    return [TopicPartition(position.partition.topic, position.partition.partition) for position in request.positions]


def _keys(request: pb.FetchRequest) -> list[Key]:
    return list(chain(_places(request), [(request.group, GROUP)] if request.group else []))
