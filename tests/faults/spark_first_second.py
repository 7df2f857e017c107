"""Row 21, at the beginning: a driver of Spark dies in the first second of its query, and the next one goes on.

Spark writes the first offsets of a query under a temporary name, and refuses to start where it finds one that it did
not finish. Half of the queries are pipelines, which clean their checkpoints; the other half calls `clean_checkpoint`.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import headwater as hw
from tests.faults import stacks
from tests.faults.proof import Run, proof
from tests.faults.spark_deaths import check_available
from tests.faults.spark_driver import Driver, launch
from tests.faults.violation import Kind, Violation
from tests.support.patience import Patience, descendants, has_ended

RECORDS: Final = 60
DEATHS: Final = 5
"""So many drivers die in a run of the full form, each in another query."""
QUICK_DEATHS: Final = 2
KINDS: Final = ("pipeline", "plain")
PATIENCE: Final = 150.0


class DoomedQuery(NamedTuple):
    """A query whose first driver dies."""

    kind: str
    name: str
    checkpoint: Path


@proof(
    row=21,
    title="a driver of Spark dies in the first second of its query: the next one goes on, each record is written once",
    runs=100 // DEATHS,
    quick=1,
    timeout=900.0,
)
def spark_first_second(run: Run) -> Iterator[Violation]:
    """Five deaths in each of twenty runs; then one more driver finishes what the others have begun.

    Every other death waits for the first file among the offsets, which is there for a few milliseconds under its
    temporary name. The others come at any time within a second. One driver starts while the one before it dies.
    """
    check_available(run.directory)
    from tests.spark.first_driver import TOPIC, checkpoint_of

    queries = [
        DoomedQuery(kind, f"copy-{number}", checkpoint_of(kind, f"copy-{number}", run.directory))
        for number in range(QUICK_DEATHS if run.quick else DEATHS)
        for kind in [KINDS[(run.number + number) % len(KINDS)]]
    ]
    with hw.open(run.directory / "store") as store:
        store.create_topic(TOPIC)
        for query in queries:
            store.create_topic(query.name)
        with store.producer(TOPIC) as out:
            for number in range(RECORDS):
                out.send(b"%d" % number)
    driver, successor = launch("tests.spark.first_driver", run.directory), None
    try:
        for number, query in enumerate(queries):
            successor = launch("tests.spark.first_driver", run.directory)
            yield from _see_die(driver, query, run.directory, run.random, aimed=run.quick or number % 2 == 0)
            driver = successor
        left = sum(bool(_unfinished(query)) for query in queries)
        run.notes.append(f"{left} of {len(queries)} drivers left unfinished offsets of a first batch")
        for query in queries:
            _tell(driver, query)
        assert driver.stdin is not None
        driver.stdin.close()
        if not has_ended(driver, PATIENCE * len(queries)):
            text = stacks.collect(descendants(driver.pid))
            yield Violation(Kind.HANG, f"the last driver did not end: {_last_words(run.directory)}", text)
    finally:
        _end(driver)
        if successor is not None:
            _end(successor)
    yield from _verify(run.directory, queries)


def _see_die(
    driver: Driver, query: DoomedQuery, directory: Path, random: Random, *, aimed: bool
) -> Iterator[Violation]:
    """Let a driver begin with a query, and kill it."""
    _tell(driver, query)
    if not Patience(PATIENCE, driver.pid).until(lambda: (query.checkpoint / "metadata").exists() or _is_over(driver)):
        yield Violation(Kind.HANG, f"the query did not begin: {_last_words(directory)}")
    elif _is_over(driver):
        yield Violation(Kind.CRASH, f"the driver ended too early: {_last_words(directory)}")
    elif aimed:
        java = _java_of(driver)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not _is_over(driver):
            with suppress(FileNotFoundError):
                if os.listdir(query.checkpoint / "offsets"):
                    break
        for pid in java:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    else:
        time.sleep(random.uniform(0.0, 1.0))
    _end(driver)


def _java_of(driver: Driver) -> list[int]:
    """The processes of Spark itself."""
    java: list[int] = []
    for pid in descendants(driver.pid):
        with suppress(OSError):
            if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                java.append(pid)
    return java


def _is_over(driver: Driver) -> bool:
    return driver.poll() is not None


def _unfinished(query: DoomedQuery) -> list[Path]:
    """The temporary files among the offsets of a query that has no offsets yet."""
    try:
        files = list((query.checkpoint / "offsets").iterdir())
    except FileNotFoundError:
        return []
    return [] if any(file.name == "0" for file in files) else [file for file in files if file.name.endswith(".tmp")]


def _tell(driver: Driver, query: DoomedQuery) -> None:
    """Let it do a query."""
    assert driver.stdin is not None
    with suppress(BrokenPipeError):  # it is dead already, which is told later
        driver.stdin.write(f"{query.kind} {query.name}\n".encode())
        driver.stdin.flush()


def _end(driver: Driver) -> None:
    """kill -9 for the driver and all that it has started."""
    from tests.spark.deaths_driver import kill_session

    kill_session(driver.pid)
    driver.kill()
    driver.wait()
    if driver.stdin is not None:
        with suppress(BrokenPipeError):
            driver.stdin.close()


def _last_words(directory: Path) -> str:
    lines = (directory / "driver.log").read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def _verify(directory: Path, queries: list[DoomedQuery]) -> Iterator[Violation]:
    with hw.open(directory / "store") as store:
        for query in queries:
            if not (directory / f"{query.name}.done").exists():
                yield Violation(Kind.BLOCKED, f"{query.kind} {query.name!r} did not end: {_last_words(directory)}")
                continue
            records = (record for partition in store.topic(query.name).partitions() for record in partition.records())
            there = Counter(int(record.value or b"-1") for record in records)
            for number in sorted({*range(RECORDS), *there}):
                if there[number] != 1 or number not in range(RECORDS):
                    kind = Kind.UNSEEN if number not in range(RECORDS) else Kind.DUPLICATE
                    kind = kind if there[number] else Kind.LOST_WRITE
                    yield Violation(kind, f"{number} is in {query.name!r} {there[number]} times")
