"""A cluster of real processes: an etcd, and brokers that are killed, stopped and started again."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self

import grpc

import headwater as hw
from headwater.cluster.etcd.keys import Keys
from headwater.cluster.replication.durable_log import WATERMARK_FILE
from headwater.log.files.segment_list import LIST_FILE
from headwater.v1 import broker_pb2 as pb
from headwater.wire.service import Stub
from tests.cluster.network import Network
from tests.support.broker import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.patience import Patience, has_ended
from tests.support.ports import free_port
from tests.support.proxy import Proxy

PATIENCE: Final = 60.0
_ATTEMPTS: Final = 4
ANSWERED: Final = 300.0
"""Seconds after which a call hangs that nothing holds up but the machine."""


class Ways(NamedTuple):
    """The network of one broker: the way by which all others reach it, and its own way to etcd."""

    to_it: Proxy
    to_etcd: Proxy


ETCD: Final = "etcd"


def host_of(broker: int) -> str:
    """The name of a broker's host in a network."""
    return f"broker{broker}"


class ClusterProcesses:
    """Brokers 0 to `count` - 1, each on a port that stays its own.

    With `cuttable` they are behind proxies, which can fail; in a `network` each is at a host of its own, as is etcd.
    """

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        *flags: str,
        cuttable: bool = False,
        network: Network | None = None,
        program: str = "headwater.cli",
        etcd: Any = None,
    ) -> None:
        self.directory = directory
        self._program = program
        self.network = network
        self.etcd = EtcdServer(directory / "etcd") if etcd is None else etcd
        if network is not None:
            self.etcd = EtcdServer(directory / "etcd", host=network.address(ETCD), within=network.within(ETCD))
            flags += ("--insecure-no-authentication",)
        self._flags = flags
        self._ports = [free_port() for _ in range(count)]
        self.ways: dict[int, Ways] = {}
        if cuttable:
            for number, port in enumerate(self._ports):
                self.ways[number] = Ways(Proxy(port, Random(0)), Proxy(self.etcd.address.port, Random(0)))
        self.brokers: dict[int, BrokerProcess] = {}

    @property
    def address(self) -> str:
        """The address that clients open."""
        if self.ways:
            return "hw://" + ",".join(f"127.0.0.1:{way.to_it.port}" for way in self.ways.values())
        return "hw://" + ",".join(map(self._address, range(len(self._ports))))

    def _address(self, broker: int) -> str:
        """Return the address at which a broker listens."""
        host = "127.0.0.1" if self.network is None else self.network.address(host_of(broker))
        return f"{host}:{self._ports[broker]}"

    def _connections(self, broker: int) -> list[str]:
        """Return the options that tell a broker the address of etcd, and its own address for others."""
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
                listen=self._address(number),
                log=self.directory / f"broker{number}.{time.monotonic_ns()}.log",
                within=() if self.network is None else self.network.within(host_of(number)),
                program=self._program,
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

    def end_lease(self, broker: int) -> None:
        """End a broker's lease at once, as etcd does when it has not heard of the broker for long."""
        self.etcd.end_lease(Keys().broker(broker))

    def mend(self) -> None:
        """Let all brokers run again, without any topics: as a new cluster, for the next test."""
        for running in self.brokers.values():
            running.process.send_signal(signal.SIGCONT)
        dead = [number for number, broker in self.brokers.items() if broker.process.poll() is not None]
        self.begin(*dead, *(number for number in range(len(self._ports)) if number not in self.brokers))
        with hw.open(self.address) as store:
            for name in store.topics():
                store.delete_topic(name)

    def partition(self, topic: str, number: int = 0, *, at: int | None = None) -> pb.PartitionMetadata:
        """Return the leader and the in-sync set of a partition, as one of the brokers sees them."""
        with grpc.insecure_channel(self.brokers[next(iter(self.brokers)) if at is None else at].address) as channel:
            request = pb.GetMetadataRequest(topics=[topic])
            response: Any = Stub(channel).GetMetadata(request, timeout=ANSWERED, wait_for_ready=True)
        metadata: pb.PartitionMetadata = response.topics[0].partitions[number]
        return metadata

    def wait(self, topic: str, number: int = 0, *, in_sync: set[int], at: int | None = None) -> pb.PartitionMetadata:
        """Wait until these are in sync, and one of them leads."""
        patience = Patience(PATIENCE)
        while True:
            partition = self.partition(topic, number, at=at)
            if set(partition.in_sync) == in_sync and partition.leader in in_sync:
                return partition
            assert not patience.exhausted(), f"{partition.leader} leads, and in sync are {list(partition.in_sync)}"
            time.sleep(0.05)

    def wait_for_leader(self, topic: str, leader: int, number: int = 0) -> pb.PartitionMetadata:
        """Wait until a broker leads, as it sees it itself, whoever is in sync."""
        patience = Patience(PATIENCE)
        while (partition := self.partition(topic, number, at=leader)).leader != leader:
            assert not patience.exhausted(), f"{partition.leader} leads, and in sync are {list(partition.in_sync)}"
            time.sleep(0.05)
        return partition

    def let_lead(self, broker: int, topic: str) -> None:
        """Kill all others, so that a broker leads, and start them again.

        One that was started a moment ago may not be in sync as what it is now. Then nobody leads, and it is done again.
        """
        others = set(range(len(self._ports))) - {broker}
        for _ in range(_ATTEMPTS):
            self.kill(*others)
            deadline = time.monotonic() + PATIENCE / _ATTEMPTS
            while not (led := self.partition(topic, at=broker).leader == broker) and time.monotonic() < deadline:
                time.sleep(0.05)
            self.begin(*others)
            self.wait(topic, in_sync={broker, *others})
            if led:
                return
        raise AssertionError(f"broker {broker} does not lead {topic}, though nobody else is there")

    def log(self, broker: int) -> str:
        """Return the output of a broker in its last life."""
        return max(self.directory.glob(f"broker{broker}.*.log")).read_text()

    def files(self, broker: int, topic: str, number: int = 0) -> Path:
        """The directory of a replica."""
        return self.directory / f"broker{broker}" / topic / str(number)

    def records(self, broker: int, topic: str, number: int = 0) -> list[tuple[int, bytes | None]]:
        """Offsets and values in a replica."""
        return [(record.offset, record.value) for record in self.stored(broker, topic, number)]

    def stored(self, broker: int, topic: str, number: int = 0) -> list[hw.Record]:
        """Return the records of a replica. They are read from a copy, so that the broker can go on."""
        with tempfile.TemporaryDirectory(dir=self.directory) as copy:
            _copy(self.files(broker, topic, number), Path(copy) / topic)
            with hw.open(copy) as store:
                partition = store.partition(store.describe_topic(topic), number)
                return list(partition.records())

    def wait_for_copies(self, topic: str, number: int = 0) -> dict[int, list[tuple[int, bytes | None]]]:
        """Return the records of all replicas once they are the same, or as they are when patience is exhausted."""
        patience = Patience(PATIENCE)
        holders = self.partition(topic, number).replicas
        while True:
            over = patience.exhausted()
            try:
                copies = {broker: self.records(broker, topic, number) for broker in holders}
                if over or len({tuple(copy) for copy in copies.values()}) == 1:
                    return copies
            except hw.HeadwaterError:  # damaged, and about to be repaired
                if over:
                    raise
            time.sleep(0.1)

    def wait_for_watermark(self, offset: int, topic: str, *brokers: int) -> None:
        """Wait until brokers know, durably, that what is before an offset is acknowledged."""
        patience = Patience(PATIENCE)
        for broker in brokers:
            file = self.files(broker, topic) / WATERMARK_FILE
            while not file.exists() or json.loads(file.read_bytes().splitlines()[0]) < offset:
                assert not patience.exhausted(), f"broker {broker} does not hear of {offset}"
                time.sleep(0.02)

    def stop(self) -> None:
        """End all brokers as an operator does."""
        for broker in list(self.brokers.values()):
            broker.process.send_signal(signal.SIGTERM)
        for number in list(self.brokers):
            process = self.brokers.pop(number).process
            assert has_ended(process, PATIENCE), f"broker {number} does not end"
            assert process.returncode == 0

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


def _copy(partition: Path, target: Path) -> None:
    """Copy a topic with one of its partitions, as it is at one moment. Files in it come and go."""

    def others(directory: str, names: list[str]) -> list[str]:
        return [
            name for name in names if Path(directory) == partition.parent and name.isdigit() and name != partition.name
        ]

    for _ in range(100):
        before = _list_of_segments(partition)
        with suppress(FileNotFoundError, shutil.Error):
            shutil.copytree(partition.parent, target, ignore=others)
            if _list_of_segments(partition) == before:
                return
        shutil.rmtree(target, ignore_errors=True)
        time.sleep(0.02)
    raise AssertionError(f"{partition} changes too fast to be copied")


def _list_of_segments(partition: Path) -> tuple[int, ...]:
    """Return the identity of the file that lists a partition's segments.

    It changes when any segment is closed, replaced or deleted.
    """
    try:
        status = (partition / LIST_FILE).stat()
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns
