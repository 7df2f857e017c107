"""A cluster of three brokers on this machine: what replication costs, and how long it takes to get over a death.

Both sides of the first rows sync every record before it is acknowledged: a single broker on one disk, the cluster on
three copies, all of which are on the same disk here. Catching up is beside a plain file that goes through gRPC in
pieces and is synced at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import grpc

import headwater as hw
from benchmarks.measure import compare
from benchmarks.report import Row, at_least, at_most
from benchmarks.servers import headwater_server
from headwater.client.connection import Connection
from headwater.client.credentials import Credentials
from headwater.cluster.local import LocalCluster, LocalProcess, find_etcd
from headwater.core.address import parse_store
from headwater.core.config import ClientConfig
from headwater.v1 import broker_pb2 as pb

PATIENCE: Final = 120.0
_DUE: Final = 0.01
"""A record is due so often, in seconds."""
_GROUPS: Final = 96
_PROCESSES: Final = 2
_PIECE: Final = 4 * 1024 * 1024
_METHOD: Final = "/benchmarks.Files/Read"


def run(quick: bool, scratch: Path) -> Iterator[Row]:
    """Measure them all."""
    repeats = 1 if quick else 5
    small, large = (20_000, 5_000) if quick else (500_000, 100_000)
    with _cluster(scratch) as cluster, headwater_server(scratch) as single:
        for number, size in ((small, 100), (large, 1000)):
            ours, theirs = compare(
                partial(_produce, cluster.address, number, size),
                partial(_produce, single, number, size),
                repeats=repeats,
            )
            assert theirs is not None
            yield Row(
                work=f"{size} B records, acknowledged by three replicas (one producer, one partition)",
                unit="records/s",
                ours=ours,
                peer_name="a single broker",
                peer=theirs,
                goal=at_least(0.2),
            )
        yield Row(
            work=f"commits of a group's position, acknowledged by three replicas ({_GROUPS} groups at once)",
            unit="commits/s",
            ours=median(_commits(cluster.address, 2.0 if quick else 8.0) for _ in range(1 if quick else 5)),
            peer_name="the goal",
            peer=2000.0,
            goal=at_least(1),
        )
    with _cluster(scratch) as cluster:
        yield Row(
            work="from kill -9 of a leader to the next acknowledged record",
            unit="s",
            ours=median(_failover(cluster) for _ in range(1 if quick else 9)),
            peer_name="the goal",
            peer=3.0,
            goal=at_most(1),
        )
        yield Row(
            work="p99 of the wait for an acknowledgement while brokers are restarted one by one (100 records/s)",
            unit="s",
            ours=_rolling_restart(cluster),
            peer_name="the goal",
            peer=5.0,
            goal=at_most(1),
        )
        megabytes = 20 if quick else 1000
        yield Row(
            work=f"a follower that was away catches up on {megabytes} MB",
            unit="MB/s",
            ours=_catch_up(cluster, megabytes),
            peer_name="a file through gRPC",
            peer=_copy_file(scratch, megabytes),
            goal=at_least(0.5),
        )


@contextmanager
def _cluster(scratch: Path) -> Iterator[LocalCluster]:
    program = find_etcd()
    if program is None:
        raise SystemExit("etcd is not installed: install etcd-server")
    with TemporaryDirectory(dir=scratch) as directory:
        cluster = LocalCluster(Path(directory), 3, 0, program).start()
        try:
            yield cluster
        finally:
            cluster.kill()


def _produce(address: str, number: int, size: int) -> float:
    """Acknowledged records each second."""
    value = os.urandom(size)
    with hw.open(address) as store:
        topic = f"records-{time.monotonic_ns()}"
        store.create_topic(topic)
        with store.producer(topic) as out:
            out.send(value)
            out.flush()  # connected, and led
            begun = time.perf_counter()
            for _ in range(number):
                out.send(value)
            out.flush()
            seconds = time.perf_counter() - begun
        store.delete_topic(topic)
    return number / seconds


def _commits(address: str, seconds: float) -> float:
    """Commits each second. Each consumer, alone in its group, commits one more record at a time."""
    with hw.open(address) as store:
        topic = f"committed-{time.monotonic_ns()}"
        store.create_topic(topic)
        with store.producer(topic) as out:
            for _ in range(20_000):
                out.send(b"")
    arguments = [address, topic, str(_GROUPS // _PROCESSES), str(seconds)]
    command = [sys.executable, "-m", "benchmarks.committing"]
    processes = [
        subprocess.Popen([*command, str(number), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(_PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "a process that commits has failed"
    counts = [process.communicate("go\n")[0] for process in processes]
    return sum(map(int, counts)) / seconds


def _partition(cluster: LocalCluster, topic: str) -> tuple[int, set[int]]:
    """Return the leader of the topic's partition, and its in-sync replicas."""
    connection = Connection(parse_store(cluster.address), ClientConfig(), Credentials())
    try:
        metadata: Any = connection.call("GetMetadata", pb.GetMetadataRequest(topics=[topic]))
    finally:
        connection.close()
    partition = metadata.topics[0].partitions[0]
    return partition.leader, set(partition.in_sync)


