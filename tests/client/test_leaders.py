"""Batches on their way to a leader when another one takes its place come to the log once, in their order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Self

import grpc
import pyarrow as pa
import pytest

import headwater as hw
from headwater.client.connection import Connection
from headwater.client.credentials import Credentials
from headwater.client.leaders import Leaders
from headwater.client.sender import Sender
from headwater.core.address import Address
from headwater.core.errors import HeadwaterError, NotLeader
from headwater.core.schema import RAW
from headwater.log import Appended, Identity, MemoryPartition, admit, encode
from headwater.log.write.producers import BATCHES_KEPT
from headwater.streams.receipt import Outcome
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import pack_error
from headwater.wire.packing import Framed
from headwater.wire.service import handler

TOPIC = "numbers"
UUID = bytes(16)
PATIENCE = 300.0
SLOW = hw.ClientConfig(timeout=PATIENCE, attempt_timeout=PATIENCE, direct=False)
Frames = list[tuple[Identity, list[bytes]]]


class LeadingBroker:
    """A broker, as far as a producer needs it. It appends to a real log, and answers as the test wants it."""

    def __init__(self, number: int, brokers: list[LeadingBroker]) -> None:
        self.log = MemoryPartition()
        self.came: Frames = []
        """Each frame that came, also those that are in the log already."""
        self.acknowledged = 1 << 30
        """So many frames are acknowledged; from then on another one leads."""
        self.appended = 1 << 30
        """And so many are appended: those between may be in the next leader's log, or not."""
        self.rest_has_come = threading.Event()
        self.leader = 0
        """The broker that leads, as this one tells it."""
        self.answers = threading.Event()
        """Clear while it appends nothing and answers no producer, as if it were stopped."""
        self.answers.set()
        self._number = number
        self._brokers = brokers
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((handler(self),))
        self.address = Address("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def __getattr__(self, name: str) -> Any:
        """A method that no producer calls."""
        if name.startswith("_"):
            raise AttributeError(name)

        def refuse(_: object, context: grpc.ServicerContext) -> None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, name)

        return refuse

    def GetMetadata(self, _: pb.GetMetadataRequest, __: grpc.ServicerContext) -> pb.Metadata:  # noqa: N802
        addresses = [
            pb.BrokerAddress(id=broker._number, host=broker.address.host, port=broker.address.port)
            for broker in self._brokers
        ]
        led = pb.TopicMetadata(
            topic=pb.Topic(name=TOPIC), partitions=[pb.PartitionMetadata(partition=0, leader=self.leader)]
        )
        return pb.Metadata(cluster_id="c", brokers=addresses, topics=[led])

    def OpenProducer(self, _: pb.OpenProducerRequest, __: grpc.ServicerContext) -> pb.OpenProducerResponse:  # noqa: N802
        return pb.OpenProducerResponse(producer_id=b"p" * 16, epoch=0)

    def ProduceStream(  # noqa: N802
        self, requests: Iterator[pb.ProduceRequest | Framed[pb.ProduceRequest]], _: grpc.ServicerContext
    ) -> Iterator[pb.ProduceResponse]:
        for request in requests:
            self.answers.wait(PATIENCE)
            message, frames = request if isinstance(request, Framed) else (request, request.frames)
            answer = pb.ProduceResponse(id=message.id)
            try:
                appended = self._take(bytes(frames[0]))
                answer.base_offset, answer.end_offset, answer.duplicate = appended
            except HeadwaterError as error:
                if isinstance(error, NotLeader):
                    self.rest_has_come.wait(PATIENCE)  # all that is on its way is, when the client hears of it
                answer.error.CopyFrom(pack_error(error))
            yield answer

    def _take(self, data: bytes) -> Appended:
        stored = admit(pa.py_buffer(data), RAW)
        frame = stored.unstamped()
        assert frame.identity is not None
        self.came.append((frame.identity, [record.value or b"" for record in stored.records()]))
        appended = None if len(self.came) > self.appended else self.log.append(frame)
        if appended is None or len(self.came) > self.acknowledged:
            raise NotLeader(TOPIC, 0, str(self._brokers[1].address))
        return appended

    def stop(self) -> None:
        self._server.stop(None)


class Pair:
    """The broker that leads at first, the one that does then, and a producer's way to them."""

    def __init__(self) -> None:
        brokers: list[LeadingBroker] = []
        brokers += [LeadingBroker(number, brokers) for number in range(2)]
        self.old, self.new = brokers
        self._stack = ExitStack()
        for broker in brokers:
            self._stack.callback(broker.stop)
        connection = Connection([self.old.address], SLOW, Credentials())
        self._stack.callback(connection.close)
        self.appender = Sender(Leaders(connection).of(TOPIC, 0))

    def send(self, *values: bytes) -> Outcome:
        assert self.appender.room(0, PATIENCE)
        outcome = Outcome(0)
        self.appender.post(TOPIC, UUID, 0, encode(list(values)), outcome)
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


SENT = [[b"a0"], [b"b0", b"b1", b"b2"], [b"c0", b"c1"], [b"d0"], [b"e0", b"e1"]]


@pytest.mark.parametrize("acknowledged", range(len(SENT)))
@pytest.mark.parametrize("more", [0, 1, 2])
def test_what_a_leader_refuses_goes_to_the_next_one_under_its_own_numbers(acknowledged: int, more: int) -> None:
    """The first ones are acknowledged. Some more are in the log of the next leader, though it was not said so."""
    assert len(SENT) == BATCHES_KEPT, "as many as can be on their way"
    copied = min(acknowledged + more, len(SENT))
    with Pair() as brokers:
        brokers.old.acknowledged, brokers.old.appended = acknowledged, copied
        for values in SENT[:copied]:
            brokers.new.log.append(_signed(values))
        outcomes = [brokers.send(*values) for values in SENT]
        brokers.old.rest_has_come.set()
        later = brokers.send(b"later")
        assert all(outcome.wait(PATIENCE) for outcome in (*outcomes, later))
        assert not [outcome.error for outcome in (*outcomes, later) if outcome.error is not None]
        stored = [(record.offset, record.value) for record in brokers.new.log.records()]
    expected = [value for values in [*SENT, [b"later"]] for value in values]
    assert stored == list(enumerate(expected)), "each once, in order"
    offsets = [outcome.appended.base_offset for outcome in (*outcomes, later) if outcome.appended is not None]
    assert offsets == [expected.index(values[0]) for values in [*SENT, [b"later"]]]
    assert [(identity.sequence, values) for identity, values in brokers.new.came] == [
        (expected.index(values[0]), values) for values in [*SENT[acknowledged:], [b"later"]]
    ], "all that was not acknowledged, as it was"


def test_a_leader_that_falls_silent_is_left_when_others_know_the_next_one() -> None:
    with Pair() as brokers:
        assert brokers.send(b"before").wait(PATIENCE)
        brokers.old.answers.clear()
        outcome = brokers.send(b"after")
        assert not outcome.wait(2.0), "nobody else leads: it is only slow"
        assert len(brokers.old.came) == 1
        brokers.old.leader = brokers.new.leader = 1
        brokers.new.log.append(encode([b"before"], identity=Identity(b"p" * 16, 0, 0)))
        try:
            assert outcome.wait(PATIENCE / 2)
        finally:
            brokers.old.answers.set()
        assert outcome.error is None
        assert [record.value for record in brokers.new.log.records()] == [b"before", b"after"]


def _signed(values: list[bytes]) -> Any:
    flat = [value for batch in SENT for value in batch]
    return encode(values, identity=Identity(b"p" * 16, 0, flat.index(values[0])))
