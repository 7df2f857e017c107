"""Brokers for tests: in a thread over a new store, with plain stubs to call them by."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import grpc

from headwater.broker import Broker
from headwater.core.address import Address
from headwater.core.config import BrokerConfig
from headwater.embedded.directory_store import DirectoryStore
from headwater.log import Frame, Identity, encode
from headwater.log.format.frame import GROUP_ONLY
from headwater.streams import Store
from headwater.v1 import broker_pb2 as pb
from headwater.wire.faults import error_of
from headwater.wire.service import Stub
from tests.support.forked import Process, fork
from tests.support.patience import Patience, has_ended

PATIENCE: Final = 60.0
"""Seconds of time that the machine granted, after which something hangs."""

ANY_PORT: Final = Address("127.0.0.1", 0)
_SERVING: Final = re.compile(r'"address": "hw://([^"]+)"')


class Served:
    """A broker that serves, and a stub to call it by."""

    def __init__(self, store: Store, broker: Broker) -> None:
        self.store = store
        self.broker = broker
        self.channel = grpc.insecure_channel(str(broker.address), options=[("grpc.use_local_subchannel_pool", 1)])
        self.stub = Stub(self.channel)

    def create(self, name: str, partitions: int = 1, **options: str) -> pb.Topic:
        """Make a topic."""
        topic: pb.Topic = self.stub.CreateTopic(
            pb.CreateTopicRequest(name=name, partitions=partitions, options=options)
        )
        return topic

    def send(self, topic: str, *values: bytes, **fields: Any) -> pb.ProduceResponse:
        """Produce plain records without keys."""
        records = [pb.Record(value=value) for value in values]
        answer: pb.ProduceResponse = self.stub.Produce(pb.ProduceRequest(topic=topic, records=records, **fields))
        return answer

    def values(self, topic: str, partition: int = 0, offset: int = 0, **fields: Any) -> list[bytes]:
        """The values from an offset on, as far as one fetch returns them."""
        answer = self.stub.Fetch(fetch(topic, partition, offset, as_records=True, **fields))
        return [record.value for record in answer.partitions[0].records]


@contextmanager
def served(path: Path, config: BrokerConfig | None = None, store: Store | None = None) -> Iterator[Served]:
    """A broker over a store in a directory, for the length of a block."""
    with store or DirectoryStore(path, exclusive=True) as opened, Broker(opened, config, listen=ANY_PORT) as broker:
        found = Served(opened, broker)
        try:
            yield found
        finally:
            found.channel.close()


def data_of(frame: Frame) -> bytes:
    """A frame as clients send it: with a stamp that nobody looks at."""
    head, _ = frame.stamp(0, durable_end=0, leader_epoch=0, previous=0, group=GROUP_ONLY, seed=0)
    return head + memoryview(frame.message)


def frame_of(*values: bytes, identity: Identity | None = None) -> bytes:
    """A frame of plain records."""
    return data_of(encode(list(values), identity=identity))


def fetch(topic: str, partition: int = 0, offset: int = 0, **fields: Any) -> pb.FetchRequest:
    """A fetch from one partition."""
    return pb.FetchRequest(positions=[position(topic, partition, offset)], **fields)


def position(topic: str, partition: int = 0, offset: int = 0) -> pb.FetchPosition:
    """Make a position to fetch from."""
    return pb.FetchPosition(partition=pb.TopicPartition(topic=topic, partition=partition), offset=offset)


def refusal(call: Any, request: Any) -> tuple[grpc.StatusCode, Exception | None]:
    """The code of a call that fails, and the error that it tells of."""
    try:
        call(request)
    except grpc.RpcError as failure:
        return failure.code(), error_of(failure)
    raise AssertionError("the call was answered")


class BrokerProcess:
    """`hw broker` as a process of its own."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        listen: str = "127.0.0.1:0",
        log: Path | None = None,
        within: Sequence[str] = (),
        program: str = "headwater.cli",
    ) -> None:
        """`within` comes before the command, and has it run elsewhere; `program` is a module that serves as `hw`."""
        self.log = log or directory.parent / f"{directory.name}.broker.log"
        command = ["broker", str(directory), "--listen", listen, *flags]
        self.process: Process
        with self.log.open("wb") as output:
            if within:
                started = [*within, sys.executable, "-m", program, *command]
                self.process = subprocess.Popen(started, stdout=output, stderr=output)
            else:
                self.process = fork(program, command, os.environ, output.fileno())
        self.address = ""

    def ready(self) -> Self:
        """Wait until it serves; raises when it does not."""
        patience = Patience(PATIENCE, self.process.pid)
        while not (found := _SERVING.search(self.log.read_text())):
            if self.process.poll() is not None or patience.exhausted():
                raise AssertionError(f"the broker does not serve: {self.log.read_text()}")
            time.sleep(0.02)
        self.address = found[1]
        return self

    @contextmanager
    def connected(self) -> Iterator[Stub]:
        """A stub on a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(self.address, options=options) as channel:
            yield Stub(channel)

    def resident_bytes(self) -> int:
        """Return the size of its own memory, without pages of mapped logs."""
        facts = dict(line.split(":", 1) for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines())
        return int(facts["RssAnon"].split()[0]) * 1024

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM, and wait for the end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        assert has_ended(self.process, PATIENCE), f"the broker does not end: {self.log.read_text()}"
        return self.process.wait()

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
