"""Metrics: a broker in numbers, for Prometheus.

Calls are counted where they are made, on the event loop. Everything else is looked up when someone asks, in the thread
that asks: topics and groups in the store's files, the process in what the system says.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headwater.core.version import __version__
from headwater.monitoring.exposition import Family, Histogram, Labels, MetricSample, exposition
from headwater.streams.group import GroupInfo
from headwater.streams.topic import TopicStatistics

if TYPE_CHECKING:
    from headwater.broker.backend import LocalTopic, Operations
    from headwater.broker.core import Core

_PREFIX: Final = "headwater_broker_"
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class CallMetrics:
    """Counts calls as they end. Counting is for the event loop, reading for any thread."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds = Histogram(_SECONDS)
        self._labels: dict[str, Labels] = {}

    def count(self, method: str, code: str, seconds: float | None) -> None:
        """A call has ended. Streams have no time: they take as long as their clients like."""
        self._requests[method, code] += 1
        if seconds is not None:
            self._seconds.observe(self._labels.setdefault(method, (("method", method),)), seconds)

    def families(self) -> Iterator[Family]:
        """The counts of calls."""
        counted = list(self._requests.items())
        requests = [MetricSample((("method", method), ("code", code)), count) for (method, code), count in counted]
        yield Family(f"{_PREFIX}requests_total", "counter", "Calls that have ended, by gRPC's code.", requests)
        yield Family(
            f"{_PREFIX}request_seconds", "histogram", "How long calls took, waits included.", self._seconds.samples()
        )


def broker_metrics(core: Core) -> str:
    """All of a broker's metrics, as Prometheus reads them. It reads files: not for the event loop."""
    operations = core.backend.operations
    topics = _topics(operations.topics(), core.backend.groups.described())
    return exposition((*_broker(core), *_cluster(operations), *topics, *_process()))


def _family(name: str, kind: str, meaning: str, value: float) -> Family:
    return Family(name, "counter" if kind == "counter" else "gauge", meaning, [MetricSample((), value)])


def _broker(core: Core) -> Iterator[Family]:
    labels = (("version", __version__), ("id", str(core.backend.catalog.broker_id)))
    yield Family(f"{_PREFIX}info", "gauge", "Always 1; the labels say which broker this is.", [MetricSample(labels, 1)])
    yield from core.calls.families()
    connections = list(core.connections.values())
    meters, (segments, size) = core.meters, core.backend.operations.scrubbed()
    for name, kind, meaning, value in (
        ("started_seconds", "gauge", "When the broker began to serve, in seconds since 1970.", meters.started_ns / 1e9),
        ("draining", "gauge", "1 while the broker is about to stop.", core.runtime.draining.is_set()),
        ("connections", "gauge", "Connections that have calls.", len(connections)),
        ("calls_in_flight", "gauge", "Calls that have not ended.", sum(connection.calls for connection in connections)),
        ("produced_records_total", "counter", "Records that were appended.", meters.produced_records),
        ("produced_bytes_total", "counter", "Bytes of frames and records that came in.", meters.produced_bytes),
        ("fetched_bytes_total", "counter", "Bytes of answers to fetches that went out.", meters.fetched_bytes),
        ("denied_total", "counter", "Calls that were denied, and callers that were not known.", core.access.denials),
        (
            "scrubbed_segments_total",
            "counter",
            "Closed segments that were verified, whether somebody reads them or not.",
            segments,
        ),
        ("scrubbed_bytes_total", "counter", "Bytes that were read for that.", size),
    ):
        yield _family(_PREFIX + name, kind, meaning, value)
    budgets = (("requests", core.requests), ("responses", core.responses))
    yield Family(
        f"{_PREFIX}in_flight_bytes",
        "gauge",
        "Bytes that are held for calls.",
        [MetricSample((("of", name),), budget.used) for name, budget in budgets],
    )
    yield Family(
        f"{_PREFIX}waiting_calls",
        "gauge",
        "Calls that wait until others give back what they hold.",
        [MetricSample((("of", name),), budget.waiting) for name, budget in budgets],
    )


