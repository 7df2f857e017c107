"""The speed figures of the tour: a second each, so that they say something about this machine and take no patience."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple

from headwater.core.config import PartitionConfig
from headwater.log import DirectoryPartition, encode

_RECORDS: Final = 1000
_VALUE: Final = b"v" * 100
_MOST_FRAMES: Final = 4000
_SECONDS: Final = 1.0


class Figure(NamedTuple):
    """One measured rate. Bytes are those of the log, framing included."""

    name: str
    records_per_second: float
    bytes_per_second: float
    remark: str


def measure(directory: Path) -> list[Figure]:
    """Append to a new partition and read it back."""
    buffered = PartitionConfig(sync="never")
    figures = []
    with DirectoryPartition(directory / "buffered", buffered) as partition:
        figures.append(_append(partition, "append, one sync at the end"))
        figures.append(_scan(partition))
        figures.append(_records(partition))
    with DirectoryPartition(directory / "synced") as partition:
        figures.insert(1, _append(partition, "append, each frame synced"))
    return figures


def _append(partition: DirectoryPartition, name: str) -> Figure:
    values = [_VALUE] * _RECORDS
    times: list[float] = []
    began = time.perf_counter()
    now = began
    while now - began < _SECONDS and len(times) < _MOST_FRAMES:
        partition.append(encode(values))
        before, now = now, time.perf_counter()
        times.append(now - before)
    partition.sync()
    seconds = time.perf_counter() - began
    times.sort()
    median, p99 = (times[len(times) * part // 100] * 1e6 for part in (50, 99))
    remark = f"a frame in {median:,.0f} µs (median), {p99:,.0f} µs (p99)"
    return Figure(name, len(times) * _RECORDS / seconds, partition.statistics().total_bytes / seconds, remark)


def _scan(partition: DirectoryPartition) -> Figure:
    records = passes = 0
    began = time.perf_counter()
    while time.perf_counter() - began < _SECONDS:
        records += sum(batch.num_rows for batch in partition.scan())
        passes += 1
    seconds = time.perf_counter() - began
    read = partition.statistics().total_bytes * passes
    return Figure("scan as Arrow", records / seconds, read / seconds, "every checksum verified, from the page cache")


def _records(partition: DirectoryPartition) -> Figure:
    count = 0
    began = time.perf_counter()
    share = partition.statistics().total_bytes / max(partition.bounds().end, 1)
    for count, _ in enumerate(partition.records(), start=1):
        if count % _RECORDS == 0 and time.perf_counter() - began > _SECONDS:
            break
    seconds = time.perf_counter() - began
    return Figure("read as Python objects", count / seconds, count * share / seconds, "offset, timestamp, key, value")
