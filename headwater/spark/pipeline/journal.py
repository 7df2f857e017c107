"""The journal: what runs of pipelines did, in an internal topic of their store. It is bounded, and for looking back."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from headwater.core.errors import HeadwaterError
from headwater.spark.address import open_existing
from headwater.spark.pipeline.graph import Graph
from headwater.spark.pipeline.progress import BatchProgress, Summary
from headwater.streams import Producer, Store

JOURNAL: Final = "__pipelines"
_LIMITS: Final = {"segment_bytes": 1 << 20, "retention_bytes": 8 << 20}
_CLEAN_EVERY: Final = 1000
_log = logging.getLogger(__name__)


class PipelineJournal:
    """Writes what a run does. An observer; what goes wrong here is logged and stops no pipeline."""

    def __init__(self, address: str, pipeline: str, graph: Graph | None = None) -> None:
        self._key = pipeline.encode()
        self._graph = [] if graph is None else [asdict(vertex) for vertex in graph.ordered()]
        self._store: Store = open_existing(address)
        self._store.internal_topic(JOURNAL, **_LIMITS)
        self._producer: Producer = self._store.producer(JOURNAL, linger=0.5)
        self._written = 0

    def started(self, sinks: list[str]) -> None:
        """See Observer."""
        self._write({"kind": "started", "sinks": sinks, "graph": self._graph})

    def batch(self, batch: BatchProgress) -> None:
        """See Observer."""
        self._write(batch.document())

    def failed(self, sink: str, attempt: int, error: str, pause: float | None) -> None:
        """See Observer."""
        self._write({"kind": "failed", "sink": sink, "attempt": attempt, "error": error[:4096], "pause": pause})

    def ended(self, summary: Summary) -> None:
        """See Observer."""
        self._write(summary.document())

    def _write(self, entry: dict[str, Any]) -> None:
        entry["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            if self._written % _CLEAN_EVERY == 0:
                self._store.topic(JOURNAL).partition(0).retain()
            self._producer.send(json.dumps(entry).encode(), key=self._key)
        except HeadwaterError as error:
            _log.warning("the journal of pipelines refused an entry: %s", error)
        self._written += 1

    def close(self) -> None:
        """Write what waits."""
        try:
            self._store.close()
        except HeadwaterError as error:
            _log.warning("the journal of pipelines may lack its last entries: %s", error)


def entries(address: str, pipeline: str) -> list[dict[str, Any]]:
    """Return the journal's entries about a pipeline, the oldest first."""
    with open_existing(address) as store:
        if JOURNAL not in store.topic_names():
            return []
        key = pipeline.encode()
        partition = store.topic(JOURNAL).partition(0)
        return [json.loads(record.value) for record in partition.records() if record.key == key and record.value]
