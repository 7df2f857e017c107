"""Row 21: a driver or an executor of Spark dies while a stream is written, and every record is there exactly once.

Over a cluster brokers die besides.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Final, Self

import headwater as hw
from headwater.broker import Broker
from headwater.cluster.local import find_etcd
from headwater.core.address import Address
from headwater.core.errors import SparkUnavailable
from headwater.embedded.directory_store import DirectoryStore
from tests.cluster.cluster import ClusterProcesses
from tests.faults import stacks
from tests.faults.proof import Run, Unavailable, proof
from tests.faults.violation import Kind, Violation
from tests.support.patience import descendants, has_ended

RECORDS: Final = 200
BATCHES: Final = 5
"""So many there are at least: the driver takes 40 records at a time."""
OUTPUTS: Final = {"invoices": 3, "shipments": 2}
RIGGED: Final = ("staged", "deciding", "decided", "applied")
DEATHS: Final = (*RIGGED, "any time", "executor")
"""Behind a task's stage, before the decision, behind it, behind its application, …; the last is for the full form."""
OVER_BROKER: Final = tuple(death for death in DEATHS if death != "decided")
"""There it is the broker that decides and applies."""
QUICK: Final = (("deciding", "decided", "any time"), ("staged", "applied"), ("deciding",))
"""The deaths of the short form: in a directory, over a broker, and over a cluster."""
STORES: Final = len(QUICK)
PATIENCE: Final = 150.0
Driver = subprocess.Popen[bytes]


@proof(
    row=21,
    title="a driver or an executor of Spark dies in a stream, and brokers of a cluster: each record is written once",
    runs=120,
    quick=3,
    timeout=600.0,
)
def spark_deaths(run: Run) -> Iterator[Violation]:
    """Kill the driver and all of its processes, or an executor, and start it again until it is done.

    A third of the runs is over a broker, and a third over a cluster whose brokers die one after the other. Starting
    Spark takes longer than all the rest: in the short form one query dies several deaths of a driver in a row.
    """
    check_available(run.directory)
    with _opened(run) as (store, trouble):
        store.create_topic("orders", partitions=2)
        for name, partitions in OUTPUTS.items():
            store.create_topic(name, partitions=partitions)
        with store.producer("orders", batch_records=20) as out:
            for number in range(RECORDS):
                out.send(b"%d" % number, key=b"%d" % (number % 17))
        with trouble:
            yield from _die(run, str(store), _fate(run))
        if not (run.directory / "done").exists():
            yield Violation(Kind.BLOCKED, f"the query did not end: {_last_words(run.directory)}")
            return
        yield from _verify(store)


@contextmanager
def _opened(run: Run) -> Iterator[tuple[hw.Store, AbstractContextManager[object]]]:
    """The store: a directory, one behind a broker, or a cluster; and the trouble that it has while it is written to."""
    with ExitStack() as stack:
        trouble: AbstractContextManager[object] = nullcontext()
        where: str | Path = run.directory / "store"
        if run.number % STORES == 1:
            served = stack.enter_context(DirectoryStore(where, exclusive=True))
            where = f"hw://{stack.enter_context(Broker(served, listen=Address('127.0.0.1', 0))).address}"
        elif run.number % STORES == 2:
            if find_etcd() is None:
                raise Unavailable("there is no etcd here: install etcd-server")
            cluster = stack.enter_context(ClusterProcesses(run.directory / "cluster"))
            where, trouble = cluster.address, _DyingBrokers(cluster, run)
        yield stack.enter_context(hw.open(where)), trouble


class _DyingBrokers(threading.Thread):
    """Kills a broker of a cluster in each of the first batches, and starts it again, for the length of a block."""

    def __init__(self, cluster: ClusterProcesses, run: Run) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._directory = run.directory
        self._random = Random(run.random.random())
        self._deaths = 2 if run.quick else BATCHES
        self._ended = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for batch in range(self._deaths):
                while not (self._directory / "checkpoint" / "offsets" / str(batch)).exists():
                    if self._ended.wait(0.02):
                        return
                self._ended.wait(self._random.uniform(0.0, 0.5))
                victim = self._random.randrange(3)
                self._cluster.kill(victim)
                self._ended.wait(self._random.uniform(0.0, 2.0))
                self._cluster.begin(victim)
                for topic in ("orders", *OUTPUTS):  # two at once would be an outage, which is another proof
                    self._cluster.wait(topic, in_sync={0, 1, 2})
        except BaseException as error:  # noqa: BLE001 - raised where the block ends
            self.error = error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        if self.error is not None:
            raise self.error


def _fate(run: Run) -> list[tuple[str, int]]:
    """The deaths of a run, and the batch in which each comes."""
    if run.quick:
        deaths = list(QUICK[run.number % len(QUICK)])
        run.random.shuffle(deaths)
        return list(zip(deaths, range(BATCHES), strict=False))
    kinds = OVER_BROKER if run.number % STORES else DEATHS
    death = kinds[run.number // STORES % len(kinds)]
    return [(death, run.random.randrange(BATCHES)) for _ in range(run.random.randint(1, 2))]


def check_available(directory: Path) -> None:
    """Raise Unavailable where Spark cannot run."""
    if find_spec("pyspark") is None:
        raise Unavailable("PySpark is not installed: pip install 'headwater[spark]'")
    from headwater.spark.java import find_java

    try:
        find_java(directory / "java")
    except SparkUnavailable as error:
        raise Unavailable(str(error)) from error


def _die(run: Run, store: str, fate: list[tuple[str, int]]) -> Iterator[Violation]:
    """Start a driver for each death, and one more to do the rest. Each starts Spark while the one before it works."""
    master = "local-cluster[2,1,1024]" if "executor" in dict(fate) else "local[2]"
    driver = _launch(run.directory, master, store)
    successor = None
    try:
        for number, (death, batch) in enumerate(fate):
            successor = _launch(run.directory, master, store)
            (run.directory / "armed").touch()
            yield from _see(driver, run.directory, run.random, death, batch)
            must_have_died = death in RIGGED and (run.quick or number == 0)
            if must_have_died and (run.directory / "armed").exists():
                yield Violation(Kind.CRASH, f"the driver did not die ({death}): {_last_words(run.directory)}")
            driver = successor
        (run.directory / "armed").unlink(missing_ok=True)
        yield from _see(driver, run.directory, run.random)
    finally:
        _end(driver)
        if successor is not None:
            _end(successor)


def _launch(directory: Path, master: str, store: str) -> Driver:
    """Start the program: it starts Spark, and waits to be told how it dies."""
    command = [sys.executable, "-m", "tests.spark.deaths_driver", str(directory), master, store]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    with (directory / "driver.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )


def _end(driver: Driver, *, survivors: bool = False) -> None:
    """End a driver, and all that it has started unless that may go on for a moment."""
    from tests.spark.deaths_driver import kill_session

    if not survivors:
        kill_session(driver.pid)
    driver.kill()
    driver.wait()
    if driver.stdin is not None:
        driver.stdin.close()


def _see(driver: Driver, directory: Path, random: Random, death: str = "none", batch: int = 0) -> Iterator[Violation]:
    """Let the program work, and see it die in this batch, or end."""
    (directory / "done").unlink(missing_ok=True)
    survivors = False
    try:
        assert driver.stdin is not None
        with suppress(BrokenPipeError):  # it is dead already, which is told below
            driver.stdin.write(f"{death}|{batch}\n".encode())
            driver.stdin.flush()
        if death in ("any time", "executor") and _begun(directory, driver, batch):
            time.sleep(random.uniform(0, 1.0))
            if death == "executor":
                if not _kill_executor(driver.pid, random):
                    yield Violation(Kind.CRASH, "there was no executor to kill")
            else:
                survivors = random.random() < 0.5
                with suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
        if not has_ended(driver, PATIENCE):
            text = stacks.collect(descendants(driver.pid))
            yield Violation(Kind.HANG, f"the driver did not end: {_last_words(directory)}", text)
    finally:
        # Workers have process groups of their own, and outlive a driver for a moment: at times the next one meets them.
        _end(driver, survivors=survivors)


def _begun(directory: Path, driver: Driver, batch: int) -> bool:
    """Wait until Spark has planned a batch; whether it got there."""
    while not (directory / "checkpoint" / "offsets" / str(batch)).exists():
        if driver.poll() is not None:
            return False
        time.sleep(0.01)
    return True


def _kill_executor(session: int, random: Random) -> bool:
    from tests.spark.deaths_driver import processes_of

    found = []
    for pid in processes_of(session):
        with suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    if found:
        os.kill(random.choice(found), signal.SIGKILL)
    return bool(found)


def _last_words(directory: Path) -> str:
    lines = (directory / "driver.log").read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def _verify(store: hw.Store) -> Iterator[Violation]:
    expected: dict[str, list[int]] = {name: [] for name in OUTPUTS}
    for partition in store.topic("orders").partitions():
        for record in partition.records():
            expected["invoices" if record.offset % 3 == 0 else "shipments"].append(int(record.value))
    for name, numbers in expected.items():
        found: list[int] = []
        last: dict[bytes | None, int] = {}
        for record in (record for one in store.topic(name).partitions() for record in one.records()):
            number = int(record.value)
            found.append(number)
            if number < last.get(record.key, -1):
                yield Violation(Kind.REORDERED, f"{number} comes after {last[record.key]} in {name!r}")
            last[record.key] = number
        for number in sorted({*numbers, *found}):
            there, wanted = found.count(number), numbers.count(number)
            if there != wanted:
                kind = Kind.LOST_WRITE if there < wanted else Kind.DUPLICATE if wanted else Kind.UNSEEN
                yield Violation(kind, f"{number} is in {name!r} {there} times")
