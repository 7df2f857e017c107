"""The RPCs that read: stored frames of several partitions, as they are, in one answer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence, Sized
from functools import partial
from typing import Final, TypeVar

import grpc

from headwater.broker.arrivals import INTERVAL, ArrivalWaiter
from headwater.broker.core import Core
from headwater.broker.limits.budget import Hold
from headwater.broker.rpc.call import Call, check_readable
from headwater.broker.rpc.carrying import SpreadReader
from headwater.broker.rpc.messages import named_partition, pack_record
from headwater.broker.waiting_reader import PartitionRead, ReadAnswer, ReadPosition, ReadRequest, WaitingReader
from headwater.core.errors import HeadwaterError, InvalidConfiguration
from headwater.core.filter import LONGEST_SENT, Filter
from headwater.core.machine import machine
from headwater.core.options import MIB
from headwater.log import Extent
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import pack_error
from headwater.wire.packing import FetchedFrames, pack_fetched

_Content = TypeVar("_Content", bound=Sized)
_DEFAULT_BYTES: Final = MIB
_DEFAULT_RECORDS: Final = 500
_MOST_RECORDS: Final = 10_000
"""The numbers of records that Consume returns, if nothing else is said and at most."""


class ReadingMethods:
    """The methods that read."""

    def __init__(self, core: Core, here: WaitingReader, everywhere: SpreadReader) -> None:
        """`here` reads what this broker has, `everywhere` plain records at the brokers that lead them."""
        self._core = core
        self._here = here
        self._everywhere = everywhere

    def _reader(self, call: Call, *, as_records: bool) -> SpreadReader:
        return self._everywhere if as_records and call.may_be_carried else self._here

    async def fetch(self, request: pb.FetchRequest, call: Call) -> bytes:
        read = _read_request(request, self._core.config.max_response_bytes, call.caller.name)
        _check(read, call)
        deadline = time.monotonic() + call.patience(request.max_wait_ms)
        reader = self._reader(call, as_records=request.as_records)
        with reader.expecting(read) as waiter:
            answer, hold = await self._fetched(reader, read, call, waiter, deadline)
            call.when_done(hold.give_back)
            return answer.content

    async def subscribe(self, request: pb.FetchRequest, call: Call) -> AsyncGenerator[bytes]:
        read = _read_request(request, self._core.config.max_response_bytes, call.caller.name)
        _check(read, call)
        reader = self._reader(call, as_records=request.as_records)
        with reader.expecting(read) as waiter:
            while not self._core.runtime.draining.is_set():
                deadline = time.monotonic() + self._core.config.max_wait
                answer, hold = await self._fetched(reader, read, call, waiter, deadline)
                try:
                    call.identify_again()
                    _check(read, call)  # rights may have changed since it began
                    if answer.has_news:
                        # Goes on when gRPC has taken the message: nothing is read ahead for a slow reader.
                        yield answer.content
                finally:
                    hold.give_back()
                if answer.has_news:
                    read.go_on(answer)
                if not read.positions:
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
        read = _read_request(request, self._core.config.max_response_bytes, call.caller.name)
        _check(read, call)
        wait_ms = request.max_wait_ms or round(self._core.config.max_wait * 1000)
        reader = self._reader(call, as_records=request.as_records)
        with reader.expecting(read) as waiter:
            allowance = _Allowance(request.max_bytes or _DEFAULT_BYTES, waiter)
            listening = asyncio.create_task(allowance.listen(call))
            try:
                while not self._core.runtime.draining.is_set():
                    if listening.done():
                        listening.result()  # raises what was wrong with a request of the client
                    if allowance.bytes <= 0:
                        if listening.done():
                            return
                        await allowance.wait()
                        continue
                    deadline = time.monotonic() + call.patience(wait_ms)
                    answer, hold = await self._fetched(reader, read, call, waiter, deadline)
                    try:
                        call.identify_again()
                        _check(read, call)  # rights may have changed since it began
                        allowance.bytes -= answer.size
                        yield answer.content
                    finally:
                        hold.give_back()
                    read.go_on(answer)
                    if not read.positions:
                        return
            finally:
                listening.cancel()

    async def _fetched(
        self, reader: SpreadReader, read: ReadRequest[_Content], call: Call, waiter: ArrivalWaiter, deadline: float
    ) -> tuple[ReadAnswer[_Content], Hold]:
        answer, hold = await reader.read(read, waiter, deadline, call)
        self._core.meters.fetched_bytes += answer.size
        return answer, hold

    async def consume(self, request: pb.ConsumeRequest, call: Call) -> pb.ConsumeResponse:
        call.check("read", "topic", request.partition.topic)
        by_time = request.WhichOneof("start") == "timestamp_ns"
        position = ReadPosition(
            named_partition(request.partition), request.offset, request.timestamp_ns if by_time else None
        )
        max_records = min(request.max_records or _DEFAULT_RECORDS, _MOST_RECORDS)
        max_bytes = min(request.max_bytes or _DEFAULT_BYTES, self._core.config.max_response_bytes)
        read = ReadRequest([position], max_bytes, partial(_Consumed, max_records))
        deadline = time.monotonic() + call.patience(request.max_wait_ms)
        reader = self._reader(call, as_records=True)
        with reader.expecting(read) as waiter:
            answer, hold = await self._fetched(reader, read, call, waiter, deadline)
        call.when_done(hold.give_back)
        if answer.content.error is not None:
            raise answer.content.error
        return answer.content.message

    async def list_offsets(self, request: pb.ListOffsetsRequest, call: Call) -> pb.ListOffsetsResponse:
        for named in request.partitions:
            call.check("read", "topic", named.topic)
        partitions = [named_partition(named) for named in request.partitions]
        timestamp = request.timestamp_ns if request.HasField("timestamp_ns") else None
        answer = pb.ListOffsetsResponse()
        for offsets in await self._reader(call, as_records=True).offsets(partitions, timestamp, call):
            (topic, number), (start, end, durable_end) = offsets.partition, offsets.bounds
            packed = answer.partitions.add(
                topic=topic,
                partition=number,
                log_start=start,
                log_end=end,
                durable_end=durable_end,
                offset_at=offsets.offset_at,
                error=None if offsets.error is None else pack_error(offsets.error),
            )
            packed.markers_until, packed.markers_state = offsets.removed_tombstones
        return answer


def _read_request(request: pb.FetchRequest, max_bytes: int, owner: str) -> ReadRequest[bytes]:
    """The request of a user, of `max_bytes` at most; raises InvalidConfiguration if it names no partition."""
    if not request.positions:
        raise InvalidConfiguration("a fetch names at least one partition")
    filtered = any(position.where for position in request.positions)
    return ReadRequest(
        [_position(position) for position in request.positions],
        min(request.max_bytes or _DEFAULT_BYTES, max_bytes),
        _pack_as_records if request.as_records else _pack,
        request.group,
        request.generation,
        request.member_id,
        owner,
        pass_on=not request.as_records and not filtered,
        direct=bool(request.machine) and not request.as_records and not filtered and request.machine == machine(),
    )


class _Allowance:
    """The number of bytes that a client has room for."""

    def __init__(self, size: int, waiter: ArrivalWaiter) -> None:
        self.bytes = size
        self._waiter = waiter

    async def listen(self, call: Call) -> None:
        """Add what the client allows besides, until it ends its side of the stream."""
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
        """Wait until more may be allowed. News that come meanwhile have to be looked for."""
        self._waiter.rest()
        await self._waiter.wait(INTERVAL)


def _check(read: ReadRequest[bytes], call: Call) -> None:
    for position in read.positions:
        call.check("read", "topic", position.partition.topic)
    if read.group:
        call.check("read", "group", read.group)


def _position(position: pb.FetchPosition) -> ReadPosition:
    by_time = position.WhichOneof("start") == "timestamp_ns"
    return ReadPosition(
        named_partition(position.partition),
        position.offset,
        position.timestamp_ns if by_time else None,
        position.end if position.HasField("end") else None,
        Filter.parse(position.where, longest=LONGEST_SENT) if position.where else None,
    )


def _pack(reads: Sequence[PartitionRead], generation: int) -> bytes:
    return pack_fetched(
        [FetchedFrames(_packed(read), () if read.error else read.pieces()) for read in reads], generation
    )


def _pack_as_records(reads: Sequence[PartitionRead], generation: int) -> bytes:
    packed: list[FetchedFrames] = []
    for read in reads:
        partition = _packed(read)
        if read.error is None:
            try:
                partition.records.extend(map(pack_record, read.plain_records()))
            except HeadwaterError as error:
                partition.error.CopyFrom(pack_error(error))
        packed.append(FetchedFrames(partition, ()))
    return pack_fetched(packed, generation)


def _packed(read: PartitionRead) -> pb.FetchedPartition:
    """The result for a partition as a message, without its frames."""
    (topic, number), (start, end, durable_end) = read.partition, read.bounds
    return pb.FetchedPartition(
        topic=topic,
        partition=number,
        log_start=start,
        log_end=end,
        durable_end=durable_end,
        next_offset=read.next_offset or 0,
        lag=read.lag,
        extents=_packed_extents(read.extents) if read.extents else None,
        filtered=read.filtered,
        error=None if read.error is None else pack_error(read.error),
    )


class _Consumed:
    """The answer to Consume, or the error of its partition."""

    def __init__(self, max_records: int, reads: Sequence[PartitionRead], generation: int) -> None:  # noqa: ARG002
        """In a thread."""
        (read,) = reads
        self.error = read.error
        self.message = pb.ConsumeResponse(
            next_offset=read.next_offset or 0, log_start=read.bounds.start, log_end=read.bounds.end
        )
        try:
            for record in () if read.error is not None else read.plain_records():
                if len(self.message.records) == max_records:
                    self.message.next_offset = record.offset
                    break
                self.message.records.append(pack_record(record))
        except HeadwaterError as error:
            self.error = error
        self.message.lag = max(read.bounds.end - self.message.next_offset, 0)

    def __len__(self) -> int:
        return self.message.ByteSize()


def _packed_extents(extents: Iterable[Extent]) -> list[pb.Extent]:
    """The places of frames as messages; places that follow one another become one."""
    packed: list[pb.Extent] = []
    for file, log, position, length, stamp in extents:
        if packed and packed[-1].log == log and packed[-1].position + packed[-1].length == position:
            packed[-1].length += length
            packed[-1].stamp = stamp
        else:
            packed.append(pb.Extent(file=os.path.abspath(file), log=log, position=position, length=length, stamp=stamp))
    return packed
