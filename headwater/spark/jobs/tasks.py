"""Tasks: run a function on many pieces of work in Spark, yield each result as soon as it is ready, report progress."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from headwater.core.errors import HeadwaterError, StoreError

if TYPE_CHECKING:
    from pyspark.core.status import StatusTracker
    from pyspark.sql import SparkSession

_Piece = TypeVar("_Piece")
_Done = TypeVar("_Done")

_PAUSE: Final = 0.25

OnProgress = Callable[[int, int], None]
"""Called with the amount of work that is done, and the total."""


@dataclass(frozen=True)
class _Failed:
    """The error of a task, as text: not every error can be pickled, and Spark's own account of it fills pages."""

    message: str


def run_pieces(
    spark: SparkSession, work: Callable[[_Piece], _Done], pieces: Sequence[_Piece]
) -> Iterator[tuple[int, _Done]]:
    """Do `work` on every piece, as many at a time as there is room, and yield the number and the result of each.

    Results come in the order in which they are done. The first error cancels the rest and is raised.
    """
    context = spark.sparkContext
    tag = f"headwater-{threading.get_ident()}"
    remaining = iter(enumerate(pieces))

    def run(piece: _Piece) -> _Done:
        context.addJobTag(tag)
        result = context.parallelize([piece], 1).map(_Guarded(work)).collect()[0]
        if isinstance(result, _Failed):
            raise StoreError(result.message)
        return result  # type: ignore[no-any-return]

    running: dict[Future[_Done], int] = {}
    # One more than there is room for: its task is ready when another ends.
    most = context.defaultParallelism + 1
    with ThreadPoolExecutor(most, thread_name_prefix="headwater-job") as threads:
        try:
            while True:
                for number, piece in remaining:
                    running[threads.submit(run, piece)] = number
                    if len(running) >= most:
                        break
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(done), done.result()
        except BaseException:
            with suppress(Exception):
                context.cancelJobsWithTag(tag)
            raise


@contextmanager
def watched(spark: SparkSession, on_progress: OnProgress | None) -> Iterator[None]:
    """During the block, report how many tasks of its jobs are done, and how many are known."""
    if on_progress is None:
        yield
        return
    context = spark.sparkContext
    group = f"headwater-{os.urandom(4).hex()}"
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context.statusTracker(), group, over, on_progress), daemon=True)
    context.setJobGroup(group, "headwater")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(tracker: StatusTracker, group: str, over: threading.Event, on_progress: OnProgress) -> None:
    while not over.wait(_PAUSE):
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        known = [stage for stage in stages if stage is not None]
        on_progress(sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))


class _Guarded:
    """`work`, with its errors as values."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def __call__(self, piece: Any) -> Any:
        try:
            return self._work(piece)
        except (HeadwaterError, OSError, pa.ArrowException) as error:
            return _Failed(str(error))
