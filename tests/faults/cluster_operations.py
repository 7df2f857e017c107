"""Operations on a cluster, and its disasters: no user notices, and nothing is lost.

These are the operations of the documents: brokers restarted one by one, a disk that is replaced, one that is full, and
an etcd without a majority.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from headwater.cluster.local import find_etcd
from tests.cluster.cluster import PATIENCE, ClusterProcesses
from tests.cluster.crew import TOPIC, Crew
from tests.faults import Run, Unavailable, Violation, proof
from tests.faults.cluster_faults import suffer
from tests.support.etcd_server import EtcdMembers
from tests.support.patience import has_ended

_PARTITIONS: Final = 3
ROOT: Final = Path(__file__).parent.parent.parent
SCRIPT: Final = ROOT / "deploy" / "operations" / "rolling-restart.sh"
_DISK_BYTES: Final = 64 * 1024 * 1024


def until_in_sync(cluster: ClusterProcesses) -> None:
    """Wait until all replicas are."""
    for number in range(_PARTITIONS):
        cluster.wait(TOPIC, number, in_sync=set(range(3)))


@proof(row=15, title="brokers are restarted one by one while others write", runs=50, quick=2, timeout=400.0)
def cluster_rolling_restart(run: Run) -> Iterator[Violation]:
    """By the script that operators have, which stops the next one when all are in sync again. No write fails."""

    def restart_all(run: Run, cluster: ClusterProcesses) -> None:
        asked, done = cluster.directory / "asked.", cluster.directory / "done."
        # In place of a command that restarts a service: this proof does it, and the command waits for that.
        command = f"touch {asked}%s; until rm {done}%s 2> /dev/null; do sleep 0.1; done"
        order = run.random.sample(range(3), 3)
        script = subprocess.Popen(
            [SCRIPT, cluster.address, command, *map(str, order)],
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        for broker in order:
            wish = asked.with_name(f"{asked.name}{broker}")
            while not wish.exists():
                assert script.poll() is None, f"{SCRIPT} ended with {script.returncode}"
                time.sleep(0.05)
            wish.unlink()
            cluster.brokers[broker].process.send_signal(signal.SIGTERM)
            process = cluster.brokers.pop(broker).process
            assert has_ended(process, PATIENCE), f"broker {broker} does not end"
            code = process.returncode
            assert code == 0, f"broker {broker} ended with {code}"
            cluster.begin(broker)
            done.with_name(f"{done.name}{broker}").touch()
        said, _ = script.communicate()  # a hang is the run's: see `timeout`
        assert script.returncode == 0, said

    yield from suffer(run, restart_all, 1 if run.quick else 3)


@proof(row=19, title="a broker comes back with an empty disk", runs=50, quick=2, timeout=400.0)
def cluster_replaced_disk(run: Run) -> Iterator[Violation]:
    """Kill one, remove its directory, start it again: it copies everything, and never leads with less."""

    def replace(run: Run, cluster: ClusterProcesses) -> None:
        until_in_sync(cluster)
        broker = run.random.randrange(3)
        cluster.kill(broker)
        time.sleep(run.random.choice((0.0, 1.0)))
        shutil.rmtree(cluster.directory / f"broker{broker}")
        cluster.begin(broker)

    yield from suffer(run, replace, 1 if run.quick else 4)


@proof(
    row=10, title="the disk of one broker of three is full, and has room again later", runs=50, quick=2, timeout=400.0
)
def cluster_full_disk(run: Run) -> Iterator[Violation]:
    """A file takes all the room on the disk of one broker, which leads some partitions and follows others."""
    if find_etcd() is None:
        raise Unavailable("there is no etcd here: install etcd-server")
    full = run.random.randrange(3)
    directory = run.directory / "cluster"
    with small_disk(directory / f"broker{full}") as disk, ClusterProcesses(directory) as cluster:
        crew = Crew(cluster, seed=run.random.randrange(1 << 30))
        yield from crew.go_on()
        for _ in range(1 if run.quick else 3):
            ballast = disk / "ballast"
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass  # until there is no room for another page
            yield from crew.go_on()
            ballast.unlink()
            yield from crew.go_on()
            until_in_sync(cluster)
        yield from crew.check()


@contextmanager
def small_disk(path: Path, size: int = _DISK_BYTES) -> Iterator[Path]:
    """Mount a disk of so many bytes, in memory; raises Unavailable."""
    if os.geteuid() != 0:
        raise Unavailable("a small disk can be mounted by root alone")
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "headwater", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        raise Unavailable("no file system can be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)


@proof(
    row=20, title="two of three members of a cluster's etcd are lost, and come back", runs=50, quick=2, timeout=400.0
)
def cluster_etcd_quorum(run: Run) -> Iterator[Violation]:
    """Partitions with a leader go on without a majority of etcd, also for longer than leases last; changes wait."""
    if find_etcd() is None:
        raise Unavailable("there is no etcd here: install etcd-server")
    etcd = EtcdMembers(run.directory / "etcd", 3)
    with ClusterProcesses(run.directory / "cluster", etcd=etcd) as cluster:
        crew = Crew(cluster, seed=run.random.randrange(1 << 30))
        yield from crew.go_on()
        for _ in range(1 if run.quick else 3):
            lost = run.random.sample(etcd.members, 2)
            for member in lost:
                member.kill()
            time.sleep(1.0 if run.quick else run.random.choice((1.0, 12.0)))
            yield from crew.go_on()
            for member in lost:
                member.start(wait=False)
            for member in lost:
                member.wait()
            victim = run.random.randrange(3)
            cluster.kill(victim)  # which needs etcd again
            yield from crew.go_on()
            cluster.begin(victim)
        yield from crew.check()
