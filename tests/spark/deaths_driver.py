"""The program that `spark_deaths` kills: a query from one topic to two, small batch by small batch.

`python -m tests.spark.deaths_driver DIRECTORY MASTER STORE` starts Spark and waits for a line, `POINT|BATCH`. When the
directory has a file `armed`, everything that Spark has started dies at POINT of batch number BATCH.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import headwater as hw
from headwater.embedded.transactions import LedgerCoordinator
from headwater.spark.datasource import HeadwaterSource
from headwater.spark.sink import HeadwaterStreamWriter, StagedRows, stream_writer
from tests.spark.conftest import SMALL

BATCH = 40


def processes_of(session: int) -> list[int]:
    """All processes of a Unix session: the driver, its JVM, and the workers, which have process groups of their own."""
    processes = []
    for name in os.listdir("/proc"):
        with suppress(ProcessLookupError, ValueError):
            if os.getsid(int(name)) == session:
                processes.append(int(name))
    return processes


def kill_session(session: int) -> None:
    """kill -9 for all of them, this process last, if it is one of them."""
    own = os.getpid()
    while True:
        others = [pid for pid in processes_of(session) if pid != own and _lives(pid)]
        if not others:
            break
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if os.getsid(0) == session:
        os.kill(own, signal.SIGKILL)


def _lives(pid: int) -> bool:
    """Return whether the process lives, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Rig:
    """Strikes once, at one point of one batch."""

    def __init__(self, text: str) -> None:
        self._directory, self._point, batch = text.split("|")
        self._batch = int(batch)

    def pass_by(self, point: str, batch: int) -> None:
        """Die here, if it is the point and the first time."""
        if point == self._point and batch >= self._batch:
            with suppress(FileNotFoundError):
                Path(self._directory, "armed").unlink()
                kill_session(os.getsid(0))


class RiggedWriter(HeadwaterStreamWriter):
    """The real sink, with a rig."""

    def __init__(self, real: HeadwaterStreamWriter, rig: Rig) -> None:
        super().__init__(real._plan)
        self._rig = rig

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Between what a task has staged and the driver."""
        written = super().write(iterator)
        task = TaskContext.get()
        assert task is not None
        self._rig.pass_by("staged", int(task.getLocalProperty("streaming.sql.batchId") or 0))
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Between stage, decision, application, and Spark's own note."""
        apply = LedgerCoordinator.apply

        def rigged(transactions: LedgerCoordinator, decision: Any) -> Any:
            self._rig.pass_by("decided", batchId)
            return apply(transactions, decision)

        self._rig.pass_by("deciding", batchId)
        with patch.object(LedgerCoordinator, "apply", rigged):
            super().commit(messages, batchId)
        self._rig.pass_by("applied", batchId)


class RiggedSource(HeadwaterSource):
    """The real source, with a rig in its sink."""

    @classmethod
    def name(cls) -> str:
        return "rigged"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = dict(self.options)
        rig = Rig(options.pop("rig"))
        return RiggedWriter(stream_writer(options, schema, overwrite), rig)


def main(directory: Path, master: str, store: str) -> None:
    """Run the query, once it is told to, until everything that is there is written."""
    spark = hw.spark.session("deaths", master=master, config=SMALL)
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(RiggedSource)
    death = sys.stdin.readline().strip()
    if not death:
        return  # nobody is there any more
    reader = spark.readStream.format("headwater").option("store", store).option("topic", "orders")
    frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", BATCH).load()
    frame = frame.selectExpr("key", "value", "if(offset % 3 = 0, 'invoices', 'shipments') topic")
    writer = frame.writeStream.format("rigged").option("store", store).option("rig", f"{directory}|{death}")
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    (directory / "done").touch()
    os.kill(os.getpid(), signal.SIGKILL)  # whoever started this sees to the JVM, which takes seconds to stop


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
