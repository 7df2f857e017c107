"""Row 21: a driver or an executor of Spark dies while a stream is written, and every record is there exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Final

import headwater as hw
from headwater.errors import SparkUnavailable
from tests.faults.proof import Run, Unavailable, proof
from tests.faults.violation import Kind, Violation

RECORDS: Final = 200
OUTPUTS: Final = {"invoices": 3, "shipments": 2}
RIGGED: Final = ("staged", "deciding", "decided", "applied")
DEATHS: Final = (*RIGGED, "any time", "executor")
"""Behind a task's stage, before the decision, behind it, behind its application, …; the last is for the full form."""
PATIENCE: Final = 150.0


@proof(
    row=21,
    title="a driver or an executor of Spark dies in a stream: each record is written once",
    runs=100,
    quick=5,
    timeout=400.0,
)
def spark_deaths(run: Run) -> Iterator[Violation]:
    """Kill the driver and all of its processes, or an executor, and start it again until it is done."""
    check_available(run.directory)
    with hw.open(run.directory / "store") as store:
        store.create_topic("orders", partitions=2)
        for name, partitions in OUTPUTS.items():
            store.create_topic(name, partitions=partitions)
        with store.producer("orders", batch_records=20) as out:
            for number in range(RECORDS):
                out.send(b"%d" % number, key=b"%d" % (number % 17))
        death = DEATHS[run.number % (len(DEATHS) - 1 if run.quick else len(DEATHS))]
        deaths = 1 if run.quick else run.random.randint(1, 2)
        for left in reversed(range(deaths + 1)):
            if left:
                (run.directory / "armed").touch()
            yield from _start(run.directory, run.random, death, left=left)
            if left == deaths and death in RIGGED and (run.directory / "armed").exists():
                yield Violation(Kind.CRASH, f"the driver did not die: {_last_words(run.directory)}")
        if not (run.directory / "done").exists():
            yield Violation(Kind.BLOCKED, f"the query did not end: {_last_words(run.directory)}")
            return
        yield from _verify(store)


def check_available(directory: Path) -> None:
    """Raise Unavailable where Spark cannot run."""
    if find_spec("pyspark") is None:
        raise Unavailable("PySpark is not installed: pip install 'headwater[spark]'")
    from headwater.spark.java import find_java

    try:
        find_java(directory / "java")
    except SparkUnavailable as error:
        raise Unavailable(str(error)) from error


def _start(directory: Path, random: Random, death: str, *, left: int) -> Iterator[Violation]:
    """Start the program and see it die, or, when no death is left, end."""
    from tests.spark.deaths_driver import BATCH, kill_session

    (directory / "done").unlink(missing_ok=True)
    if not left:
        (directory / "armed").unlink(missing_ok=True)
    batch = random.randrange(RECORDS // BATCH)
    master = "local-cluster[2,1,1024]" if death == "executor" else "local[2]"
    command = [sys.executable, "-m", "tests.spark.deaths_driver", str(directory), master, death, str(batch)]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    with (directory / "driver.log").open("ab") as log:
        driver = subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=log, start_new_session=True)
    survivors = False
    try:
        if left and death in ("any time", "executor") and _begun(directory, driver, batch):
            time.sleep(random.uniform(0, 1.0))
            if death == "executor":
                if not _kill_executor(driver.pid, random):
                    yield Violation(Kind.CRASH, "there was no executor to kill")
            else:
                survivors = random.random() < 0.5
                with suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
        try:
            driver.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            yield Violation(Kind.HANG, f"the driver did not end: {_last_words(directory)}")
    finally:
        # Workers have process groups of their own, and outlive a driver for a moment: at times the next one meets them.
        if not survivors:
            kill_session(driver.pid)
        driver.kill()
        driver.wait()


def _begun(directory: Path, driver: subprocess.Popen[bytes], batch: int) -> bool:
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
