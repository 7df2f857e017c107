"""Metrics: numbers of a run in Prometheus's text format, at a port or in a file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from headwater.monitoring.exposition import CONTENT_TYPE, Family, Labels, MetricSample, exposition
from headwater.monitoring.pages import Page, PageServer, Request
from headwater.spark.pipeline.progress import BatchProgress, Summary

_PREFIX: Final = "headwater_pipeline_"
_HELP: Final[dict[str, tuple[Literal["counter", "gauge"], str]]] = {
    "running": ("gauge", "1 while the pipeline runs."),
    "batches_total": ("counter", "Batches that were written."),
    "rows_total": ("counter", "Rows that were read."),
    "failures_total": ("counter", "Failures of a sink."),
    "batch_seconds": ("gauge", "How long the last batch took."),
    "batch_number": ("gauge", "The number of the last batch."),
    "lag_records": ("gauge", "Records that the sink has not read."),
    "state_rows": ("gauge", "Rows that Spark remembers."),
    "state_bytes": ("gauge", "Memory that they take."),
    "violations_total": ("counter", "Rows that broke a rule."),
}


class Metrics:
    """Numbers by name and labels. An observer; thread-safe."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._mutex = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in _HELP}

    def started(self, sinks: list[str]) -> None:
        """See Observer."""
        with self._mutex:
            self._values["running"][self._labels()] = 1
            for sink in sinks:
                for name in ("batches_total", "rows_total", "failures_total"):
                    self._values[name].setdefault(self._labels(sink=sink), 0)

    def batch(self, batch: BatchProgress) -> None:
        """See Observer."""
        here = self._labels(sink=batch.sink)
        with self._mutex:
            self._values["batches_total"][here] += 1
            self._values["rows_total"][here] += batch.rows
            for name, value in (
                ("batch_seconds", batch.seconds),
                ("batch_number", batch.number),
                ("lag_records", batch.lag),
                ("state_rows", batch.state_rows),
                ("state_bytes", batch.state_bytes),
            ):
                self._values[name][here] = value
            for rule, count in batch.violations.items():
                labels = self._labels(step=rule.split(".")[0], rule=rule.split(".")[-1])
                self._values["violations_total"][labels] = self._values["violations_total"].get(labels, 0) + count

    def failed(self, sink: str, attempt: int, error: str, pause: float | None) -> None:  # noqa: ARG002 - see Observer
        """See Observer."""
        with self._mutex:
            self._values["failures_total"][self._labels(sink=sink)] += 1

    def ended(self, summary: Summary) -> None:  # noqa: ARG002 - see Observer
        """See Observer."""
        with self._mutex:
            self._values["running"][self._labels()] = 0

    def _labels(self, **labels: str) -> Labels:
        return (("pipeline", self._pipeline), *labels.items())

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        with self._mutex:
            return exposition(
                Family(
                    f"{_PREFIX}{name}", kind, meaning, [MetricSample(*sample) for sample in self._values[name].items()]
                )
                for name, (kind, meaning) in _HELP.items()
            )


class MetricsFile(Metrics):
    """Metrics that are written to a file with every change, for a collector of text files."""

    def __init__(self, pipeline: str, path: Path) -> None:
        super().__init__(pipeline)
        self._path = path

    def started(self, sinks: list[str]) -> None:
        """See Observer."""
        super().started(sinks)
        self._write()

    def batch(self, batch: BatchProgress) -> None:
        """See Observer."""
        super().batch(batch)
        self._write()

    def failed(self, sink: str, attempt: int, error: str, pause: float | None) -> None:
        """See Observer."""
        super().failed(sink, attempt, error, pause)
        self._write()

    def ended(self, summary: Summary) -> None:
        """See Observer."""
        super().ended(summary)
        self._write()

    def _write(self) -> None:
        """Whole or not at all: a collector never reads half of it."""
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        scratch.write_text(self.text(), encoding="utf-8")
        scratch.replace(self._path)


class MetricsServer:
    """Serves the text at `http://127.0.0.1:port/metrics` until it is closed."""

    def __init__(self, text: Callable[[], str], port: int) -> None:
        def page(request: Request) -> Page:  # noqa: ARG001 - a page is given it
            return Page(200, text(), CONTENT_TYPE)

        self._server = PageServer({"/": page, "/metrics": page}, port)
        self.port = self._server.port

    def close(self) -> None:
        """Stop serving."""
        self._server.close()
