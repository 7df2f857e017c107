"""The RPCs that write: frames and plain records go into the append queues of their partitions."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Final

import grpc

from headwater.broker.backend import NamedTopic, NewTopic, RecordsHop, Refused, RoutedAppend
from headwater.broker.core import Core, Meters
from headwater.broker.limits.admission import Admission
from headwater.broker.limits.budget import Hold
from headwater.broker.rpc.call import Call, check_readable
from headwater.broker.rpc.carrying import Carrying
from headwater.broker.rpc.lending import LentMemory
from headwater.broker.rpc.messages import named_partition, unpack_acks, unpack_record
from headwater.core.errors import HeadwaterError, InvalidRecord, StoreError, TooFewBrokers, UnknownTopic
from headwater.core.machine import machine
from headwater.log import Appended
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import pack_error
from headwater.wire.packing import Framed

_FORWARDING_MS: Final = 20_000
"""Another broker may take so long to write plain records, if their sender has so much time."""
_JOINING: Final = 0.1
"""Seconds between two looks whether brokers enough have joined a cluster."""
_PIPELINED: Final = 1000
"""The number of requests of one stream that may be unanswered."""


class _Accepted:
    """A request whose appends are queued: an answer is to follow."""

    def __init__(self, meters: Meters, request_id: int, size: int) -> None:
        self._meters = meters
        self.id = request_id
        self._size = size
        self.whole: asyncio.Future[Appended] | None = None
        self.parts: list[RoutedAppend] = []
        self.memory: LentMemory | None = None
        self.error: Exception | None = None

    async def answer(self) -> pb.ProduceResponse:
        """The offsets of everything; raises what went wrong."""
        if self.error is not None:
            raise self.error
        if self.memory is not None:
            return pb.ProduceResponse(id=self.id, memory=self.memory.described())
        if self.whole is not None:
            base, end, duplicate = await self.whole
            if not duplicate:
                self._count(end - base)
            return pb.ProduceResponse(id=self.id, base_offset=base, end_offset=end, duplicate=duplicate)
        places: dict[int, pb.Place] = {}
        failed: Exception | None = None
        for partition, numbers, future in self.parts:
            try:
                appended = await future
            except HeadwaterError as error:
                failed = error
                continue
            self._count(len(numbers))
            for offset, number in enumerate(numbers, appended.base_offset):
                places[number] = pb.Place(partition=partition, offset=offset)
        if failed is not None:
            raise failed
        return pb.ProduceResponse(id=self.id, places=[places[number] for number in sorted(places)])

    def _count(self, records: int) -> None:
        self._meters.produced_records += records
        self._meters.produced_bytes += self._size
        self._size = 0

    def give_up(self) -> None:
        """Nobody waits for it: appends that are not begun are not written."""
        for future in (self.whole, *(part.appended for part in self.parts)):
            if future is not None and not future.cancel() and not future.cancelled():
                future.exception()  # it has ended, and nobody is left to be told how


class ProducingMethods:
    """The methods that write."""

    def __init__(self, core: Core, carrying: Carrying) -> None:
        self._core = core
        self._carried_sync = carrying.method("Sync", self._sync)
        self._logs = core.backend.logs
        self._admission = Admission(core.backend, core.config.max_decoded_bytes)

    async def open_producer(self, request: pb.OpenProducerRequest, call: Call) -> pb.OpenProducerResponse:
        secrets, caller = self._core.backend.secrets, call.caller.name
        if not request.producer_id:
            producer_id = secrets.new_producer(caller)
            return pb.OpenProducerResponse(producer_id=producer_id, secret=secrets.secret_of(caller, producer_id))
        known = secrets.owns(caller, request.producer_id)
        if not known or not hmac.compare_digest(secrets.secret_of(caller, request.producer_id), request.secret):
            raise StoreError("the broker does not know a producer with this id and secret: open a new producer")
        return pb.OpenProducerResponse(producer_id=request.producer_id, secret=request.secret)

    async def produce(self, request: Framed[pb.ProduceRequest], call: Call) -> pb.ProduceResponse:
        hold = await call.hold_request(_size(request))
        accepted = None
        try:
            accepted = await self._accept(request, call)
            return await accepted.answer()
        finally:
            if accepted is not None:
                accepted.give_up()
            hold.give_back()

    async def produce_stream(
        self,
        requests: AsyncIterator[Framed[pb.ProduceRequest]],  # noqa: ARG002 - read by the call, which costs less
        call: Call,
    ) -> AsyncGenerator[pb.ProduceResponse]:
        stream = _ProduceStream()
        reading = asyncio.create_task(self._take_in(call, stream))
        draining = asyncio.create_task(self._core.runtime.draining.wait())
        draining.add_done_callback(lambda _: reading.cancel())
        try:
            while (accepted := await stream.next()) is not None:
                yield await _told(accepted)
                stream.answered()
            if self._core.runtime.draining.is_set():
                raise Refused("the broker is stopping: send again what is not answered")
            await reading
        finally:
            draining.cancel()
            reading.cancel()
            stream.give_up()
            self._core.lent_bytes -= 0 if stream.memory is None else stream.memory.size

    async def _take_in(self, call: Call, stream: _ProduceStream) -> None:
        """Read requests while there is room for them, and queue their appends."""
        try:
            while (request := await call.context.read()) is not grpc.aio.EOF:
                call.identify_again()
                check_readable(request)
                region = 0 if stream.memory is None else min(request.message.region.length, stream.memory.size)
                hold = await call.hold_request(_size(request) + region)
                try:
                    accepted = await self._accept(request, call, stream)
                except HeadwaterError as error:
                    accepted = _Accepted(self._core.meters, request.message.id, 0)
                    accepted.error = error
                except BaseException:
                    hold.give_back()
                    raise
                await stream.put(accepted, hold)
        finally:
            stream.end()

    async def _accept(
        self, request: Framed[pb.ProduceRequest], call: Call, stream: _ProduceStream | None = None
    ) -> _Accepted:
        """Queue the appends of a request."""
        message, frames = request
        accepted = _Accepted(self._core.meters, message.id, _size(request) + message.region.length)
        if message.borrow_bytes and stream is not None:
            accepted.memory = stream.memory = self._lent(message, stream)
            return accepted
        call.check("write", "topic", message.topic)
        region = message.region if message.HasField("region") else None
        if frames or region is not None:
            if message.records or not message.HasField("partition") or (frames and region is not None):
                raise InvalidRecord("a request has records, or frames and a partition")
            data = (lambda: frames) if region is None else self._lying_in(region, stream)
            batch = self._admission.batch(call.caller.name, message.topic_uuid, data)
            partition = TopicPartition(message.topic, message.partition)
            accepted.whole = self._logs.append(partition, batch, unpack_acks(message.acks))
            return accepted
        if not message.records:
            raise InvalidRecord("a request has at least one record or frame")
        try:
            accepted.parts = await self._append_records(message, call)
        except UnknownTopic:
            partitions = self._core.config.auto_create_partitions
            if partitions is None or message.topic_uuid or call.by_broker:
                raise
            await self._create_topic(message.topic, partitions, call)
            accepted.parts = await self._append_records(message, call)
        return accepted

    async def _append_records(self, message: pb.ProduceRequest, call: Call) -> list[RoutedAppend]:
        return await self._logs.append_records(
            NamedTopic(message.topic, message.topic_uuid),
            message.partition if message.HasField("partition") else None,
            list(map(unpack_record, message.records)),
            unpack_acks(message.acks),
            RecordsHop(call.patience(_FORWARDING_MS), forwarded=call.by_broker),
        )

    async def _create_topic(self, name: str, partitions: int, call: Call) -> None:
        """Create a raw topic for plain records. Waits for brokers that are still joining, if its replicas need them."""
        call.check("admin", "topic", name)
        deadline = time.monotonic() + call.patience(_FORWARDING_MS)
        while True:
            try:
                await self._core.backend.catalog.create(NewTopic(name, partitions, exist_ok=True))
            except TooFewBrokers:
                if time.monotonic() > deadline:
                    raise
            else:
                return
            await asyncio.sleep(_JOINING)

    def _lent(self, message: pb.ProduceRequest, stream: _ProduceStream) -> LentMemory | None:
        """Memory for a stream, if it comes from this machine and there is some to lend."""
        lent = self._core.lent_bytes + message.borrow_bytes
        here = machine() and message.machine == machine()
        if stream.memory is not None or not here or lent > self._core.config.max_in_flight_bytes:
            return stream.memory
        try:
            memory = LentMemory(message.borrow_bytes)
        except OSError:
            return None
        self._core.lent_bytes = lent
        return memory

    def _lying_in(self, region: pb.Region, stream: _ProduceStream | None) -> Callable[[], Sequence[bytes]]:
        """A function that reads a frame from the memory of a stream."""
        memory = None if stream is None else stream.memory
        if memory is None or region.position + region.length > memory.size:
            raise InvalidRecord("a frame lies in memory that was not lent for it")
        return lambda: [memory.read(region)]

    async def sync(self, request: pb.SyncRequest, call: Call) -> pb.SyncResponse:
        if not call.may_be_carried:
            return await self._sync(request, call)
        # Each may have another leader.
        parts = [pb.SyncRequest(partitions=[named]) for named in request.partitions]
        await asyncio.gather(*(self._carried_sync(part, call) for part in parts))
        return pb.SyncResponse()

    async def _sync(self, request: pb.SyncRequest, call: Call) -> pb.SyncResponse:
        for named in request.partitions:
            call.check("write", "topic", named.topic)
        await self._logs.sync(list(map(named_partition, request.partitions)))
        return pb.SyncResponse()


class _ProduceStream:
    """The requests of a stream that are not answered yet, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[_Accepted, Hold]] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        self.memory: LentMemory | None = None
        """The memory that the producer puts its frames in, if it is on this machine."""

    async def put(self, accepted: _Accepted, hold: Hold) -> None:
        """Add a request, and wait until there is room for another one."""
        self._waiting.append((accepted, hold))
        self._changed.set()
        if len(self._waiting) >= _PIPELINED:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        """No more will come."""
        self._ended = True
        self._changed.set()

    async def next(self) -> _Accepted | None:
        """The oldest one, when there is one; None when there will be no more."""
        while not self._waiting:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting[0][0]

    def answered(self) -> None:
        """The oldest one has got its answer."""
        _, hold = self._waiting.popleft()
        hold.give_back()
        self._room.set()

    def give_up(self) -> None:
        """Nobody is there any more to be answered.

        The newest goes first: an append queue that just takes them, from the oldest on, then leaves no gap.
        """
        for accepted, _ in reversed(self._waiting):
            accepted.give_up()
        while self._waiting:
            self.answered()


async def _told(accepted: _Accepted) -> pb.ProduceResponse:
    """The answer, with the error in it if there is one."""
    try:
        return await accepted.answer()
    except HeadwaterError as error:
        return pb.ProduceResponse(id=accepted.id, error=pack_error(error))


def _size(request: Framed[pb.ProduceRequest]) -> int:
    return request.message.ByteSize() + sum(map(len, request.frames))