def _wait_in_sync(cluster: LocalCluster, topic: str) -> int:
    """Wait until all replicas are in sync; who leads."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        leader, in_sync = _partition(cluster, topic)
        if len(in_sync) == len(cluster.brokers):
            return leader
        time.sleep(0.02)
    raise TimeoutError("not all replicas are in sync")


def _begin_again(cluster: LocalCluster, broker: int) -> None:
    def serves(process: LocalProcess) -> bool:
        return '"serving"' in process.said()

    cluster.start_again(broker).wait_until(serves)


def _failover(cluster: LocalCluster) -> float:
    with hw.open(cluster.address) as store:
        store.create_topic("failover", exist_ok=True)
        with store.producer("failover") as out:
            out.send(b"before")
            out.flush()
            leader = _wait_in_sync(cluster, "failover")
            begun = time.perf_counter()
            cluster.brokers[leader].end(0)
            out.send(b"after")
            out.flush()
            seconds = time.perf_counter() - begun
    _begin_again(cluster, leader)
    _wait_in_sync(cluster, "failover")
    return seconds


def _rolling_restart(cluster: LocalCluster) -> float:
    """The 99th percentile of the times that records wait for their acknowledgement, while brokers go and come back."""
    ended = threading.Event()
    waits: list[float] = []

    def write() -> None:
        with hw.open(cluster.address) as store, store.producer("restarts") as out:
            due = time.perf_counter()
            while not ended.is_set():
                batch = []
                while due <= time.perf_counter():  # also what was due while nobody acknowledged anything
                    out.send(b"record", key=b"%d" % len(waits))
                    batch.append(due)
                    due += _DUE
                out.flush()
                acknowledged = time.perf_counter()
                waits.extend(acknowledged - due_at for due_at in batch)
                time.sleep(max(due - time.perf_counter(), 0))

    with hw.open(cluster.address) as store:
        store.create_topic("restarts", partitions=3)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for broker in list(cluster.brokers):
                _wait_in_sync(cluster, "restarts")
                cluster.brokers[broker].ask_to_end()
                cluster.brokers[broker].end(PATIENCE)
                _begin_again(cluster, broker)
            _wait_in_sync(cluster, "restarts")
        finally:
            ended.set()
        writing.result()
    return sorted(waits)[int(len(waits) * 0.99)]


def _catch_up(cluster: LocalCluster, megabytes: int) -> float:
    value = os.urandom(1000)
    with hw.open(cluster.address) as store:
        store.create_topic("behind")
        with store.producer("behind") as out:
            out.send(value)
            out.flush()
            leader = _wait_in_sync(cluster, "behind")
            away = next(broker for broker in cluster.brokers if broker != leader)
            cluster.brokers[away].end(0)
            for _ in range(megabytes * 1000):
                out.send(value)
    _begin_again(cluster, away)
    begun = time.perf_counter()
    _wait_in_sync(cluster, "behind")
    return megabytes / (time.perf_counter() - begun)


def _copy_file(scratch: Path, megabytes: int) -> float:
    """A file is asked for piece by piece, each is written when it has come, and all is synced."""
    source, target = scratch / "source", scratch / "target"
    source.write_bytes(os.urandom(1_000_000) * megabytes)

    def read(request: bytes, _: object) -> bytes:
        with source.open("rb") as file:
            return os.pread(file.fileno(), _PIECE, int(request))

    handler = grpc.method_handlers_generic_handler(
        _METHOD.split("/")[1], {_METHOD.split("/")[2]: grpc.unary_unary_rpc_method_handler(read)}
    )
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(2), options=options)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    begun = time.perf_counter()
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel, target.open("wb") as file:
        ask: Any = channel.unary_unary(_METHOD)
        position = 0
        while piece := ask(b"%d" % position):
            file.write(piece)
            position += len(piece)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begun
    server.stop(None)
    source.unlink()
    target.unlink()
    return megabytes / seconds
