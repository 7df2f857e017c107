"""The display of a pipeline's run: a table that changes in a terminal, lines of JSON in a pipe."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater.cli.output import console, printable, shown, size
from headwater.spark.pipeline.progress import BatchProgress, Summary


class JsonLines:
    """One line of JSON for everything that happens. An observer."""

    def started(self, sinks: list[str]) -> None:
        """See Observer."""
        self._write({"kind": "started", "sinks": sinks})

    def batch(self, batch: BatchProgress) -> None:
        """See Observer."""
        self._write(batch.document())

    def failed(self, sink: str, attempt: int, error: str, pause: float | None) -> None:
        """See Observer."""
        self._write({"kind": "failed", "sink": sink, "attempt": attempt, "error": error, "pause": pause})

    def ended(self, summary: Summary) -> None:
        """See Observer."""
        self._write(summary.document())

    def show(self, sink: str, batch: int, text: str) -> None:
        """The rows of a sink that is the console."""
        self._write({"kind": "rows", "sink": sink, "batch": batch, "text": text})

    def _write(self, document: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


class LiveTable:
    """A line for each sink, with its last batch. An observer, for people."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._console = console()
        self._batches: dict[str, BatchProgress | None] = {}
        self._rows: dict[str, int] = {}
        self._trouble: dict[str, str] = {}
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._console.print(Text.assemble(("pipeline ", "dim"), (printable(pipeline), "bold"), (" is starting", "dim")))

    def started(self, sinks: list[str]) -> None:
        """See Observer."""
        self._batches = dict.fromkeys(sinks)
        self._live.start()
        self._refresh()

    def batch(self, batch: BatchProgress) -> None:
        """See Observer."""
        self._batches[batch.sink] = batch
        self._rows[batch.sink] = self._rows.get(batch.sink, 0) + batch.rows
        self._trouble.pop(batch.sink, None)
        self._refresh()

    def failed(self, sink: str, attempt: int, error: str, pause: float | None) -> None:
        """See Observer."""
        outcome = "given up" if pause is None else f"again in {pause:g} s"
        self._trouble[sink] = f"failed {attempt} ×, {outcome}: {error}"
        self._refresh()

    def ended(self, summary: Summary) -> None:
        """See Observer."""
        self._live.stop()
        self._console.print(self._table())
        self._console.print()
        for rule, count in summary.violations.items():
            if count:
                self._console.print(Text.assemble(("· ", "dim"), f"{count:,} rows broke {printable(rule)}"))
        mark = ("✗ ", "bold red") if summary.error else ("✓ ", "bold green")
        how = "stopped" if summary.stopped else "failed" if summary.error else "done"
        rows = sum(sink.rows for sink in summary.sinks.values())
        self._console.print(Text.assemble(mark, f"{how}: {rows:,} rows in {summary.seconds:.1f} s"))

    def show(self, sink: str, batch: int, text: str) -> None:
        """The rows of a sink that is the console."""
        lines = "\n".join(map(printable, text.rstrip().split("\n")))
        self._console.print(Text.assemble((f"{sink}, batch {batch}\n", "bold"), lines))

    def _refresh(self) -> None:
        self._live.update(self._table(), refresh=True)

    def _table(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("sink")
        for heading in ("batch", "rows", "rows/s", "seconds", "lag", "state"):
            table.add_column(heading, justify="right")
        for sink, batch in self._batches.items():
            if batch is None:
                table.add_row(shown(sink), *["·"] * 6)
                continue
            table.add_row(
                shown(sink),
                f"{batch.number:,}",
                f"{self._rows[sink]:,}",
                f"{batch.rows_per_second:,.0f}",
                f"{batch.seconds:.2f}",
                f"{batch.lag:,}",
                f"{batch.state_rows:,} ({size(batch.state_bytes)})" if batch.state_bytes else "none",
            )
        trouble = [
            Text.assemble(("✗ ", "bold red"), printable(f"{sink}: {text}")) for sink, text in self._trouble.items()
        ]
        return Group(table, *trouble)
