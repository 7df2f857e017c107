"""The status of a pipeline: what its checkpoints, its group and its journal say. Spark is not needed to look."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headwater.spark.address import open_existing
from headwater.spark.options import SourceOptions
from headwater.spark.pipeline.declaration import Declaration, TopicSource
from headwater.spark.pipeline.journal import entries
from headwater.spark.pipeline.state import PipelineState
from headwater.spark.pipeline.validation import start_options
from headwater.spark.pipeline.writers import all_sinks


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """The state of a pipeline."""

    pipeline: str
    running: bool
    lag: int
    """Records that not all sinks have read, in all topics that it streams."""
    sinks: dict[str, int | None]
    """The last batch that is done, of each."""
    last_batches: dict[str, dict[str, Any]]
    last_run: dict[str, Any] | None
    """The summary of the last run that ended, unless it was killed."""
    last_error: str | None

    @classmethod
    def of(cls, declaration: Declaration) -> PipelineStatus:
        """Look."""
        state = PipelineState(declaration)
        journal = entries(declaration.store, declaration.name) if declaration.store is not None else []
        summaries = [entry for entry in journal if entry["kind"] == "summary"]
        return cls(
            pipeline=declaration.name,
            running=state.is_running(),
            lag=lag(declaration),
            sinks={sink.name: state.checkpoint(sink.name).last_batch for sink in all_sinks(declaration)},
            last_batches={entry["sink"]: entry for entry in journal if entry["kind"] == "batch"},
            last_run=summaries[-1] if summaries else None,
            last_error=summaries[-1]["error"] if summaries else None,
        )

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def streamed_stores(declaration: Declaration) -> list[str]:
    """The stores whose topics a pipeline streams."""
    streamed = [source for source in declaration.sources if isinstance(source, TopicSource) and not source.static]
    return list(dict.fromkeys(source.store for source in streamed))


def lag(declaration: Declaration) -> int:
    """Return how many records a pipeline's group has not read. A partition without a position counts whole."""
    total = 0
    seen = set()
    for source in declaration.sources:
        if not isinstance(source, TopicSource) or source.static:
            continue
        options = SourceOptions.parse({"store": source.store, **source.options, **start_options(source.start)})
        with open_existing(source.store) as store:
            committed = store.group(declaration.group).committed()
            for name in filter(options.means, store.topics()):
                topic = store.topic(name)
                for number, bounds in topic.bounds().items():
                    key = (topic.info.uuid, number)
                    if key not in seen and options.wants(name, number):
                        seen.add(key)
                        position = committed.get(key)
                        total += bounds.end - (bounds.start if position is None else max(position.offset, bounds.start))
    return total
