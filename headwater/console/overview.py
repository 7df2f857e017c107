"""The first page: how much there is, how fast it grows, and what needs attention."""

from __future__ import annotations

import shutil
import time
from typing import Any, Final

from headwater.console.charts import stewarded
from headwater.console.cluster import standing
from headwater.console.page_request import PageRequest
from headwater.console.watch import StoreWatch
from headwater.core.errors import HeadwaterError
from headwater.embedded.directory_store import DirectoryStore
from headwater.streams.survey import Survey

_FULL: Final = 0.9
_BEHIND_NS: Final = 60 * 10**9


def overview(request: PageRequest) -> dict[str, Any]:
    """Answer with the store in numbers, and its problems."""
    watch = request.watch
    survey, rates = watch.survey, watch.rates()
    if survey is None:
        return {"ready": False, "error": watch.error}
    lags = survey.lags()
    busiest = sorted(rates.topics.items(), key=lambda item: item[1][0], reverse=True)[:8]
    return {
        "ready": True,
        "error": watch.error,
        "time": survey.time_ns / 1e6,
        "topics": len(survey.infos),
        "partitions": sum(info.partitions for info in survey.infos.values()),
        "records": sum(statistics.records for statistics in survey.topics.values()),
        "bytes": sum(statistics.bytes for statistics in survey.topics.values()),
        "groups": len(survey.groups),
        "members": sum(len(group.members) for group in survey.groups.values()),
        "lag": sum(sum(group_lags.values()) for group_lags in lags.values()),
        "records_per_second": rates.records,
        "bytes_per_second": rates.bytes,
        "busiest": [
            {"name": name, "records_per_second": records, "bytes_per_second": size}
            for name, (records, size) in busiest
            if records
        ],
        "behind": [
            {"name": name, "lag": sum(group_lags.values()), "members": len(survey.groups[name].members)}
            for name, group_lags in sorted(lags.items(), key=lambda item: sum(item[1].values()), reverse=True)[:8]
            if sum(group_lags.values())
        ],
        "disk": _disk(watch),
        "attention": attention(watch, survey) + cluster_attention(watch),
        "stewarded": stewarded(request.store),
    }


def attention(watch: StoreWatch, survey: Survey) -> list[dict[str, str]]:
    """Return the problems that someone should look at, the worst first, each with the page that tells more."""
    problems: list[dict[str, str]] = []

    def add(level: str, text: str, link: str = "") -> None:
        problems.append({"level": level, "text": text, "link": link})

    if watch.error is not None:
        add("bad", watch.error)
    for subject, why in survey.problems.items():
        add("bad", f"{subject} cannot be read: {why}")
    for name, statistics in survey.topics.items():
        for number in statistics.unhealthy:
            why = "its disk has failed a sync" if statistics.partitions[number].poisoned else "damage was found"
            add("bad", f"{name}/{number}: {why}", f"topics/{name}/segments?partition={number}")
    disk = _disk(watch)
    if disk is not None and disk["used"] / max(disk["total"], 1) > _FULL:
        add("bad" if disk["free"] < 1 << 30 else "warn", f"the disk is {disk['used'] / disk['total']:.0%} full")
    for group, lags in survey.lags().items():
        behind = sum(lags.values())
        last = max((position.committed_ns for position in survey.groups[group].positions.values()), default=0)
        if behind and not survey.groups[group].members:
            add("warn", f"group {group} is {behind:,} behind, and has no members", f"groups/{group}")
        elif behind and time.time_ns() - last > _BEHIND_NS:
            add("warn", f"group {group} is {behind:,} behind, and has acknowledged nothing of late", f"groups/{group}")
    return sorted(problems, key=lambda problem: problem["level"])


def cluster_attention(watch: StoreWatch) -> list[dict[str, str]]:
    """Return the problems of a cluster: brokers that are away, and partitions without a leader or replicas."""
    try:
        status = standing(watch.store)
    except HeadwaterError as error:
        return [{"level": "bad", "text": f"no broker tells how its cluster is: {error}", "link": "cluster"}]
    if status is None:
        return []
    away = [f"broker {broker['id']} is away" for broker in status["brokers"] if broker["problem"] is not None]
    nobody = [f"{partition} is led by nobody: it cannot be read or written" for partition in status["leaderless"]]
    few = len(set(status["under_replicated"]) - set(status["leaderless"]))
    worries = [("bad", text) for text in nobody + away]
    if few:
        worries.append(("warn", f"{few:,} {'partition has' if few == 1 else 'partitions have'} replicas not in sync"))
    return [{"level": level, "text": text, "link": "cluster"} for level, text in worries]


def _disk(watch: StoreWatch) -> dict[str, int] | None:
    """The disk of a store that is here."""
    if not isinstance(watch.store, DirectoryStore):
        return None
    try:
        return shutil.disk_usage(str(watch.store))._asdict()
    except OSError:
        return None
