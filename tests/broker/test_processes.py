"""A broker as a process: drained, killed, started twice, flooded, and read from too slowly."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headwater.core.errors import StoreInUse
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Identity
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub
from tests.support.broker import BrokerProcess, fetch, frame_of
from tests.support.patience import has_ended, has_finished


def produce(value: bytes, number: int = 0, identity: Identity | None = None) -> pb.ProduceRequest:
    return pb.ProduceRequest(id=number, topic="t", partition=0, frames=[frame_of(value, identity=identity)])


def values(stub: Stub, offset: int = 0) -> list[bytes]:
    content: list[bytes] = []
    while True:
        fetched = stub.Fetch(fetch("t", offset=offset, as_records=True)).partitions[0]
        if fetched.HasField("error") or not fetched.records:
            return content
        content += [record.value for record in fetched.records]
        offset = fetched.next_offset


class Sender(threading.Thread):
    """Writes records one after the other, as fast as they are acknowledged, until the broker is gone."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__()
        self._broker = broker
        self.acknowledged: list[int] = []
        self.sent = 0
        self._ended = threading.Event()

    def _requests(self) -> Iterator[pb.ProduceRequest]:
        while not self._ended.is_set():
            yield produce(b"%d" % self.sent, self.sent)
            self.sent += 1
            while self.sent - len(self.acknowledged) >= 50 and not self._ended.wait(0.001):
                pass

    def run(self) -> None:
        with self._broker.connected() as stub, suppress(grpc.RpcError):
            for answer in stub.ProduceStream(self._requests()):
                if not answer.HasField("error"):
                    self.acknowledged.append(answer.id)
        self._ended.set()


@pytest.mark.parametrize("how", ["drained", "killed"])
def test_what_was_acknowledged_is_there_when_the_broker_comes_back(tmp_path: Path, how: str) -> None:
    with BrokerProcess(tmp_path / "store") as broker, broker.connected() as stub:
        stub.CreateTopic(pb.CreateTopicRequest(name="t"))
        sender = Sender(broker)
        sender.start()
        while len(sender.acknowledged) < 200:
            time.sleep(0.01)
        if how == "drained":
            assert broker.terminate() == 0
        else:
            broker.kill()
        assert has_finished(sender, 60)
    with BrokerProcess(tmp_path / "store") as broker, broker.connected() as stub:
        stored = values(stub)
        acknowledged = [b"%d" % number for number in sender.acknowledged]
        assert stored[: len(acknowledged)] == acknowledged
        assert stored == [b"%d" % number for number in range(len(stored))], "in order, each once"
        # More may be there than was heard of: when a stream ends, gRPC's client forgets answers that it has not read.
        assert len(stored) - len(acknowledged) <= 50, "no more than could be on its way"


def test_a_retry_after_a_kill_is_stored_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as broker, broker.connected() as stub:
        stub.CreateTopic(pb.CreateTopicRequest(name="t"))
        producer_id = stub.OpenProducer(pb.OpenProducerRequest()).producer_id
        requests = [produce(b"%d" % number, number, Identity(producer_id, 0, number)) for number in range(5)]
        for request in requests:
            stub.Produce(request)
        broker.kill()
    with BrokerProcess(tmp_path / "store") as broker, broker.connected() as stub:
        assert all(stub.Produce(request).duplicate for request in requests)
        assert values(stub) == [b"0", b"1", b"2", b"3", b"4"]


