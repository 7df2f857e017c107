"""Metrics: numbers of a run in Prometheus's text format, at a port or in a file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from headwater.spark.pipeline.progress import Batch, Summary

_PREFIX: Final = "headwater_pipeline_"
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_HELP: Final = {
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
Labels = tuple[tuple[str, str], ...]


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

    def batch(self, batch: Batch) -> None:
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
        lines = []
        with self._mutex:
            for name, (kind, meaning) in _HELP.items():
                lines += [f"# HELP {_PREFIX}{name} {meaning}", f"# TYPE {_PREFIX}{name} {kind}"]
                for labels, value in self._values[name].items():
                    written = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
                    lines.append(f"{_PREFIX}{name}{{{written}}} {value:.15g}")
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsFile(Metrics):
    """Metrics that are written to a file with every change, for a collector of text files."""

    def __init__(self, pipeline: str, path: Path) -> None:
        super().__init__(pipeline)
        self._path = path

    def started(self, sinks: list[str]) -> None:
        """See Observer."""
        super().started(sinks)
        self._write()

    def batch(self, batch: Batch) -> None:
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
    """Serves the text at `http://host:port/metrics` until it is closed."""

    def __init__(self, text: Callable[[], str], port: int, host: str = "127.0.0.1") -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = text().encode() if self.path.split("?")[0] in ("/metrics", "/") else b""
                self.send_response(200 if content else 404)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: it is asked every few seconds."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="pipeline metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
