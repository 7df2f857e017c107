"""Row 31, with Spark: a pipeline is killed while its tasks write, and every reader of its tables finds each row once.

The readers look while tasks are held in the middle, right after the kill, and when another run has done the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import headwater as hw
from tests.faults.proof import Run, proof
from tests.faults.spark_deaths import check_available
from tests.faults.spark_driver import Driver, launch
from tests.faults.table_sinks import FORMATS, Sink, check_readers, examined
from tests.faults.violation import Kind, Violation

RECORDS: Final = 110


@proof(
    row=31,
    title="a pipeline is killed while its tasks write to tables: readers find whole files, no row twice, none missing",
    runs=60,
    quick=1,
    timeout=900.0,
)
def table_pipelines(run: Run) -> Iterator[Violation]:
    """Tables of two formats in the short form, of all in the full one, where half of the runs die once more.

    Starting Spark takes longer than all the rest: one driver starts while the one before it works.
    """
    check_available(run.directory)
    check_readers()
    from tests.spark.tables_driver import declare

    formats = ["parquet", run.random.choice(FORMATS[1:])] if run.quick else FORMATS
    (run.directory / "pipeline.yaml").write_text(declare(formats))
    with hw.open(run.directory / "store") as store:
        store.create_topic("numbers")
        with store.producer("numbers") as out:
            for number in range(RECORDS):
                out.send(b"%d" % number)
    sinks = [Sink(format, run.directory / format) for format in formats]
    for sink in sinks:
        sink.directory.mkdir()
    deaths = ["held", "any time"] if not run.quick and run.random.random() < 0.5 else ["held"]
    driver, successor = launch("tests.spark.tables_driver", run.directory), None
    try:
        for death in deaths:
            successor = launch("tests.spark.tables_driver", run.directory)
            yield from _see_die(driver, death, run.directory, run.random, sinks)
            _end(driver)
            (run.directory / "hold").unlink(missing_ok=True)
            for sink in sinks:
                yield from examined(sink, f"killed, {death}", range(0), range(RECORDS))
            driver = successor
        _tell(driver)
        driver.wait()
    finally:
        _end(driver)
        if successor is not None:
            _end(successor)
    if not (run.directory / "done").exists():
        yield Violation(Kind.BLOCKED, f"the pipeline did not end: {_last_words(run.directory)}")
        return
    for sink in sinks:
        yield from examined(sink, "in the end", range(RECORDS), range(RECORDS))


def _see_die(driver: Driver, death: str, directory: Path, random: Random, sinks: list[Sink]) -> Iterator[Violation]:
    """Let the program work until it is to die."""
    hold, held = directory / "hold", directory / "held"
    if death == "held":
        hold.write_text(str(random.randrange(30, RECORDS)))
    _tell(driver)
    while not held.exists() and driver.poll() is None:
        time.sleep(0.05)
    if death == "held":
        if driver.poll() is not None:
            yield Violation(Kind.CRASH, f"the pipeline ended too early: {_last_words(directory)}")
        for sink in sinks:
            yield from examined(sink, "in the middle of a batch", range(0), range(RECORDS))
    else:
        time.sleep(random.uniform(0, 3.0))


def _tell(driver: Driver) -> None:
    """Let it begin."""
    assert driver.stdin is not None
    try:
        driver.stdin.write(b"go\n")
        driver.stdin.flush()
    except BrokenPipeError:
        pass  # it is dead already, which is told later


def _end(driver: Driver) -> None:
    """kill -9 for the driver and all that it has started."""
    from tests.spark.deaths_driver import kill_session

    kill_session(driver.pid)
    driver.kill()
    driver.wait()
    if driver.stdin is not None:
        driver.stdin.close()


def _last_words(directory: Path) -> str:
    lines = (directory / "driver.log").read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