def test_draining_ends_waits_and_tells_health(tmp_path: Path) -> None:
    patient = ("--max-wait", "1h", "--drain-timeout", "1h")
    with BrokerProcess(tmp_path / "store", *patient) as broker, grpc.insecure_channel(broker.address) as channel:
        stub: Any = Stub(channel)
        health: Any = health_pb2_grpc.HealthStub(channel)
        stub.CreateTopic(pb.CreateTopicRequest(name="t"))
        for service in ("", "headwater.v1.Broker"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watched = health.Watch(health_pb2.HealthCheckRequest(service="headwater.v1.Broker"))
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        waiting = stub.Fetch.future(fetch("t", max_wait_ms=3_600_000))
        subscribed = stub.Subscribe(fetch("t"))
        time.sleep(0.3)
        assert broker.terminate() == 0, "it did not wait for those who wait"
        assert not waiting.result(timeout=300).partitions[0].frames
        assert list(subscribed) == []
        with suppress(grpc.RpcError):
            states = [answer.status for answer in watched]
            assert states[-1:] in ([], [health_pb2.HealthCheckResponse.NOT_SERVING])


def test_reflection_tells_the_methods(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as broker, grpc.insecure_channel(broker.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = next(stub.ServerReflectionInfo(iter([request])))
        assert "headwater.v1.Broker" in [service.name for service in answer.list_services_response.service]


def test_a_second_broker_and_other_processes_are_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as broker:
        second = BrokerProcess(tmp_path / "store", log=tmp_path / "second.log")
        assert has_ended(second.process, 60)
        assert second.process.returncode != 0
        told = second.log.read_text()
        assert "cannot be opened" in told
        assert "Traceback" not in told
        with pytest.raises(StoreInUse, match="a broker serves it"):
            DirectoryStore(tmp_path / "store")
        other_port = BrokerProcess(tmp_path / "other", listen=broker.address)
        assert has_ended(other_port.process, 60)
        assert other_port.process.returncode != 0
        assert "listen" in other_port.log.read_text()


def test_noise_at_the_port_does_not_disturb_others(tmp_path: Path) -> None:
    random = Random(7)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    with BrokerProcess(tmp_path / "store") as broker, broker.connected() as stub:
        stub.CreateTopic(pb.CreateTopicRequest(name="t"))
        host, port = broker.address.split(":")
        half_open = []
        for number in range(200):
            with suppress(OSError):
                connection = socket.create_connection((host, int(port)), timeout=60)
                connection.sendall((preface if number % 2 else b"") + random.randbytes(random.randrange(3000)))
                half_open.append(connection)
        for number in range(20):
            stub.Produce(produce(b"%d" % number))
        assert values(stub) == [b"%d" % number for number in range(20)]
        for connection in half_open:
            connection.close()
        assert broker.process.poll() is None


def test_requests_of_noise_are_refused_and_the_broker_goes_on(tmp_path: Path) -> None:
    random = Random(8)
    with BrokerProcess(tmp_path / "store") as broker:
        with grpc.insecure_channel(broker.address) as channel:
            for name in ("Produce", "Fetch", "CreateTopic", "Commit", "CommitTransaction", "WorkOnPartition"):
                call: Any = channel.unary_unary(f"/headwater.v1.Broker/{name}")
                for _ in range(50):
                    with suppress(grpc.RpcError):
                        call(random.randbytes(random.randrange(200)), timeout=30)
        with broker.connected() as stub:
            stub.CreateTopic(pb.CreateTopicRequest(name="t"))
            stub.Produce(produce(b"x"))
            assert values(stub) == [b"x"]
        assert "Traceback" not in broker.log.read_text()


def test_a_slow_consumer_and_a_fast_producer_leave_the_memory_alone(tmp_path: Path) -> None:
    megabyte = 1_000_000
    with BrokerProcess(tmp_path / "store") as broker, broker.connected() as stub, broker.connected() as slow:
        stub.CreateTopic(pb.CreateTopicRequest(name="t", options={"sync": "never"}))
        record = os.urandom(megabyte)
        stub.Produce(produce(record))
        subscribed = [slow.Subscribe(fetch("t")) for _ in range(4)]
        fetched = [slow.Fetch.future(fetch("t", max_bytes=4 * megabyte)) for _ in range(20)]
        for call in subscribed:
            next(call)
        list(stub.ProduceStream(produce(record) for _ in range(20)))
        before = broker.resident_bytes()
        list(stub.ProduceStream(produce(record) for _ in range(280)))
        assert broker.resident_bytes() - before < 150 * megabyte, "of 300 MB that four consumers have not read"
        for call in (*subscribed, *fetched):
            call.cancel()


def test_what_the_caller_has_given_up_is_not_begun(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store", "--threads", "1") as broker, broker.connected() as stub:
        stub.CreateTopic(pb.CreateTopicRequest(name="t"))
        burst = [stub.Produce.future(produce(b"%d" % number)) for number in range(300)]
        for call in burst[100:]:
            call.cancel()
        done = {b"%d" % number for number, call in enumerate(burst[:100]) if call.result(timeout=300)}
        stored = values(stub)
        assert done <= set(stored)
        assert len(stored) == len(set(stored))
