"""Pipelines: what their runs have written to the journal of the store. Spark is not needed to look."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any, Final

from headwater.console.page_request import PageRequest

_JOURNAL: Final = "__pipelines"
_BATCHES: Final = 200
_RUNNING_SECONDS: Final = 120.0
"""A run that has written for so long nothing at all may have been killed: nobody wrote that it ended."""


def listed(request: PageRequest) -> dict[str, Any]:
    """Every pipeline that has run over this store: its graph, its sinks, their last batches, and the last error."""
    pipelines: dict[str, dict[str, Any]] = {}
    if _JOURNAL in request.store.topic_names():
        for record in request.store.topic(_JOURNAL).partition(0).records(on_damage=lambda _: None):
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                name = (record.key or b"").decode("utf-8", "replace")
                entry = json.loads(record.value or b"")
                pipeline = pipelines.setdefault(name, _new(name))
                _count(pipeline, entry, record.timestamp / 1e6)
    for pipeline in pipelines.values():
        if pipeline["state"] == "running" and time.time() - pipeline["last"] / 1e3 > _RUNNING_SECONDS:
            pipeline["state"] = "quiet"
    return {"pipelines": sorted(pipelines.values(), key=lambda pipeline: str(pipeline["name"]))}


def _new(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "state": "unknown",
        "graph": [],
        "sinks": {},
        "violations": {},
        "last": 0.0,
        "last_error": None,
        "runs": 0,
    }


def _count(pipeline: dict[str, Any], entry: dict[str, Any], at: float) -> None:
    pipeline["last"] = at
    kind = entry["kind"]
    if kind == "started":
        pipeline |= {"state": "running", "started": at, "graph": entry.get("graph", []), "violations": {}}
        pipeline["runs"] += 1
        for name in entry["sinks"]:
            pipeline["sinks"].setdefault(name, _new_sink())
    elif kind == "batch":
        sink = pipeline["sinks"].setdefault(entry["sink"], _new_sink())
        point = {"t": at, "rows": entry["rows"], "seconds": entry["seconds"], "lag": entry["lag"]}
        sink["batches"] = [*sink["batches"][-_BATCHES + 1 :], point]
        sink |= {"number": entry["number"], "lag": entry["lag"], "rate": entry["rows_per_second"], "error": None}
        sink |= {"state_rows": entry["state_rows"], "state_bytes": entry["state_bytes"]}
        sink["rows"] += entry["rows"]
        for rule, count in entry["violations"].items():
            pipeline["violations"][rule] = pipeline["violations"].get(rule, 0) + count
    elif kind == "failed":
        sink = pipeline["sinks"].setdefault(entry["sink"], _new_sink())
        sink["error"] = pipeline["last_error"] = entry["error"]
        sink["failures"] += 1
    elif kind == "summary":
        pipeline["state"] = "failed" if entry["error"] else "stopped" if entry["stopped"] else "done"
        pipeline["last_error"] = entry["error"] or pipeline["last_error"]
        pipeline["seconds"] = entry["seconds"]


def _new_sink() -> dict[str, Any]:
    return {"number": None, "rows": 0, "lag": None, "rate": None, "failures": 0, "error": None, "batches": []}
