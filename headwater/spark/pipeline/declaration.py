"""A declaration: what a pipeline reads, what it makes of it, and where that goes. Checked, before Spark is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

Format = Literal["csv", "json", "parquet"]
Mode = Literal["append", "update", "complete"]
Severity = Literal["warn", "drop", "fail"]
Table = Literal["parquet", "delta", "iceberg"]

FORMATS: Final[tuple[Format, ...]] = ("csv", "json", "parquet")
MODES: Final[tuple[Mode, ...]] = ("append", "update", "complete")
SEVERITIES: Final[tuple[Severity, ...]] = ("warn", "drop", "fail")
DEAD_LETTERS: Final = "__dead_letters"
"""The name of the query that writes dead letters, beside those of the sinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """The longest delay of rows, by a column that has their time."""

    column: str
    delay: str
    """As Spark writes it: `10 minutes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A rule that rows keep, in SQL, and what happens to those that do not. A rule that is null is not kept."""

    name: str
    rule: str
    otherwise: Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A name that steps and sinks can read: its rows, in time and in order of their rules."""

    name: str
    line: int = 1
    """The line of the declaration."""
    watermark: Watermark | None = None
    expectations: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource(Node):
    """Topics of a store."""

    store: str
    options: Mapping[str, str]
    """As `format("headwater")` takes them, without the store and the start."""
    start: str | Mapping[str, Mapping[str, int]]
    """`earliest`, `latest`, a time, or an offset for each partition of each topic."""
    static: bool
    title: str
    """For people: which topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource(Node):
    """Files in a directory."""

    format: Format
    path: str
    schema: str | None
    options: Mapping[str, str]
    limit: int | None
    static: bool


Source = TopicSource | FileSource
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep(Node):
    """A result made of earlier names, by SQL or by a function of DataFrames."""

    sql: str | None
    function: str | Function | None
    """`module:function`, or the function itself."""
    inputs: tuple[str, ...]
    unique: tuple[str, ...]
    """Rows that are equal in these columns count once: for ever, or within the watermark where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """The topic, table or console that takes the rows of a name."""

    name: str
    line: int = 1
    input: str
    mode: Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink(Sink):
    """A topic, or, without one, that which each row names: each row once."""

    store: str
    topic: str | None
    partitions: int | None
    """Make the topic with so many, if it is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink(Sink):
    """A table of files: each row once."""

    format: Table
    path: str
    """A directory; for Iceberg the table's name."""
    partition_by: tuple[str, ...]
    catalog: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSink(Sink):
    """The terminal, for looking: batches that are done again are shown again."""

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The number of times that a failing sink is started again without a batch in between, and the pauses."""

    times: int = 3
    backoff: float = 1.0
    longest: float = 60.0

    def pause(self, failures: int) -> float:
        """Return how many seconds to wait after so many failures in a row."""
        return float(min(self.longest, self.backoff * 2 ** min(failures - 1, 60)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When batches begin: once for all that is there (None), or so many seconds apart."""

    interval: float | None

    def __str__(self) -> str:
        if self.interval is None:
            return "available-now"
        return f"every {self.interval:g} s" if self.interval else "continuous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A pipeline."""

    name: str
    file: str
    directory: Path
    store: str | None
    sources: tuple[Source, ...]
    steps: tuple[PipelineStep, ...]
    sinks: tuple[Sink, ...]
    trigger: Trigger
    checkpoint: Path
    retries: Retries
    dead_letters: str | None
    group: str
    spark: Mapping[str, str] = field(default_factory=dict)
    master: str | None = None

    @property
    def nodes(self) -> dict[str, Source | PipelineStep]:
        """Everything that can be read, by name, in order."""
        return {node.name: node for node in (*self.sources, *self.steps)}
