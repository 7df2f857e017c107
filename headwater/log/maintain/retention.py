"""Retention: which closed segments are no longer wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from headwater.core.config import PartitionConfig
from headwater.log.elapsed import Age


class SegmentFacts(NamedTuple):
    """The facts of a segment that retention needs; the growing one is not closed yet."""

    base: int
    size: int
    begun_ns: int
    closed_ns: int | None


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """The result of `retain`: what it removed, and the start of the log now."""

    segments: int
    bytes: int
    start: int


def expired(segments: Sequence[SegmentFacts], config: PartitionConfig, age_ns: Age, keep_from: int | None) -> int:
    """Return the number of the oldest segments that can go.

    Ages count from the closing of a segment, by the time that was observed to pass, not by the users' timestamps, which
    may say anything. The growing segment always stays.
    """
    most = len(segments) - config.retention_segments
    total = sum(segment.size for segment in segments)
    count = 0
    for segment, after in pairwise(segments):
        if count >= most or segment.closed_ns is None or (keep_from is not None and after.base > keep_from):
            break
        too_old = config.retention_age is not None and age_ns(segment.closed_ns) > config.retention_age * 1e9
        too_much = config.retention_bytes is not None and total > config.retention_bytes
        if not too_old and not too_much:
            break
        total -= segment.size
        count += 1
    return count
