"""Expectations: rules that rows keep. Rows that do not are counted, and may be taken out or end the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.spark.pipeline.declaration import Expectation, Node

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FAILED: Final = "HEADWATER_EXPECTATION"
"""The error of a rule that ends the pipeline begins with this. Another try would not help."""
_COUNTS: Final = "expectations:"
"""The prefix of a step's counts in Spark's progress."""


def checked(frame: DataFrame, node: Node) -> DataFrame:
    """The rows that a node's rules let through, counted on the way. The first broken rule that fails, fails."""
    if not node.expectations:
        return frame
    from pyspark.sql import functions as fn

    counts = [fn.count_if(~_kept(expectation)).alias(expectation.name) for expectation in node.expectations]
    counted = frame.observe(f"{_COUNTS}{node.name}", *counts)
    # One expression decides over a row: in several filters Spark would choose the order.
    verdict: Any = None
    for expectation in node.expectations:
        if expectation.otherwise == "fail":
            start = f"{FAILED} {node.name}.{expectation.name}: a row breaks the rule {expectation.rule}: "
            failing = fn.raise_error(fn.concat(fn.lit(start), fn.to_json(fn.struct("*")))).cast("boolean")
            verdict = _when(verdict, ~_kept(expectation), failing)
    for expectation in node.expectations:
        if expectation.otherwise == "drop":
            verdict = _when(verdict, ~_kept(expectation), fn.lit(False))
    return counted if verdict is None else counted.where(verdict.otherwise(True))


def dropped(frame: DataFrame, node: Node, pipeline: str) -> DataFrame:
    """The rows that a node's rules take out, as records for a raw topic: JSON, with the reasons in headers."""
    from pyspark.sql import functions as fn

    rules = [expectation for expectation in node.expectations if expectation.otherwise == "drop"]
    broken = fn.concat_ws(",", *[fn.when(~_kept(expectation), fn.lit(expectation.name)) for expectation in rules])
    key = next((fn.col(name) for name in ("key", "_key") if name in frame.columns), fn.lit(None)).cast("binary")
    headers = fn.array(
        _header("headwater-pipeline", fn.lit(pipeline)),
        _header("headwater-step", fn.lit(node.name)),
        _header("headwater-rules", broken),
    )
    return frame.where(broken != "").select(
        key.alias("key"), fn.to_json(fn.struct("*")).alias("value"), headers.alias("headers")
    )


def violations(observed: dict[str, Any]) -> dict[str, int]:
    """Return how many rows of a batch broke each rule, by `step.rule`, from Spark's progress."""
    return {
        f"{name.removeprefix(_COUNTS)}.{rule}": int(count or 0)
        for name, counts in observed.items()
        if name.startswith(_COUNTS)
        for rule, count in _as_dict(counts).items()
    }


def broken_rule(message: str) -> str | None:
    """Return what a failure says about a rule that ends the pipeline, or None if it is about something else."""
    at = message.find(FAILED)
    return None if at < 0 else message[at + len(FAILED) :].strip().split("\n")[0]


def severities(nodes: Sequence[Node]) -> dict[str, str]:
    """Return what each rule does with rows that break it, by `step.rule`."""
    return {
        f"{node.name}.{expectation.name}": expectation.otherwise for node in nodes for expectation in node.expectations
    }


def _kept(expectation: Expectation) -> Column:
    """True or false: a rule that is null, because a column is, is broken."""
    from pyspark.sql import functions as fn

    return fn.coalesce(fn.expr(expectation.rule).cast("boolean"), fn.lit(False))


def _when(verdict: Any, condition: Any, value: Any) -> Any:
    from pyspark.sql import functions as fn

    return fn.when(condition, value) if verdict is None else verdict.when(condition, value)


def _header(name: str, value: Any) -> Any:
    from pyspark.sql import functions as fn

    return fn.struct(fn.lit(name).alias("key"), value.cast("binary").alias("value"))


def _as_dict(counts: Any) -> dict[str, Any]:
    return dict(counts) if isinstance(counts, dict) else dict(counts.asDict())
