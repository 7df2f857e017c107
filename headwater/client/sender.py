"""Producing over a network: frames are on their way while the next ones are gathered.

Each frame carries the producer's identity and a number, by which the broker knows one that comes twice. Up to five are
on their way to a partition at a time, as many as the broker remembers. When the connection breaks, all that was not
answered is sent again, in order: what had arrived is answered with its place.

A frame that the broker refuses leaves a gap in the numbers. Those behind it are refused for that, and sent again under
a new identity, which begins to count anew. So a frame that fails holds up no other, and the order stays.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final
from weakref import WeakMethod

import grpc

from headwater.client import fork
from headwater.client.borrowing import BorrowedMemory
from headwater.client.connection import DELAYED, Channel, Connection, pauses
from headwater.core.config import Acks
from headwater.core.errors import (
    BrokerUnavailable,
    BufferFull,
    HeadwaterError,
    NotLeader,
    OutOfOrderSequence,
    PartitionBusy,
    PartitionClosed,
    StoreClosed,
)
from headwater.core.machine import machine
from headwater.core.options import KIB, MIB
from headwater.log import Appended, Frame, Identity
from headwater.log.format.encode import signed
from headwater.log.format.frame import UNSIGNED
from headwater.log.write.producers import BATCHES_KEPT
from headwater.streams.receipt import Outcome
from headwater.streams.topic import Topic
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import unpack_error
from headwater.wire.packing import Sending

_log = logging.getLogger(__name__)
_LOOK: Final = 0.5
"""The seconds between two looks at what is on its way."""
_DOUBT: Final = 1.0
"""After so many seconds without an answer it is asked whether another broker leads by now."""
_REST: Final = 10.0
"""After so many seconds with nothing to send the stream is closed; the next frame opens another."""
_BORROWED: Final = 16 * MIB
"""The bytes of memory that a stream asks a broker on this machine for."""
_WORTH_BORROWING: Final = 64 * KIB
"""Smaller frames are sent: then two more calls of the system take longer than copying does."""
_AT_EASE: Final = 2
"""With so many frames on their way, one that is not full yet can wait."""
_BUSY_PAUSE: Final = 0.05
_RENUMBERED_AT_MOST: Final = 3
_AGAIN: Final = (PartitionBusy, PartitionClosed, StoreClosed, BufferFull)
"""The broker's errors after which a frame may well be taken in a moment."""
_ACKS: Final[dict[Acks, pb.Acks]] = {"all": pb.ACKS_ALL, "leader": pb.ACKS_LEADER, "none": pb.ACKS_NONE}


class _Sent:
    """A frame on its way."""

    __slots__ = ("deadline", "frame", "id", "lane", "outcome", "renumbered", "serial")

    def __init__(self, serial: int, lane: _Lane, frame: Frame, outcome: Outcome, deadline: float) -> None:
        self.serial = serial
        """Its number among all frames: the order that is kept, however often frames are sent again."""
        self.id = 0
        self.lane = lane
        self.frame = frame
        self.outcome = outcome
        self.deadline = deadline
        self.renumbered = 0


class _Lane:
    """The frames on their way to one partition, in order. The caller holds the sender's mutex."""

    def __init__(self, topic: str, uuid: bytes, partition: int, identity: Identity, acks: pb.Acks) -> None:
        self.topic = topic
        self.uuid = uuid
        self.partition = partition
        self.identity = identity
        self.acks = acks
        self.next = 0
        """The number of the next record."""
        self.flying: deque[_Sent] = deque()
        self.waiting: deque[_Sent] = deque()
        """Refused, or come since: sent when nothing flies any more."""
        self.renumber = False
        """True if there is a gap in the numbers, which only a new identity closes."""

    def __len__(self) -> int:
        return len(self.flying) + len(self.waiting)

    def number(self, sent: _Sent) -> None:
        """Give the frame the next number."""
        sent.frame = signed(sent.frame, self.identity._replace(sequence=self.next))
        self.next += sent.frame.record_count

    def request(self, sent: _Sent) -> Sending[pb.ProduceRequest]:
        request = pb.ProduceRequest(
            id=sent.id, topic=self.topic, topic_uuid=self.uuid, partition=self.partition, acks=self.acks
        )
        return Sending(request, sent.frame.pieces())


