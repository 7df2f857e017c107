"""The steward (the log cleaner): its last passes, and a dry run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headwater.console.charts import passes, stewarded
from headwater.console.cluster import clustered
from headwater.console.page_request import PageRequest
from headwater.core.errors import HeadwaterError
from headwater.core.options import options_of
from headwater.streams.steward import StewardReport

_SHOWN = 500


def shown_steward(request: PageRequest) -> dict[str, Any]:
    """Answer whether a steward runs for the store, and what it has done."""
    document: dict[str, Any] = {"stewarded": stewarded(request.store), "passes": [], "problem": None}
    document["clustered"] = clustered(request.store)
    config = request.store.defaults.steward
    document["config"] = [
        {"name": option.name, "value": option.written(getattr(config, option.name))}
        for option in options_of(type(config))
    ]
    try:
        document["passes"] = list(passes(request))[-_SHOWN:][::-1]
    except HeadwaterError as error:
        document["problem"] = str(error)
    return document


def plan(request: PageRequest) -> dict[str, Any]:
    """Answer with what a pass would do now. It looks at everything and changes nothing."""
    return _report(request.store.steward().run_once(dry_run=True))


def clean(request: PageRequest) -> dict[str, Any]:
    """One pass, now."""
    report = _report(request.store.steward().run_once())
    request.watch.look_now()
    return report


def _report(report: StewardReport) -> dict[str, Any]:
    partitions = [
        asdict(partition)
        for partition in report.partitions
        if partition.segments or partition.rolled or partition.compacted or partition.error or partition.protected_by
    ]
    return {
        "skipped": report.skipped,
        "segments": report.segments,
        "bytes": report.bytes,
        "bytes_left": report.bytes_left,
        "looked_at": len(report.partitions),
        "partitions": partitions[:_SHOWN],
        "more": max(len(partitions) - _SHOWN, 0),
        "expired_groups": list(report.expired_groups),
        "pruned_positions": report.pruned_positions,
        "swept_topics": report.swept_topics,
        "finished_transactions": report.finished_transactions,
        "dropped_stages": report.dropped_stages,
        "clock": report.clock,
        "errors": list(report.errors),
    }
