"""A cluster of real processes: an etcd, and brokers that are killed, stopped and started again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self

import grpc

import headwater as hw
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub
from tests.broker import BrokerProcess
from tests.etcd_server import EtcdServer, free_port
from tests.proxy import Proxy

PATIENCE: Final = 60.0


class Ways(NamedTuple):
    """The network of one broker: the way by which all others reach it, and its own way to etcd."""

    to_it: Proxy
    to_etcd: Proxy


class ClusterProcesses:
    """Brokers 0 to `count` - 1, each on a port that stays its own; with `cuttable`, behind a network that can fail."""

    def __init__(self, directory: Path, count: int = 3, *flags: str, cuttable: bool = False, etcd: Any = None) -> None:
        self.directory = directory
        self.etcd = EtcdServer(directory / "etcd") if etcd is None else etcd
        self._flags = flags
        self._ports = [free_port() for _ in range(count)]
        self.ways: dict[int, Ways] = {}
        if cuttable:
            for number, port in enumerate(self._ports):
                self.ways[number] = Ways(Proxy(port, Random(0)), Proxy(self.etcd.address.port, Random(0)))
        self.brokers: dict[int, BrokerProcess] = {}

    @property
    def address(self) -> str:
        """What clients open."""
        ports = [way.to_it.port for way in self.ways.values()] or self._ports
        return "hw://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def _connections(self, broker: int) -> list[str]:
        """Where a broker finds etcd, and where others find the broker."""
        if broker not in self.ways:
            return ["--etcd", str(self.etcd.address)]
        to_it, to_etcd = self.ways[broker]
        return ["--etcd", f"127.0.0.1:{to_etcd.port}", "--advertise", f"127.0.0.1:{to_it.port}"]

    def begin(self, *brokers: int) -> None:
        """Start brokers, and wait until they serve."""
        for number in brokers:
            self.brokers[number] = BrokerProcess(
                self.directory / f"broker{number}",
                *("--broker-id", str(number), *self._connections(number), *self._flags),
                listen=f"127.0.0.1:{self._ports[number]}",
                log=self.directory / f"broker{number}.{time.monotonic_ns()}.log",
            )
        for number in brokers:
            self.brokers[number].ready()

    def kill(self, *brokers: int) -> None:
        """kill -9 all of them at once."""
        for number in brokers:
            self.brokers[number].process.kill()
        for number in brokers:
            self.brokers.pop(number).process.wait()

    def pause(self, broker: int) -> None:
        """Stop a broker in the middle of whatever it does."""
        self.brokers[broker].process.send_signal(signal.SIGSTOP)

    def go_on(self, broker: int) -> None:
        """Let it go on."""
        self.brokers[broker].process.send_signal(signal.SIGCONT)

    def partition(self, topic: str, number: int = 0, *, at: int | None = None) -> pb.PartitionMetadata:
        """Who leads a partition and who is in sync, as one of the brokers sees it."""
        with grpc.insecure_channel(self.brokers[next(iter(self.brokers)) if at is None else at].address) as channel:
            request = pb.GetMetadataRequest(topics=[topic])
            found: Any = Stub(channel).GetMetadata(request, timeout=PATIENCE, wait_for_ready=True)
        metadata: pb.PartitionMetadata = found.topics[0].partitions[number]
        return metadata

    def wait(self, topic: str, number: int = 0, *, in_sync: set[int], at: int | None = None) -> pb.PartitionMetadata:
        """Wait until these are in sync, and one of them leads."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = self.partition(topic, number, at=at)
            if set(found.in_sync) == in_sync and found.leader in in_sync:
                return found
            assert time.monotonic() < deadline, f"{found.leader} leads, and in sync are {list(found.in_sync)}"
            time.sleep(0.05)

    def log(self, broker: int) -> str:
        """What a broker has said in its last life."""
        return max(self.directory.glob(f"broker{broker}.*.log")).read_text()

    def records(self, broker: int, topic: str, number: int = 0) -> list[tuple[int, bytes | None]]:
        """Offsets and values in a replica of a broker that is not running."""
        with hw.open(self.directory / f"broker{broker}") as store:
            partition = store.partition(store.describe_topic(topic), number)
            return [(record.offset, record.value) for record in partition.records()]

    def stop(self) -> None:
        """End all brokers as an operator does."""
        for broker in list(self.brokers.values()):
            broker.process.send_signal(signal.SIGTERM)
        for number in list(self.brokers):
            assert self.brokers.pop(number).process.wait(PATIENCE) == 0

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.etcd.start()
        self.begin(*range(len(self._ports)))
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self.etcd.kill()
        for ways in self.ways.values():
            for way in ways:
                way.close()


@contextmanager
def cluster(directory: Path, count: int = 3, *flags: str) -> Iterator[ClusterProcesses]:
    """A cluster for the length of a block."""
    with ClusterProcesses(directory, count, *flags) as processes:
        yield processes
