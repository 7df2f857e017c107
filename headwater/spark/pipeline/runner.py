"""The runner: starts a pipeline's queries, starts failed ones again, tells what happens, and ends when asked to."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headwater.core.errors import ExpectationFailed, PipelineFailed
from headwater.spark.address import open_existing
from headwater.spark.pipeline.declaration import Declaration, Sink, TopicSink, TopicSource, Trigger
from headwater.spark.pipeline.expectations import broken_rule
from headwater.spark.pipeline.frames import Frames, located
from headwater.spark.pipeline.graph import Graph, drops
from headwater.spark.pipeline.journal import PipelineJournal
from headwater.spark.pipeline.position import PipelinePosition
from headwater.spark.pipeline.progress import BatchProgress, Observer, SinkSummary, Summary
from headwater.spark.pipeline.state import PipelineState
from headwater.spark.pipeline.status import streamed_stores
from headwater.spark.pipeline.writers import Show, Writers, all_sinks
from headwater.spark.session import session
from headwater.streams.stopping import Stop, stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_EVERY: Final = 0.2
"""Seconds between looks at the queries. Spark keeps the progress of a hundred batches: none is missed."""
_SETTINGS: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def run(
    declaration: Declaration,
    *,
    spark: SparkSession | None = None,
    trigger: Trigger | None = None,
    observers: Sequence[Observer] = (),
    show: Show | None = None,
    stop: threading.Event | None = None,
) -> Summary:
    """Run a pipeline until it is done, or until SIGTERM, Ctrl-C or the event asks for its end.

    Raises InvalidPipeline for what only Spark can find, PipelineRunning, and PipelineFailed when a sink fails for good.
    """
    with stop_on_signals(stop) as asked, ExitStack() as stack:
        for address in _stores(declaration):
            open_existing(address).close()  # before a checkpoint in it makes a directory of what is misspelt
        if spark is None:
            config = _SETTINGS | dict(declaration.spark)
            with _ctrl_c_kept():
                spark = session(declaration.name, master=declaration.master, config=config)
            spark.sparkContext.setLogLevel("OFF")  # what matters of it is in the errors that are raised
            stack.callback(spark.stop)
        own = spark.newSession()
        stack.enter_context(_active(own, spark))
        for key, value in declaration.spark.items():
            if own.conf.isModifiable(key):
                own.conf.set(key, value)
        return Run(declaration, own, trigger or declaration.trigger, observers, show or _ignore, asked, stack).run()


def _stores(declaration: Declaration) -> set[str]:
    """Every store that a pipeline reads or writes."""
    parts = (*declaration.sources, *declaration.sinks)
    named = {part.store for part in parts if isinstance(part, TopicSource | TopicSink)}
    return named if declaration.store is None else named | {declaration.store}


@contextmanager
def _ctrl_c_kept() -> Iterator[None]:
    """Spark gives Ctrl-C a handler of its own when it starts: put back the one that asks this run to end."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def _active(own: SparkSession, before: SparkSession) -> Iterator[None]:
    """Make a session that of the thread: Spark looks there for the formats that queries write to."""
    sessions: Any = getattr(own, "_get_j_spark_session_class")(own._jvm)  # noqa: B009 - untyped
    sessions.setActiveSession(own._jsparkSession)
    try:
        yield
    finally:
        sessions.setActiveSession(before._jsparkSession)


def _ignore(sink: str, batch: int, text: str) -> None:
    """Rows for the console, where there is none."""