_CLUSTER: Final = {
    "brokers": "Brokers that are alive, as this one sees it.",
    "controller": "1 for the broker that is the controller.",
    "leader_partitions": "Partitions that are led here.",
    "follower_partitions": "Partitions that are followed here.",
    "under_replicated_partitions": "Partitions that are led here, and have fewer replicas in sync than wanted.",
    "under_min_insync_partitions": "Partitions that are led here, and take no writes: too few replicas are in sync.",
    "leaderless_partitions": "Partitions of the cluster that nobody leads, as this broker sees it.",
    "moving_partitions": "Partitions of the cluster whose replicas move.",
    "unconfirmed_seconds": "How long ago etcd has last confirmed that this broker is registered.",
}
"""A broker's part in its cluster. All are 0 for a broker that is in none."""


def _cluster(operations: Operations) -> Iterator[Family]:
    gauges = operations.cluster_gauges()
    for name, meaning in _CLUSTER.items():
        yield _family(f"headwater_cluster_{name}", "gauge", meaning, gauges.get(name, 0.0))


_COUNTERS: Final = {
    "writes": ("writes_total", "Writes of frames; appends that arrive together share one."),
    "write_ns": ("write_seconds_total", "Time that writes took."),
    "shortest_write_ns": ("write_seconds_min", "The shortest write ever; 0 if there was none."),
    "longest_write_ns": ("write_seconds_max", "The longest write ever."),
    "failed_writes": ("failed_writes_total", "Writes that failed."),
    "syncs": ("syncs_total", "Syncs."),
    "sync_ns": ("sync_seconds_total", "Time that syncs took."),
    "shortest_sync_ns": ("sync_seconds_min", "The shortest sync ever; 0 if there was none."),
    "longest_sync_ns": ("sync_seconds_max", "The longest sync ever."),
    "failed_syncs": ("failed_syncs_total", "Syncs that failed."),
    "compressed_frames": ("compressed_frames_total", "Frames that were appended compressed."),
    "compression_bytes_in": ("compression_in_bytes_total", "Bytes of compressed frames before compression."),
    "compression_bytes_out": ("compression_out_bytes_total", "Bytes of compressed frames."),
    "compression_skipped": ("compression_skipped_total", "Frames that were too small to be compressed."),
    "compression_ns": ("compression_seconds_total", "Time that producers in this process took to compress."),
    "rotations": ("rotations_total", "Segments that were closed and followed by another."),
    "rotation_ns": ("rotation_seconds_total", "Time that rotations took."),
    "failed_rotations": ("failed_rotations_total", "Rotations that failed."),
    "index_writes": ("index_writes_total", "Writes of index entries."),
    "failed_index_writes": ("failed_index_writes_total", "Writes of index entries that failed."),
    "readers": ("readers_total", "Handles that have read, of any process."),
    "reads": ("reads_total", "Reads of frames."),
    "cache_hits": ("reader_cache_hits_total", "Reads of segments that were mapped already."),
    "mappings": ("reader_mappings_total", "Segments that were mapped."),
    "remappings": ("reader_remappings_total", "Segments that were mapped again because they had grown."),
    "evictions": ("reader_evictions_total", "Mappings that were given back because the cache was full."),
    "errors": ("errors_total", "Failures of any kind."),
    "last_error_ns": ("last_error_timestamp_seconds", "When the last failure was; 0 if there was none."),
    "retention_runs": ("retention_runs_total", "Runs of retention that removed or protected something."),
    "last_retention_ns": ("last_retention_timestamp_seconds", "When the last of them was; 0 if there was none."),
    "retention_ns": ("retention_seconds_total", "Time that they took."),
    "retention_records": ("retention_records_total", "Records that retention has removed."),
    "retention_bytes": ("retention_bytes_total", "Bytes that retention has removed."),
    "removed_segments": ("retention_segments_total", "Segments that retention has removed."),
    "failed_retentions": ("failed_retentions_total", "Runs of retention that failed."),
    "protected_segments": ("protected_segments", "Segments kept only because a group has yet to read them."),
    "protected_bytes": ("protected_bytes", "Bytes kept only because a group has yet to read them."),
    "failed_recoveries": ("failed_recoveries_total", "Recoveries that failed."),
}
"""The metric and its meaning for each of `Counters`."""


