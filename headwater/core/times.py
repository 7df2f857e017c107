"""Times as people write them, to the nanosecond."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from headwater.core.errors import InvalidConfiguration

_AGO: Final = re.compile(r"-(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_LONGEST_AGO: Final = 200 * 365 * 86400.0
"""Seconds. No record is older, so a longer time means the same."""
_SECONDS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)


def parse_time(text: str, zone: tzinfo | None = None) -> int:
    """Return the nanoseconds since 1970 in UTC of a time ago, such as `-1h`, or of an ISO 8601 time.

    A time without a zone is in `zone`, or local if there is none. Raises InvalidConfiguration.
    """
    ago = _AGO.fullmatch(text.strip())
    if ago:
        seconds = min(float(ago[1]) * _SECONDS[ago[2]], _LONGEST_AGO)
        return time.time_ns() - int(seconds * 1e9)
    return parse_iso_time(text, zone)


def parse_iso_time(text: str, zone: tzinfo | None = None) -> int:
    """Return the nanoseconds since 1970 in UTC of an ISO 8601 time, as `parse_time` does."""
    text = text.strip()
    head, dot, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    try:
        whole = datetime.fromisoformat(head + rest[digits:] if dot else text)
    except ValueError:
        raise InvalidConfiguration(f"{text!r:.60} is no time in ISO 8601, such as 2026-01-31T12:00Z") from None
    try:
        if whole.tzinfo is None:
            whole = whole.astimezone() if zone is None else whole.replace(tzinfo=zone)
        seconds = (whole - _EPOCH) // _SECOND
    except (ValueError, OverflowError):
        raise InvalidConfiguration(f"{text!r:.60} is no time that a record can have") from None
    return seconds * 1_000_000_000 + int(rest[:digits].ljust(9, "0")[:9] or "0")
