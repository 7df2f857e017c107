"""The servers that benchmarks measure: each started for one run, on a free port of the loopback interface.

Redis is the system's `redis-server`. Kafka and NATS are looked for in `.peers`, where `make peers` puts them.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Final

PEERS: Final = Path(__file__).parents[1] / ".peers"
KAFKA: Final = PEERS / "kafka"
SPARK_KAFKA: Final = PEERS / "spark-kafka"
NATS: Final = PEERS / "nats-server"
QUIET: Final = {"log_level": 0}
"""For Kafka's clients."""
PATIENCE: Final = 60
"""Seconds in which a server has to be up."""


def has_kafka() -> bool:
    """Return whether there is a Kafka, and a Java to run it."""
    return any(KAFKA.glob("kafka_*.jar")) and which("java") is not None


def has_spark_kafka() -> bool:
    """Return whether there is also the package by which Spark reads from it."""
    return has_kafka() and any(SPARK_KAFKA.glob("spark-sql-kafka-*.jar")) and find_spec("confluent_kafka") is not None


def has_nats() -> bool:
    """Return whether there is a NATS server."""
    return NATS.exists()


@contextmanager
def headwater_server(scratch: Path) -> Iterator[str]:
    """A broker of ours; its address."""
    with TemporaryDirectory(dir=scratch) as directory:
        port = free_port()
        command = [sys.executable, "-m", "headwater.cli", "broker", directory, "--listen", f"127.0.0.1:{port}"]
        with _running(command, lambda: _listens(port)):
            yield f"hw://127.0.0.1:{port}"


@contextmanager
def redis_server(scratch: Path) -> Iterator[int]:
    """A Redis that syncs its log each second; the port it listens on."""
    from redis import Redis
    from redis.exceptions import RedisError

    port = free_port()
    options = {"bind": "127.0.0.1", "port": port, "appendonly": "yes", "appendfsync": "everysec", "save": ""}

    def answers() -> bool:
        try:
            with Redis(port=port) as client:
                return bool(client.ping())
        except RedisError:
            return False

    with TemporaryDirectory(dir=scratch) as directory:
        command = ["redis-server", "--dir", directory]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        with _running(command, answers):
            yield port


@contextmanager
def kafka_server(scratch: Path) -> Iterator[str]:
    """One broker that is its own controller, with the settings that it comes with; its address."""
    port, controller = free_port(), free_port()
    with TemporaryDirectory(dir=scratch) as directory:
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": f"{directory}/data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        file = Path(directory) / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = ["java", "-Xmx1g", "-cp", f"{KAFKA}/*"]
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        formatting = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(file)]
        subprocess.run(formatting, check=True, capture_output=True)
        with _running([*java, "kafka.Kafka", str(file)], lambda: _listens(port)):
            yield f"127.0.0.1:{port}"


def new_kafka_topic(address: str, name: str | None = None, partitions: int = 1) -> str:
    """Make a topic in a Kafka; its name."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    topic = name or f"orders-{os.urandom(4).hex()}"
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    return topic


def delete_kafka_topic(address: str, name: str) -> None:
    """Give the disk back."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    admin.delete_topics([name])[name].result()


@contextmanager
def nats_server(scratch: Path) -> Iterator[str]:
    """A NATS with JetStream on files, with the settings that it comes with; its address."""
    port = free_port()
    with TemporaryDirectory(dir=scratch) as directory:
        command = [str(NATS), "--jetstream", "--store_dir", directory, "--addr", "127.0.0.1", "--port", str(port)]
        with _running(command, lambda: _listens(port)):
            yield f"nats://127.0.0.1:{port}"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _running(command: list[str], up: Callable[[], bool]) -> Iterator[None]:
    """The server, from when it is up until the block ends."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = perf_counter() + PATIENCE
        while not up():
            if server.poll() is not None or perf_counter() > deadline:
                raise RuntimeError(f"{command[0]} does not come up")
            sleep(0.02)
        yield
    finally:
        server.terminate()
        server.wait()
