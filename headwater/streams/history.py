"""History: how fast topics grew and how far groups were behind, in an internal topic of the store itself.

The steward of a store notes it, so that charts reach back to before anyone looked, without another database; in a
cluster the broker that leads the topic does. The topic is bounded: some hours of a large busy store, weeks of a
small one. It is for looking, and promises nothing: an entry that cannot be written or read is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headwater.core.names import HISTORY
from headwater.core.options import MIB
from headwater.log.format.encode import encode
from headwater.log.format.frame import Frame
from headwater.streams.survey import Survey

if TYPE_CHECKING:
    from headwater.log import Partition
    from headwater.streams.steward import StewardReport
    from headwater.streams.store import Store

LIMITS: Final[dict[str, Any]] = {"segment_bytes": MIB, "retention_bytes": 16 * MIB}
_OPTIONS: Final = LIMITS | {"sync": "never"}
_WHOLE_EVERY_NS: Final = 600 * 10**9
"""So often a sample is written whole; the others only have what has changed since the one before."""
_PASS_PARTITIONS: Final = 100
"""So many partitions of a pass are named; a pass over more of them is told in sums."""

Counts = tuple[int, int, int]
"""Of a topic: records ever appended, bytes ever appended, bytes on disk."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A store at one moment, as charts need it: the counts of each topic, the lag of each group in each topic."""

    time_ns: int
    topics: dict[str, Counts] = field(default_factory=dict)
    lags: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, survey: Survey) -> Sample:
        """Return the part of a survey that charts need."""
        lags: dict[str, dict[str, int]] = {}
        for group, partition_lags in survey.lags().items():
            sums = lags.setdefault(group, {})
            for partition, lag in partition_lags.items():
                sums[partition.topic] = sums.get(partition.topic, 0) + lag
        topics = {name: (topic.total_records, topic.total_bytes, topic.bytes) for name, topic in survey.topics.items()}
        return cls(survey.time_ns, topics, lags)

    def since(self, before: Sample | None) -> dict[str, Any]:
        """This sample as an entry: whole, or what is different from another one."""
        if before is None:
            return {"kind": "sample", "whole": True, "topics": self.topics, "lags": self.lags}
        return {
            "kind": "sample",
            "topics": {name: counts for name, counts in self.topics.items() if before.topics.get(name) != counts},
            "lags": {name: lags for name, lags in self.lags.items() if before.lags.get(name) != lags},
            "gone": [name for name in before.topics if name not in self.topics],
            "left": [name for name in before.lags if name not in self.lags],
        }

    def then(self, entry: dict[str, Any], time_ns: int) -> Sample:
        """The sample that an entry makes of this one."""
        topics = {} if entry.get("whole") else {k: v for k, v in self.topics.items() if k not in entry["gone"]}
        lags = {} if entry.get("whole") else {k: v for k, v in self.lags.items() if k not in entry["left"]}
        changed: dict[str, Counts] = {name: (int(a), int(b), int(c)) for name, (a, b, c) in entry["topics"].items()}
        return Sample(time_ns, topics | changed, lags | entry["lags"])


class Samples:
    """Makes entries of samples, one after the other. For one thread, and one who writes."""

    def __init__(self) -> None:
        self._before: Sample | None = None
        self._whole_ns = 0

    def frame(self, sample: Sample) -> Frame:
        """The next sample as it is written: what has changed, or now and then, as at first, all of it."""
        return _frame(sample.since(self._base_of(sample)), sample.time_ns)

    def written(self, sample: Sample) -> None:
        """It is in the log, and the next one may count on it."""
        if self._base_of(sample) is None:
            self._whole_ns = sample.time_ns
        self._before = sample

    def _base_of(self, sample: Sample) -> Sample | None:
        return self._before if sample.time_ns - self._whole_ns < _WHOLE_EVERY_NS else None


class HistoryWriter:
    """Notes what a steward sees and does. For one thread."""

    def __init__(self, store: Store, interval: float) -> None:
        self._store = store
        self.interval = interval
        self._samples = Samples()

    def note(self, now_ns: int) -> None:
        """Write a sample, unless another steward of the store has just done so."""
        if now_ns - self._partition().statistics().last_append_ns < self.interval * 5e8:
            return
        sample = Sample.of(Survey.of(self._store, now_ns))
        self._partition().append(self._samples.frame(sample))
        self._samples.written(sample)

    def note_pass(self, report: StewardReport, now_ns: int) -> None:
        """Write what a pass of the steward has done, if it has done anything."""
        busy = [
            cleaned
            for cleaned in report.partitions
            if cleaned.segments or cleaned.rolled or cleaned.compacted or cleaned.error
        ]
        entry = {
            "kind": "pass",
            "segments": report.segments,
            "bytes": report.bytes,
            "expired_groups": list(report.expired_groups),
            "swept_topics": report.swept_topics,
            "finished_transactions": report.finished_transactions,
            "dropped_stages": report.dropped_stages,
            "errors": list(report.errors)[:_PASS_PARTITIONS],
            "partitions": [
                {
                    "topic": cleaned.topic,
                    "partition": cleaned.partition,
                    "segments": cleaned.segments,
                    "bytes": cleaned.bytes,
                    "forced": cleaned.forced,
                    "rolled": cleaned.rolled,
                    "compacted": cleaned.compacted,
                    "removed": cleaned.compaction.removed_records if cleaned.compaction is not None else 0,
                }
                for cleaned in busy[:_PASS_PARTITIONS]
            ],
        }
        if any(value for name, value in entry.items() if name != "kind"):
            self._partition().append(_frame(entry, now_ns))

    def _partition(self) -> Partition:
        return self._store.internal_topic(HISTORY, **_OPTIONS).partition(0)


def _frame(entry: dict[str, Any], time_ns: int) -> Frame:
    return encode([json.dumps(entry, separators=(",", ":")).encode()], timestamps=[time_ns], compression="zstd")


def entries(store: Store, since_ns: int) -> Iterator[tuple[int, Sample | dict[str, Any]]]:
    """Samples, and entries of other kinds, from `since_ns` on, with their times, the oldest first.

    Raises what keeps the topic from being read; that there is none is no error.
    """
    if HISTORY not in store.topic_names():
        return
    partition = store.topic(HISTORY).partition(0)
    start, end, _ = partition.bounds()
    # From a whole sample on: the first of those before may not be readable by itself.
    first = partition.offset_at(since_ns - 2 * _WHOLE_EVERY_NS)
    sample: Sample | None = None
    for record in partition.records(end if first is None else max(first, start), end, on_damage=lambda _: None):
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            entry: dict[str, Any] = json.loads(record.value)
            if entry["kind"] != "sample":
                value: Sample | dict[str, Any] = entry
            elif sample is not None or entry.get("whole"):
                value = sample = (sample or Sample(0)).then(entry, record.timestamp)
            else:
                continue
            if record.timestamp >= since_ns:
                yield record.timestamp, value
