"""A record: the unit that users send and receive."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})


class Record(NamedTuple):
    """One stored record.

    `timestamp` counts nanoseconds since 1970 in UTC. `value` is bytes in a raw log and a dict of columns in a typed
    one, with times of nanoseconds as integers; `None` is a delete marker in both.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: Any
    headers: Mapping[str, bytes] = NO_HEADERS
