"""Row 14 on a cluster: programs move records in transactions while brokers, etcd and they themselves die."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import headwater as hw
from headwater.cluster.local import find_etcd
from tests.cluster.cluster import ClusterProcesses
from tests.faults import stacks
from tests.faults.moving import COUNTED, GROUP, OUTPUTS, SOURCE
from tests.faults.proof import Run, Unavailable, proof
from tests.faults.violation import Kind, Violation
from tests.support.patience import Patience, descendants, has_ended, has_finished

PARTITIONS: Final = 3
MOVERS: Final = 2
PATIENCE: Final = 120.0


class Feeder(threading.Thread):
    """Sends numbers to the topic that records are moved from."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.ended = threading.Event()
        self.sent = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with hw.open(self._address) as store, store.producer(SOURCE) as out:
                while not self.ended.wait(0.1):
                    for _ in range(5):
                        out.send(b"%d" % self.sent, partition=self.sent % PARTITIONS)
                        self.sent += 1
        except BaseException as error:  # noqa: BLE001 - told in the end
            self.error = error


class Program:
    """A program at work, which may die and be started again."""

    def __init__(
        self, kind: str, directory: Path, address: str, number: int, *arguments: str, module: str = "moving"
    ) -> None:
        self.kind = kind
        self._words = directory / f"{kind}{number}.log"
        root = Path(__file__).parents[2]
        with self._words.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"tests.faults.{module}", kind, str(directory), address, *arguments],
                cwd=root,
                env=os.environ | {"PYTHONPATH": str(root)},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def last_words(self) -> str:
        """Return the last line that it wrote."""
        lines = self._words.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


@proof(
    row=14,
    title="programs move records in transactions over a cluster whose brokers and etcd die: each counts once",
    runs=200,
    quick=2,
    timeout=600.0,
)
def cluster_transactions(run: Run) -> Iterator[Violation]:
    """Let them work and die for a while, let them finish, and count."""
    if find_etcd() is None:
        raise Unavailable("there is no etcd here: install etcd-server")
    with ClusterProcesses(run.directory / "cluster", 3, "--session-timeout", "6") as cluster:
        make_topics(cluster.address)
        feeder = Feeder(cluster.address)
        feeder.start()
        kinds = [*["mover"] * MOVERS, "counter"]
        programs = [Program(kind, run.directory, cluster.address, number) for number, kind in enumerate(kinds)]
        try:
            yield from _suffer(run, cluster, programs)
            feeder.ended.set()
            has_finished(feeder, PATIENCE)
            if feeder.error is not None:
                yield Violation(Kind.CRASH, f"the feeder: {type(feeder.error).__name__}: {feeder.error}")
                return
            with hw.open(cluster.address) as store:
                yield from finish(store, feeder.sent)
                (run.directory / "stop").touch()
                for program in programs:
                    yield from see_end(program)
                yield from count(store, run.directory, feeder.sent)
        finally:
            for program in programs:
                program.kill()


def _suffer(run: Run, cluster: ClusterProcesses, programs: list[Program]) -> Iterator[Violation]:
    """Something dies, and comes back, several times; behind each something must have got done."""
    random = run.random
    faults = ["broker", "program", "broker"] if run.quick else random.choices(["broker", "program", "etcd"], k=8)
    yield from go_on(cluster)
    for number, fault in enumerate(faults):
        time.sleep(random.uniform(0.0, 0.5))
        if fault == "broker":
            victim = random.randrange(3)
            cluster.kill(victim)
            time.sleep(random.uniform(0.0, 1.0))
            cluster.begin(victim)
        elif fault == "etcd":
            cluster.etcd.kill()
            time.sleep(random.choice((0.5, 12.0)))
            cluster.etcd.start()
        else:
            at = random.randrange(len(programs))
            programs[at].kill()
            again = Program(programs[at].kind, run.directory, cluster.address, len(programs) + number)
            programs[at] = again
        yield from go_on(cluster)


def make_topics(address: str) -> None:
    """Make what the programs read and write."""
    with hw.open(address) as store:
        for name, partitions in {SOURCE: PARTITIONS, **OUTPUTS, **COUNTED}.items():
            store.create_topic(name, partitions=partitions)


def go_on(cluster: ClusterProcesses, more: int = 10) -> Iterator[Violation]:
    """Wait until more records have come to each of the topics that are written in transactions."""
    patience = Patience(PATIENCE)
    with hw.open(cluster.address) as store:
        before = now = {name: _records(store, name) for name in ("shipments", "right")}
        while not patience.exhausted():
            now = {name: _records(store, name) for name in before}
            if all(now[name] >= before[name] + more for name in now):
                return
            time.sleep(0.05)
    yield Violation(Kind.BLOCKED, f"nobody got anything done within {PATIENCE:g} s: {before}, then {now}")


def _records(store: hw.Store, name: str) -> int:
    return sum(one.bounds().end for one in store.topic(name).partitions())


def finish(store: hw.Store, sent: int) -> Iterator[Violation]:
    """Wait until all that was sent is moved."""
    patience = Patience(PATIENCE)
    while (done := sum(one.offset for one in store.group(GROUP).committed().values())) < sent:
        if patience.exhausted():
            yield Violation(Kind.BLOCKED, f"the group did {done} of {sent} within {PATIENCE:g} s")
            return
        time.sleep(0.05)


def see_end(program: Program) -> Iterator[Violation]:
    """Wait until a program has ended, which was asked to."""
    if not has_ended(program.process, PATIENCE):
        text = stacks.collect(descendants(program.process.pid))
        yield Violation(Kind.HANG, f"a {program.kind} did not end", text)
        return
    if program.process.returncode:
        yield Violation(Kind.CRASH, f"a {program.kind} failed: {program.last_words()}")


def count(store: hw.Store, directory: Path, sent: int) -> Iterator[Violation]:
    """Everything is there once, in each of the topics that were written in transactions."""
    counted = int((directory / "counted").read_text())
    for name in OUTPUTS:
        yield from _compare(store, name, sent)
    for name in COUNTED:
        yield from _compare(store, name, counted)


def _compare(store: hw.Store, name: str, wanted: int) -> Iterator[Violation]:
    found = Counter(int(record.value) for one in store.topic(name).partitions() for record in one.records())
    for number in range(wanted):
        if found[number] != 1:
            kind = Kind.DUPLICATE if found[number] else Kind.LOST_WRITE
            yield Violation(kind, f"{number} is in {name!r} {found[number]} times")
    for number in found.keys() - set(range(wanted)):
        yield Violation(Kind.UNSEEN, f"{number} in {name!r}")
