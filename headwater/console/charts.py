"""Charts: rates and lags over time, from the store's own history if there is one, and from the samples since."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

from headwater.console.page_request import PageRequest
from headwater.console.rates import growth
from headwater.core.errors import HeadwaterError
from headwater.core.names import HISTORY
from headwater.streams.history import Sample, entries
from headwater.streams.store import Store

_POINTS: Final = 360
_GAPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800)
"""So many seconds apart are the points of a chart: a few lengths, so that they stay where they are while it grows."""
_RECENT_NS: Final = 180 * 10**9
_LONGEST_MINUTES: Final = 7 * 24 * 60
_SERIES: Final = 12
"""The most lines of one chart that can be told apart; further ones are summed."""

Value = Callable[[Sample, Sample], dict[str, float | None]]
"""Computes the value of a chart at a moment, from the sample of it and the one before."""


def stewarded(store: Store) -> bool | None:
    """Return whether a steward keeps the history of the store; None if that cannot be known."""
    try:
        if HISTORY not in store.topic_names():
            return False
        last = store.topic(HISTORY).statistics().partitions[0].last_append_ns
    except HeadwaterError:
        return None
    return time.time_ns() - last < _RECENT_NS


def history(request: PageRequest) -> dict[str, Any]:
    """The chart of the store (`of=store`), of a topic or of a group, over the last `minutes`."""
    minutes = request.number("minutes", 60, 1, _LONGEST_MINUTES)
    since_ns = time.time_ns() - minutes * 60 * 10**9
    of, name = request.text("of", "store"), request.text("name")
    samples, recorded = _samples(request, since_ns)
    chosen = _spread(samples)
    values = _VALUES.get(of, _of_store)(name)
    times: list[float] = []
    columns: dict[str, list[float | None]] = {}
    for before, after in pairwise(chosen):
        for key, value in values(before, after).items():
            columns.setdefault(key, [None] * len(times)).append(value)
        times.append(after.time_ns / 1e9)
        for column in columns.values():
            column.extend([None] * (len(times) - len(column)))
    return {
        "times": times,
        "series": _fewer(columns),
        "recorded": recorded,
        "since": request.watch.began_ns / 1e6,
        "stewarded": stewarded(request.store),
    }


def _samples(request: PageRequest, since_ns: int) -> tuple[list[Sample], bool]:
    """All samples of a time, the oldest first, and whether some of them are from the store's own history."""
    samples: list[Sample] = []
    with suppress(HeadwaterError):  # it may not be for this user: then it begins with what was seen
        samples = [entry for _, entry in entries(request.store, since_ns) if isinstance(entry, Sample)]
    recorded = bool(samples)
    seen = [sample for sample in request.watch.samples() if sample.time_ns >= since_ns]
    # The console's own are closer together: they go over the history from where they begin.
    if seen:
        samples = [sample for sample in samples if sample.time_ns < seen[0].time_ns] + seen
    return samples, recorded


def _spread(samples: list[Sample]) -> list[Sample]:
    """So many of the samples as a chart has room for, about as far apart in time, however dense some of them are.

    They are the last ones of stretches that begin at fixed times: so a chart that is drawn again only moves.
    """
    if not samples:
        return []
    least = (samples[-1].time_ns - samples[0].time_ns) / _POINTS
    gap = next((seconds * 10**9 for seconds in _GAPS if seconds * 10**9 >= least), int(least) + 1)
    stretches = {sample.time_ns // gap: sample for sample in samples}
    last_samples = list(stretches.values())
    # The present stretch has only begun: by two samples close to each other a rate is a matter of luck.
    return (
        last_samples[:-1]
        if len(last_samples) > 2 and last_samples[-1].time_ns - last_samples[-2].time_ns < gap // 2
        else last_samples
    )


def _of_store(_: str) -> Value:
    def value(before: Sample, after: Sample) -> dict[str, float | None]:
        grown = [growth(before, after, name) for name in after.topics]
        return {
            "records/s": sum(records for records, _ in grown),
            "bytes/s": sum(size for _, size in grown),
            "bytes": sum(counts[2] for counts in after.topics.values()),
            "lag": sum(sum(lags.values()) for lags in after.lags.values()),
        }

    return value


def _of_topic(name: str) -> Value:
    def value(before: Sample, after: Sample) -> dict[str, float | None]:
        counts = after.topics.get(name)
        if counts is None:
            return {"records/s": None, "bytes/s": None, "bytes": None}
        records, size = growth(before, after, name)
        values: dict[str, float | None] = {"records/s": records, "bytes/s": size, "bytes": counts[2]}
        return values | {f"lag of {group}": lags[name] for group, lags in after.lags.items() if name in lags}

    return value


def _of_group(name: str) -> Value:
    def value(_: Sample, after: Sample) -> dict[str, float | None]:
        return {f"lag in {topic}": lag for topic, lag in after.lags.get(name, {}).items()}

    return value


_VALUES: Final[dict[str, Callable[[str], Value]]] = {"store": _of_store, "topic": _of_topic, "group": _of_group}


def _fewer(columns: dict[str, list[float | None]]) -> list[dict[str, Any]]:
    """The lines of a chart, the greatest ones by themselves and the others as a sum."""
    lags = [name for name in columns if name.startswith("lag ")]
    lags.sort(key=lambda name: max((value or 0 for value in columns[name]), default=0), reverse=True)
    rest = lags[_SERIES:]
    series = [{"name": name, "values": values} for name, values in columns.items() if name not in rest]
    if rest:
        sums = [sum(value or 0 for value in row) for row in zip(*(columns[name] for name in rest), strict=True)]
        series.append({"name": f"lag of {len(rest)} others", "values": sums})
    return series


def passes(request: PageRequest) -> Iterator[dict[str, Any]]:
    """Return the passes of stewards in the last week, the newest last."""
    for time_ns, entry in entries(request.store, time.time_ns() - _LONGEST_MINUTES * 60 * 10**9):
        if isinstance(entry, dict) and entry["kind"] == "pass":
            yield entry | {"time": time_ns / 1e6}