class Run:
    """One run of a pipeline."""

    def __init__(
        self,
        declaration: Declaration,
        spark: SparkSession,
        trigger: Trigger,
        observers: Sequence[Observer],
        show: Show,
        stop: Stop,
        stack: ExitStack,
    ) -> None:
        self._declaration = declaration
        self._stop = stop
        self._state = PipelineState(declaration)
        self._state.lock(spark)
        stack.callback(self._state.unlock)
        self._observers = list(observers)
        if declaration.store is not None:
            journal = PipelineJournal(declaration.store, declaration.name, Graph(declaration))
            stack.callback(journal.close)
            self._observers.append(journal)
        self._position = PipelinePosition(declaration.group, streamed_stores(declaration))
        stack.callback(self._position.close)
        sinks = all_sinks(declaration)
        frames = Frames(declaration, spark, self._state.starts([sink.name for sink in sinks]))
        writers = Writers(declaration, spark, frames, trigger, show)
        counted = _counted(declaration, sinks)
        self._queries = [Query(sink, writers, self._state, counted[sink.name]) for sink in sinks]
        self._summary = Summary(declaration.name, {sink.name: SinkSummary() for sink in sinks})

    def run(self) -> Summary:
        """Start everything, look after it, and end it."""
        began = time.monotonic()
        try:
            for query in self._queries:
                query.prepare(self._declaration)
            for query in self._queries:
                query.start(self._declaration)
            for observer in self._observers:
                observer.started([query.sink.name for query in self._queries])
            self._show_position()
            self._look_after()
        except BaseException as error:
            self._summary.error = str(error) or type(error).__name__
            raise
        finally:
            self._end()
            self._summary.seconds = time.monotonic() - began
            for observer in self._observers:
                observer.ended(self._summary)
        return self._summary

    def _look_after(self) -> None:
        while True:
            # In this order: what a query did before it ended is seen.
            ended = [query for query in self._queries if query.has_ended()]
            self._tell()
            for query in ended:
                self._deal_with(query)
            if all(query.is_done for query in self._queries):
                return
            if self._stop.wait(_LOOK_EVERY):
                self._summary.stopped = True
                return

    def _tell(self) -> None:
        """Tell what was written since the last look."""
        batches = [batch for query in self._queries for batch in query.new_batches()]
        for batch in batches:
            self._summary.add(batch)
            for observer in self._observers:
                observer.batch(batch)
        if batches:
            self._show_position()

    def _show_position(self) -> None:
        self._position.show([query.checkpoint for query in self._queries])

    def _deal_with(self, query: Query) -> None:
        """A query is not running: it is done, or has failed, or waits to be started again."""
        if query.is_done:
            return
        if query.waits_until is None:
            self._note_failure(query)
        elif time.monotonic() >= query.waits_until:
            query.start(self._declaration)

    def _note_failure(self, query: Query) -> None:
        retries = self._declaration.retries
        name, error = query.sink.name, query.failure or "it ended by itself"
        query.failures += 1
        self._summary.sinks[name].failures += 1
        rule = broken_rule(error)
        gives_up = rule is not None or query.failures > retries.times
        pause = None if gives_up else retries.pause(query.failures)
        for observer in self._observers:
            observer.failed(name, query.failures, rule or error, pause)
        if rule is not None:
            raise ExpectationFailed(self._declaration.name, name, query.failures, rule)
        if pause is None:
            raise PipelineFailed(self._declaration.name, name, query.failures, error)
        query.waits_until = time.monotonic() + pause

    def _end(self) -> None:
        """Stop what still runs. A batch in the middle of its work is done again by the next run, and counts once."""
        for query in self._queries:
            query.stop()
        self._tell()


class Query:
    """The query of one sink, over all of its starts in a run."""

    def __init__(self, sink: Sink, writers: Writers, state: PipelineState, counted: set[str]) -> None:
        self.sink = sink
        self.checkpoint = writers.checkpoint(sink)
        self.failures = 0
        """In a row: a batch that is written ends the row."""
        self.waits_until: float | None = None
        self.is_done = False
        self.failure: str | None = None
        self._writers = writers
        self._state = state
        self._counted = counted
        self._query: StreamingQuery | None = None
        self._seen = -1

    def prepare(self, declaration: Declaration) -> None:
        """Make what the sink needs."""
        with located(declaration, self.sink, "sinks"):
            self._writers.prepare(self.sink)

    def start(self, declaration: Declaration) -> None:
        """Start it, or start it again."""
        self.waits_until = None
        self.failure = None
        with located(declaration, self.sink, "sinks"):
            self._query = self._writers.start(self.sink, takeover=self._state.may_replace(self.sink.name))

    def has_ended(self) -> bool:
        """Return whether it has stopped, and note whether it is done or has failed."""
        if self._query is None or self._query.isActive:
            return self.is_done
        error = self._query.exception()
        if error is None:
            self.is_done = True
        else:
            self.failure = _reason(str(error))
        return True

    def new_batches(self) -> list[BatchProgress]:
        """Return the batches that it has written since the last call."""
        last = self._query.lastProgress if self._query is not None else None
        if self._query is None or last is None or last["batchId"] <= self._seen:
            return []
        batches = []
        for progress in self._query.recentProgress:
            document: dict[str, Any] = json.loads(progress.json)
            if document["batchId"] > self._seen and "addBatch" in document.get("durationMs", {}):
                self._seen = document["batchId"]
                batches.append(self._own(BatchProgress.of(self.sink.name, document)))
        if batches:
            self.failures = 0
            if self._state.may_replace(self.sink.name):
                self._state.has_replaced(self.sink.name)
        return batches

    def _own(self, batch: BatchProgress) -> BatchProgress:
        """A batch with the counts that are this sink's to tell: a step that several sinks read counts once."""
        own = {rule: count for rule, count in batch.violations.items() if rule.split(".")[0] in self._counted}
        return replace(batch, violations=own)

    def stop(self) -> None:
        """End it now."""
        if self._query is not None and self._query.isActive:
            self._query.stop()


def _counted(declaration: Declaration, sinks: Sequence[Sink]) -> dict[str, set[str]]:
    """Return the steps whose violations each sink reports: the first sink that a step leads to does."""
    graph = Graph(declaration)
    dropping = {node.name for node in declaration.nodes.values() if drops(node)}
    taken: set[str] = set()
    steps = {}
    for sink in sinks:
        names = graph.upstream(sink.input) if sink.input else set().union(*map(graph.upstream, dropping))
        steps[sink.name] = names - taken
        taken |= names
    return steps


def _reason(message: str) -> str:
    """Return the reason of a failure of Spark, without the pages around it."""
    rule = broken_rule(message)
    if rule is not None:
        return message
    lines = [line.strip() for line in message.split("\n") if line.strip()]
    told = [line for line in lines if line.startswith(("headwater.core.errors.", "pyspark.errors.", "Caused by:"))]
    return (told[-1] if told else lines[0] if lines else message)[:1000]