def _topics(topics: Sequence[LocalTopic], groups: Mapping[str, GroupInfo]) -> Iterator[Family]:
    by_topic = {topic.name: topic.statistics for topic in topics if topic.statistics is not None}
    uuids = {topic.uuid: topic.name for topic in topics if topic.statistics is not None}
    unhealthy = {topic.name: int(topic.statistics is None or bool(topic.statistics.unhealthy)) for topic in topics}
    for suffix, kind, meaning, attribute in (
        ("records_total", "counter", "Records that were ever appended.", "total_records"),
        ("appended_bytes_total", "counter", "Bytes that were ever appended.", "total_bytes"),
        ("bytes", "gauge", "Bytes on disk.", "bytes"),
        ("segments", "gauge", "Segments on disk.", "segments"),
        ("damaged_total", "counter", "Stretches of damage that were met.", "damaged"),
        ("recoveries_total", "counter", "Recoveries that found something to do.", "recoveries"),
    ):
        samples = [
            MetricSample((("topic", name),), sum(getattr(partition, attribute) for partition in statistics.partitions))
            for name, statistics in by_topic.items()
        ]
        yield Family(f"headwater_topic_{suffix}", "counter" if kind == "counter" else "gauge", meaning, samples)
    yield from _activity(by_topic)
    yield Family(
        "headwater_topic_unhealthy",
        "gauge",
        "1 for a topic that cannot be opened, is damaged, or whose disk has failed.",
        [MetricSample((("topic", name),), value) for name, value in unhealthy.items()],
    )
    ends = {uuid: [partition.end for partition in by_topic[name].partitions] for uuid, name in uuids.items()}
    yield from _groups(groups, uuids, ends)


def _activity(by_topic: Mapping[str, TopicStatistics]) -> Iterator[Family]:
    """The counters of each topic. Times are seconds, as everywhere in Prometheus."""
    for counter, (suffix, meaning) in _COUNTERS.items():
        samples = []
        for name, statistics in by_topic.items():
            value: float = getattr(statistics.counters, counter)
            samples.append(MetricSample((("topic", name),), value / 1e9 if counter.endswith("_ns") else value))
        yield Family(f"headwater_topic_{suffix}", "counter" if suffix.endswith("_total") else "gauge", meaning, samples)


def _groups(groups: Mapping[str, GroupInfo], uuids: dict[bytes, str], ends: dict[bytes, list[int]]) -> Iterator[Family]:
    lags: Counter[Labels] = Counter()
    members: list[MetricSample] = []
    commits: list[MetricSample] = []
    for name, described in groups.items():
        members.append(MetricSample((("group", name),), len(described.members)))
        commits.append(MetricSample((("group", name),), described.commits))
        for (uuid, partition), position in described.positions.items():
            if partition < len(ends.get(uuid, ())):
                labels = (("group", name), ("topic", uuids[uuid]))
                lags[labels] += max(ends[uuid][partition] - position.offset, 0)
    meaning = "Records that the group has yet to acknowledge, in partitions where it has a position."
    yield Family("headwater_group_lag_records", "gauge", meaning, [MetricSample(*item) for item in lags.items()])
    yield Family("headwater_group_members", "gauge", "Members of the group.", members)
    yield Family("headwater_group_commits_total", "counter", "Positions that the group has set.", commits)


def _process() -> Iterator[Family]:
    from headwater.broker.core import memory_bytes

    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield _family("process_resident_memory_bytes", "gauge", "Memory that the process has.", memory_bytes())
    seconds = usage.ru_utime + usage.ru_stime
    yield _family("process_cpu_seconds_total", "counter", "Processor time that the process has taken.", seconds)
    with suppress(OSError):
        descriptors = len(os.listdir("/proc/self/fd"))
        yield _family("process_open_fds", "gauge", "Descriptors that the process has open.", descriptors)