class _Stream:
    """One stream to the broker, until it breaks."""

    def __init__(self, channel: Channel, metadata: Any, *, direct: bool) -> None:
        """With `direct` it borrows memory of a broker on this machine, when there are frames that are worth it."""
        self.channel = channel
        self._borrows = direct and bool(machine())
        self._memory: BorrowedMemory | None = None
        self._requests: SimpleQueue[Sending[pb.ProduceRequest] | None] = SimpleQueue()
        self.call = channel.stub.ProduceStream(self._messages(), metadata=metadata)
        fork.watch(self)

    def send(self, request: Sending[pb.ProduceRequest]) -> None:
        self._requests.put(request)

    def _messages(self) -> Iterator[Sending[pb.ProduceRequest] | pb.ProduceRequest]:
        """For gRPC's thread: what is to be sent."""
        while (request := self._requests.get()) is not None:
            large = sum(map(len, request.pieces)) >= _WORTH_BORROWING
            if large and self._borrows:
                self._borrows = False
                yield pb.ProduceRequest(borrow_bytes=_BORROWED, machine=machine())
            memory = self._memory if large else None
            region = None if memory is None else memory.put(request.message.id, request.pieces)
            if region is None:
                yield request
            else:
                request.message.region.CopyFrom(region)
                yield request.message

    def hear(self, response: pb.ProduceResponse) -> None:
        """An answer has come."""
        if self._memory is not None:
            self._memory.answered(response.id)
        elif response.HasField("memory"):
            with suppress(OSError):
                self._memory = BorrowedMemory(response.memory)

    def end(self) -> None:
        """Nothing more is sent; what was sent is still answered."""
        self._requests.put(None)

    def abandon_in_child(self) -> None:
        """After a fork: the parent sends, and hears the answers."""
        self._requests = SimpleQueue()


