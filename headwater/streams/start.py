"""Positions as people give them: earliest, latest, an offset, a negative count from the end, a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headwater.core.errors import InvalidConfiguration, OffsetOutOfRange
from headwater.core.times import parse_time
from headwater.log import Partition


@dataclass(frozen=True, slots=True)
class Time:
    """A moment, in nanoseconds since 1970 in UTC: the first record that is not older."""

    ns: int


Start = Literal["earliest", "latest"] | int | Time
"""A position to begin or end at. A negative number counts from the end."""


def time(when: str | datetime | int) -> Time:
    """A moment to start from: `"-1h"` (ago), `"2026-01-31T12:00"` (ISO 8601), a datetime, or nanoseconds.

    A date and time without a zone is taken as local time.
    """
    if isinstance(when, int):
        return Time(when)
    if isinstance(when, str):
        return Time(parse_time(when))
    if not isinstance(when, datetime):
        raise InvalidConfiguration(f"{when!r} is no time: use '-1h', '2026-01-31T12:00', a datetime or nanoseconds")
    try:
        return Time(round(when.timestamp() * 1_000_000) * 1000)
    except (ValueError, OverflowError):  # so near to the first or the last year that no clock has it in each zone
        raise InvalidConfiguration(f"{when} is no time that a record can have") from None


def resolve(partition: Partition, position: Start) -> int:
    """The offset that `position` means in this partition now."""
    bounds = partition.bounds()
    if position == "earliest":
        return bounds.start
    if position == "latest":
        return bounds.end
    if isinstance(position, Time):
        offset = partition.offset_at(position.ns)
        return bounds.end if offset is None else offset
    if isinstance(position, bool) or not isinstance(position, int):
        raise InvalidConfiguration(
            f"{position!r} is no position: use 'earliest', 'latest', an offset or headwater.time()"
        )
    if position < 0:
        return max(bounds.end + position, bounds.start)
    if not bounds.start <= position <= bounds.end:
        raise OffsetOutOfRange(position, bounds.start, bounds.end, str(partition))
    return position
