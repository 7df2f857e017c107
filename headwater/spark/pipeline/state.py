"""The state of a pipeline beside its checkpoints: where new queries begin, which replace others, and who runs it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headwater.core.errors import PipelineRunning
from headwater.spark.address import open_existing
from headwater.spark.options import SourceOptions
from headwater.spark.pipeline.checkpoint import Checkpoint
from headwater.spark.pipeline.declaration import Declaration, TopicSource
from headwater.spark.pipeline.validation import start_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.pipeline.frames import Starts

_PATIENCE: Final = 30.0
"""A run waits so many seconds for the one before, since Spark is slow to notice that its program was killed."""


class PipelineState:
    """The directory of a pipeline: a checkpoint for each query, and a few small files."""

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self.path = declaration.checkpoint
        self._lock: Any = None

    # The lock of a run.

    def lock(self, spark: SparkSession) -> None:
        """Make this run the only one. Raises PipelineRunning.

        Spark's process holds the lock: it is what works, and for a moment it outlives a program that was killed.
        """
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        self.path.mkdir(parents=True, exist_ok=True)
        jvm: Any = spark.sparkContext._jvm
        channel = jvm.java.io.RandomAccessFile(str(self.path / "run.lock"), "rw").getChannel()
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._lock = channel.tryLock()
            except Py4JJavaError:  # this very process of Spark has it
                self._lock, deadline = None, 0.0
            if self._lock is not None:
                return
            if time.monotonic() > deadline:
                channel.close()
                raise PipelineRunning(self._declaration.name, self.path)
            time.sleep(0.2)

    def unlock(self) -> None:
        """Let others run it."""
        if self._lock is not None:
            self._lock.channel().close()
            self._lock = None

    def is_running(self) -> bool:
        """Return whether a run is under way."""
        try:
            fd = os.open(self.path / "run.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    # Where new queries begin.

    def starts(self, queries: list[str]) -> Starts:
        """Return where the queries that have not begun yet begin: the same for all of them, and after a crash.

        `latest` and times are looked up once: else two sinks of one source would begin at two places.
        """
        new = [name for name in queries if not (self.checkpoint(name).path / "offsets" / "0").exists()]
        known = self._read("starts.json")
        if new and not set(new) <= set(known.get("queries", ())):
            known = {"queries": new, "starts": self._looked_up()}
            self._write("starts.json", known)
        starts: Starts = known.get("starts", {})
        return starts

    def checkpoint(self, query: str) -> Checkpoint:
        """The checkpoint of a query."""
        return Checkpoint(self.path / "queries" / query)

    def _looked_up(self) -> dict[str, dict[str, dict[str, int]]]:
        from headwater.spark.reader import chosen_topics, positions

        starts = {}
        for source in self._declaration.sources:
            if isinstance(source, TopicSource) and not source.static and source.start != "earliest":
                given = {"store": source.store, **source.options, **start_options(source.start)}
                options = SourceOptions.parse(given)
                assert options.starting is not None
                with open_existing(source.store) as store:
                    starts[source.name] = {
                        topic.name: {
                            str(number): offset
                            for number, offset in positions(topic, options.starting, "latest", options).items()
                        }
                        for topic in chosen_topics(store, options)
                    }
        return starts

    # Starting anew.

    def reset(self) -> None:
        """Forget how far the queries are. They may then take the place of the ones before."""
        queries = self.path / "queries"
        names = [path.name for path in queries.iterdir()] if queries.is_dir() else []
        replaced = sorted({*self._read("replaced.json").get("queries", ()), *names})
        self._write("replaced.json", {"queries": replaced})
        shutil.rmtree(queries, ignore_errors=True)
        (self.path / "starts.json").unlink(missing_ok=True)

    def may_replace(self, query: str) -> bool:
        """Return whether a query takes the place of one that was reset."""
        return query in self._read("replaced.json").get("queries", ())

    def has_replaced(self, query: str) -> None:
        """A query has taken its place."""
        left = [name for name in self._read("replaced.json").get("queries", ()) if name != query]
        self._write("replaced.json", {"queries": left})

    def _read(self, name: str) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return content

    def _write(self, name: str, content: dict[str, Any]) -> None:
        """Durably, whole or not at all."""
        self.path.mkdir(parents=True, exist_ok=True)
        scratch = self.path / f".{name}.new"
        with scratch.open("w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(Path(self.path, name))