class Sender:
    """Frames go to the partitions of one topic, by way of a broker. Thread-safe."""

    identity: Identity | None = UNSIGNED  # frames are signed when they are sent
    prompt = False
    staging = False

    def __init__(self, connection: Connection, acks: Acks | None = None) -> None:
        """`acks` is the connection's, unless it is given."""
        self._connection = connection
        self._acks = _ACKS[acks or connection.config.acks]
        self._changed = threading.Condition()
        self._lanes: dict[int, _Lane] = {}
        self._flying: dict[int, _Sent] = {}
        self._ids = itertools.count(1)
        self._serials = itertools.count()
        self._bytes = 0
        self._stream: _Stream | None = None
        self._thread: threading.Thread | None = None
        self._identity: Identity | None = None
        self._heard = self._used = 0.0
        self._watched = False
        self._tell: Callable[[BaseException], None] = lambda _: None
        fork.watch(self)

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        self._tell = tell

    def open(self) -> Identity:
        """Get an identity from the broker, if there is none yet: then nothing that is sent waits for it."""
        if self._identity is None:
            self._identity = self._new_identity()
        return self._identity

    # Taking frames.

    def room(self, partition: int, timeout: float) -> bool:
        # A caller that has no time to wait fills a larger frame instead while a few are on their way.
        most = BATCHES_KEPT if timeout > 0 else _AT_EASE
        with self._changed:
            return self._changed.wait_for(lambda: self._has_room(partition, most), timeout)

    def _has_room(self, partition: int, most: int) -> bool:
        lane = self._lanes.get(partition)
        return self._bytes < self._connection.config.in_flight_bytes and (lane is None or len(lane) < most)

    def append(self, topic: Topic, partition: int, frame: Frame, outcome: Outcome) -> None:
        info = topic.recent_info
        self.post(info.name, info.uuid, partition, frame, outcome)

    def post(self, topic: str, uuid: bytes, partition: int, frame: Frame, outcome: Outcome) -> None:
        """Send a frame to a partition. The outcome is told its place when the broker answers."""
        self._connection.check_open()
        identity = self.open()
        deadline = time.monotonic() + self._connection.config.timeout
        with self._changed:
            lane = self._lanes.get(partition)
            if lane is None:
                lane = self._lanes[partition] = _Lane(topic, uuid, partition, identity, self._acks)
            sent = _Sent(next(self._serials), lane, frame, outcome, deadline)
            self._bytes += frame.length
            if lane.waiting:
                lane.waiting.append(sent)
            else:
                self._launch(sent)
            if not self._watched:
                self._watched = True
                DELAYED.call(_LOOK, self._look)

    def _new_identity(self) -> Identity:
        response = self._connection.call("OpenProducer", pb.OpenProducerRequest())
        return Identity(response.producer_id, response.epoch, 0)

    def _launch(self, sent: _Sent) -> None:
        """Number the frame and send it. The mutex is held."""
        lane = sent.lane
        lane.number(sent)
        lane.flying.append(sent)
        sent.id = next(self._ids)
        now = time.monotonic()
        if not self._flying:
            self._heard = now
        self._used = now
        self._flying[sent.id] = sent
        if self._stream is not None:
            self._hand_over(sent, self._stream)
        elif self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headwater-producer", daemon=True)
            self._thread.start()

    def _hand_over(self, sent: _Sent, stream: _Stream) -> None:
        """Put the frame on the stream. It stays on its way until it is answered, also if nobody waits for that."""
        stream.send(sent.lane.request(sent))
        if sent.lane.acks == pb.ACKS_NONE and not sent.outcome.done:
            sent.outcome.let_go()

    # The stream: its own thread reads the answers, and sends everything again when it breaks.

    def _run(self) -> None:
        pause = pauses()
        while True:
            try:
                if self._read(self._connection.channel()):
                    pause = pauses()
            except HeadwaterError as error:  # closed, or whatever we send is refused: nobody will answer
                with self._changed:
                    self._fail(list(self._flying.values()), error)
            except ValueError:
                continue  # the channel was closed before the stream began: there is another one
            with self._changed:
                if not self._flying:
                    self._thread = None
                    return
            time.sleep(next(pause))

    def _read(self, channel: Channel) -> bool:
        """Open a stream and take the answers until it ends; whether there were any."""
        stream = self._begin(channel)
        answered = False
        try:
            for response in stream.call:
                stream.hear(response)
                error = self._answer(response)
                answered = True
                if isinstance(error, NotLeader):
                    self._connection.moved(error)
                    stream.call.cancel()  # what is unanswered is sent again, there
                    break
        except grpc.RpcError as failure:
            _, why = self._connection.explain(failure, channel)
            _log.debug("%s: a stream broke (%s)", channel.address, why)
        finally:
            with self._changed:
                if self._stream is stream:
                    self._stream = None
            stream.end()
        return answered

    def _begin(self, channel: Channel) -> _Stream:
        stream = _Stream(channel, self._connection.metadata, direct=self._connection.config.direct)
        with self._changed:
            for sent in self._flying.values():
                self._hand_over(sent, stream)
            self._heard = time.monotonic()
            self._stream = stream
        return stream

    # Answers.

    def _answer(self, response: pb.ProduceResponse) -> HeadwaterError | None:
        """Tell the one who waits; what the broker says is wrong, if anything."""
        error = unpack_error(response.error) if response.HasField("error") else None
        if isinstance(error, NotLeader):
            return error  # it may be in the log: it stays on its way, and goes to who leads now as it is, before others
        with self._changed:
            self._heard = time.monotonic()
            sent = self._flying.pop(response.id, None)
            if sent is None:
                return error  # given up since
            lane = sent.lane
            lane.flying.remove(sent)
            later = error is not None and self._comes_again(sent, error)
            if later:
                lane.waiting.append(sent)
            else:
                self._bytes -= sent.frame.length
                lane.renumber = lane.renumber or error is not None
            quiet = bool(lane.waiting) and not lane.flying
            # Before anybody is woken: who waits in `flush` finds the outcome.
            if error is None and not sent.outcome.done:
                sent.outcome.succeed(Appended(response.base_offset, response.end_offset, response.duplicate))
            elif error is not None and not later:
                self._refuse(sent, error)
            self._changed.notify_all()
        if quiet:
            busy = isinstance(error, _AGAIN)
            DELAYED.call(_BUSY_PAUSE if busy else 0, partial(self._go_on, lane))
        return error

    def _comes_again(self, sent: _Sent, error: HeadwaterError) -> bool:
        """Return whether the frame is sent again; if not, it has failed."""
        if isinstance(error, _AGAIN):
            return True
        if isinstance(error, OutOfOrderSequence) and error.sequence > error.expected:
            # One before it was refused, or the broker has forgotten us: what we sent last is long done.
            sent.renumbered += 1
            sent.lane.renumber = True
            return sent.renumbered <= _RENUMBERED_AT_MOST
        return False

    def _refuse(self, sent: _Sent, error: BaseException) -> None:
        self._tell(error)
        if not sent.outcome.done:
            sent.outcome.fail(error)
            return
        lane, count = sent.lane, sent.frame.record_count
        _log.error(
            '%s/%d: %d records that were sent with acks="none" have failed: %s',
            lane.topic,
            lane.partition,
            count,
            error,
        )

    def _go_on(self, lane: _Lane) -> None:
        """Send what waits, under a new identity if there is a gap in the numbers of the old one."""
        try:
            identity = self._new_identity() if lane.renumber else None
        except HeadwaterError as error:
            with self._changed:
                failed = list(lane.waiting)
            self._fail(failed, error)
            return
        with self._changed:
            if lane.flying or not lane.waiting:
                return
            # Frames that came while others were still being refused go behind those, whichever was told first.
            waiting = sorted(lane.waiting, key=lambda sent: sent.serial)
            first = waiting[0].frame.identity
            if identity is not None:
                lane.identity, lane.next, lane.renumber = identity, 0, False
            elif first is not None:
                lane.next = first.sequence
            lane.waiting = deque()
            for sent in waiting:
                self._launch(sent)

    # Looking after it.

    def _look(self) -> None:
        """Give up what was not answered in time, and a stream that says nothing."""
        now = time.monotonic()
        stalled: _Stream | None = None
        doubtful: _Stream | None = None
        with self._changed:
            overdue = [
                sent for lane in self._lanes.values() for sent in (*lane.flying, *lane.waiting) if sent.deadline < now
            ]
            busy = any(self._lanes.values())
            if self._flying and now - self._heard > self._connection.config.attempt_timeout:
                stalled = self._stream
            elif self._flying and now - self._heard > _DOUBT:
                doubtful = self._stream
            idle = not busy and now - self._used > _REST
            if idle and self._stream is not None:
                self._stream.end()
                self._stream = None
            self._watched = not idle
        if doubtful is not None and self._connection.leads_elsewhere(doubtful.channel):
            stalled = doubtful
        if stalled is not None:
            self._connection.lose(stalled.channel)
            stalled.call.cancel()
        if overdue:
            seconds = self._connection.config.timeout
            self._fail(overdue, BrokerUnavailable(str(self._connection), "Produce", seconds, "no answer", unknown=True))
        if self._watched:
            look = WeakMethod(self._look) if not busy else None
            DELAYED.call(_LOOK, self._look if look is None else partial(_call, look))

    def _fail(self, failed: Iterable[_Sent], error: BaseException) -> None:
        with self._changed:
            chosen = [sent for sent in failed if sent in sent.lane.flying or sent in sent.lane.waiting]
            for sent in chosen:
                self._flying.pop(sent.id, None)
                lane = sent.lane
                for queue in (lane.flying, lane.waiting):
                    if sent in queue:
                        queue.remove(sent)
                        self._bytes -= sent.frame.length
                lane.renumber = True
                self._refuse(sent, error)
            self._changed.notify_all()

    @property
    def flying_bytes(self) -> int:
        """The number of bytes on their way."""
        return self._bytes

    def wait_for_answer(self, timeout: float) -> None:
        """Wait until something that is on its way has been answered, at most so long."""
        with self._changed:
            if self._bytes:
                self._changed.wait(timeout)

    @property
    def pending(self) -> int:
        with self._changed:
            return sum(
                sent.frame.record_count for lane in self._lanes.values() for sent in (*lane.flying, *lane.waiting)
            )

    def flush(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not any(self._lanes.values()))

    def sync(self, topic: Topic) -> None:
        info = topic.info
        if info.config.sync == "always":
            return  # it was durable when it was answered
        partitions = [
            pb.TopicPartition(topic=info.name, partition=lane.partition, topic_uuid=lane.uuid)
            for lane in list(self._lanes.values())
        ]
        if partitions:
            self._connection.call("Sync", pb.SyncRequest(partitions=partitions))

    def close(self) -> None:
        with self._changed:
            if self._stream is not None and not any(self._lanes.values()):
                self._stream.end()
                self._stream = None

    def abandon_in_child(self) -> None:
        """After a fork: what is on its way is the parent's, and so is the thread that waits for the answers."""
        self._changed = threading.Condition()
        self._lanes = {}
        self._flying = {}
        self._bytes = 0
        self._stream = None


def _call(method: Any) -> None:
    bound = method()
    if bound is not None:
        bound()
