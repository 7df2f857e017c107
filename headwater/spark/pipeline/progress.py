"""Progress: what a batch did, in one object, for terminals, programs, the journal and monitoring."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from headwater.spark.offsets import from_json
from headwater.spark.pipeline.expectations import violations


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A batch that a sink has written."""

    sink: str
    number: int
    at: str
    """When it began, as ISO 8601."""
    rows: int
    """The number of rows read. Rows that a query reads twice count twice."""
    seconds: float
    lag: int
    """The number of records that this sink had not read when the batch ended."""
    state_rows: int
    state_bytes: int
    watermark: str | None
    violations: dict[str, int]

    @property
    def rows_per_second(self) -> float:
        """The speed of the batch."""
        return self.rows / self.seconds if self.seconds else 0.0

    @classmethod
    def of(cls, sink: str, progress: dict[str, Any]) -> BatchProgress:
        """Make a batch from Spark's report about it."""
        operators = progress.get("stateOperators", [])
        return cls(
            sink=sink,
            number=progress["batchId"],
            at=progress["timestamp"],
            rows=progress["numInputRows"],
            seconds=progress.get("durationMs", {}).get("triggerExecution", 0) / 1000,
            lag=sum(_lag(source) for source in progress["sources"]),
            state_rows=sum(operator.get("numRowsTotal", 0) for operator in operators),
            state_bytes=sum(operator.get("memoryUsedBytes", 0) for operator in operators),
            watermark=progress.get("eventTime", {}).get("watermark"),
            violations=violations(progress.get("observedMetrics") or {}),
        )

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": "batch", **asdict(self), "rows_per_second": round(self.rows_per_second, 1)}


def _lag(source: dict[str, Any]) -> int:
    """The offsets between where a source is and where its topics end; 0 for files, which do not say."""
    try:
        latest, end = from_json(_parsed(source["latestOffset"])), from_json(_parsed(source["endOffset"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0
    return sum(
        max(0, offset - end[name].partitions.get(number, 0))
        for name, topic in latest.items()
        if name in end
        for number, offset in topic.partitions.items()
    )


def _parsed(offsets: Any) -> Any:
    return json.loads(offsets) if isinstance(offsets, str) else offsets


@dataclass(slots=True)
class SinkSummary:
    """The work of a run for one sink."""

    batches: int = 0
    rows: int = 0
    failures: int = 0
    lag: int = 0


@dataclass(slots=True)
class Summary:
    """The result of a run."""

    pipeline: str
    sinks: dict[str, SinkSummary]
    violations: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    stopped: bool = False
    """True if someone asked it to end."""
    error: str | None = None

    def add(self, batch: BatchProgress) -> None:
        """Count a batch in."""
        sink = self.sinks[batch.sink]
        sink.batches += 1
        sink.rows += batch.rows
        sink.lag = batch.lag
        for rule, count in batch.violations.items():
            self.violations[rule] = self.violations.get(rule, 0) + count

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": "summary", **asdict(self), "seconds": round(self.seconds, 3)}


class Observer(Protocol):
    """Someone whom a run tells what happens. Calls come one at a time."""

    def started(self, sinks: list[str]) -> None:
        """The queries run."""

    def batch(self, batch: BatchProgress) -> None:
        """A sink has written a batch."""

    def failed(self, sink: str, attempt: int, error: str, pause: float | None) -> None:
        """A sink failed, and is started again after a pause, in seconds; None when it is not."""

    def ended(self, summary: Summary) -> None:
        """The run is over."""
