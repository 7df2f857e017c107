"""Producing over the wire: frames and plain records go into the lanes of their partitions."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from itertools import count
from typing import Final

import grpc

from headwater.broker.core import Core, Meters, partition_of, topic_of
from headwater.broker.limits.admission import Frames
from headwater.broker.limits.budget import Hold
from headwater.broker.rpc.call import Call, Refused, check_readable
from headwater.broker.rpc.lane import Batch, Lanes
from headwater.broker.rpc.lending import LentMemory
from headwater.broker.rpc.plain import Records, records_of
from headwater.core.errors import HeadwaterError, InvalidRecord, StoreError, UnknownTopic
from headwater.core.machine import machine
from headwater.log import Appended
from headwater.streams.topic import TopicPartition
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import pack_error
from headwater.wire.packing import Framed

_FORWARDING_MS: Final = 20_000
"""How long plain records may take that another broker is to write, if their sender has so much time."""
_AGAIN: Final = 0.02
"""How often it is looked whether a new topic is known here by now. Seconds."""
_PIPELINED: Final = 1000
"""How many requests of one stream may be unanswered."""


class _Accepted:
    """A request that is in its lanes: an answer is to follow."""

    def __init__(self, meters: Meters, request_id: int, size: int) -> None:
        self._meters = meters
        self.id = request_id
        self._size = size
        self.whole: asyncio.Future[Appended] | None = None
        self.parts: list[tuple[int, Records, asyncio.Future[Appended]]] = []
        self.memory: LentMemory | None = None
        self.error: Exception | None = None

    async def answer(self) -> pb.ProduceResponse:
        """Where everything is; raises what went wrong."""
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
        for partition, records, future in self.parts:
            try:
                appended = await future
            except HeadwaterError as error:
                failed = error
                continue
            self._count(len(records.numbers))
            for offset, number in enumerate(records.numbers, appended.base_offset):
                places[number] = pb.Place(partition=partition, offset=offset)
        if failed is not None:
            raise failed
        return pb.ProduceResponse(id=self.id, places=[places[number] for number in sorted(places)])

    def _count(self, records: int) -> None:
        self._meters.produced_records += records
        self._meters.produced_bytes += self._size
        self._size = 0

    def give_up(self) -> None:
        """Nobody waits for it: what is not begun is not written."""
        for future in (self.whole, *(part[2] for part in self.parts)):
            if future is not None and not future.cancel() and not future.cancelled():
                future.exception()  # it has ended, and nobody is left to be told how


class Producing:
    """The methods that write."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._lanes = Lanes(core)
        self._turns = count()

    async def open_producer(self, request: pb.OpenProducerRequest, call: Call) -> pb.OpenProducerResponse:
        secrets, caller = self._core.secrets, call.caller.name
        if not request.producer_id:
            producer_id = secrets.new_producer(caller)
            return pb.OpenProducerResponse(producer_id=producer_id, secret=secrets.secret_of(caller, producer_id))
        known = secrets.owns(caller, request.producer_id)
        if not known or not hmac.compare_digest(secrets.secret_of(caller, request.producer_id), request.secret):
            raise StoreError("the producer is not known by this id and secret: open a new one")
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
        stream = _Stream()
        reading = asyncio.create_task(self._take_in(call, stream))
        draining = asyncio.create_task(self._core.draining.wait())
        draining.add_done_callback(lambda _: reading.cancel())
        try:
            while (accepted := await stream.next()) is not None:
                yield await _told(accepted)
                stream.answered()
            if self._core.draining.is_set():
                raise Refused("the broker is stopping: send again what is not answered")
            await reading
        finally:
            draining.cancel()
            reading.cancel()
            stream.give_up()
            self._core.lent_bytes -= 0 if stream.memory is None else stream.memory.size

    async def _take_in(self, call: Call, stream: _Stream) -> None:
        """Read requests for as long as there is room for them, and put them into their lanes."""
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

    async def _accept(self, request: Framed[pb.ProduceRequest], call: Call, stream: _Stream | None = None) -> _Accepted:
        """Put a request into the lanes of its partitions."""
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
            batch = Frames(self._core, call.caller, message.topic_uuid, data)
            accepted.whole = self._append(TopicPartition(message.topic, message.partition), batch, message.acks)
            return accepted
        if not message.records:
            raise InvalidRecord("a request has at least one record or frame")
        cluster = self._core.cluster
        deadline = time.monotonic() + call.patience(_FORWARDING_MS)
        routed = await self._routed(message, deadline)
        if cluster is not None:
            for partition in routed:
                await cluster.wait_for_leader(TopicPartition(message.topic, partition), deadline - time.monotonic())
        for partition, records in routed.items():
            place = TopicPartition(message.topic, partition)
            if cluster is not None and not cluster.leads(place) and not call.by_broker:
                passed_on = pb.ProduceRequest(
                    topic=message.topic,
                    topic_uuid=message.topic_uuid,
                    partition=partition,
                    records=[message.records[number] for number in records.numbers],
                    acks=message.acks,
                )
                seconds = call.patience(_FORWARDING_MS)
                accepted.parts.append(
                    (partition, records, asyncio.ensure_future(cluster.forward(place, passed_on, seconds)))
                )
            else:
                accepted.parts.append((partition, records, self._append(place, records, message.acks)))
        return accepted

    def _lent(self, message: pb.ProduceRequest, stream: _Stream) -> LentMemory | None:
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

    def _lying_in(self, region: pb.Region, stream: _Stream | None) -> Callable[[], Sequence[bytes]]:
        """How to read a frame that lies in the memory of a stream."""
        memory = None if stream is None else stream.memory
        if memory is None or region.position + region.length > memory.size:
            raise InvalidRecord("a frame lies in memory that was not lent for it")
        return lambda: [memory.read(region)]

    def _append(self, place: TopicPartition, batch: Batch, acks: pb.Acks) -> asyncio.Future[Appended]:
        """Queue a batch. In a cluster it is answered when the replicas have it that its sender asks for."""
        cluster = self._core.cluster
        if cluster is None:
            return self._lanes.append(place, batch)
        cluster.check_leads(place)
        by_all = acks not in (pb.ACKS_LEADER, pb.ACKS_NONE)
        return cluster.acknowledged(place, self._lanes.append(place, batch), by_all=by_all)

    async def _routed(self, message: pb.ProduceRequest, deadline: float) -> dict[int, Records]:
        """Plain records by their partitions. A topic that another broker has just made is waited for."""
        while True:
            try:
                return await self._core.read(self._route, message)
            except UnknownTopic:
                if self._core.cluster is None or time.monotonic() > deadline:
                    raise
                await self._core.cluster.topics.get(message.topic)  # raises the same unless the cluster has it
            await asyncio.sleep(_AGAIN)

    def _route(self, message: pb.ProduceRequest) -> dict[int, Records]:
        info = topic_of(self._store, message)
        partition = message.partition if message.HasField("partition") else None
        schema = self._store.schema_of(info)
        return records_of(message.records, info, schema, partition, next(self._turns), time.time_ns())

    async def sync(self, request: pb.SyncRequest, call: Call) -> pb.SyncResponse:
        for place in request.partitions:
            call.check("write", "topic", place.topic)
        await self._core.write(self._sync, list(request.partitions))
        return pb.SyncResponse()

    def _sync(self, places: list[pb.TopicPartition]) -> None:
        for place in places:
            partition_of(self._store, place).sync()


class _Stream:
    """The requests of a stream that are not answered yet, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[_Accepted, Hold]] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        self.memory: LentMemory | None = None
        """What the producer puts its frames in, if it is on this machine."""

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

        The newest goes first: a lane that is just looking at them, from the oldest on, then leaves no gap.
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
