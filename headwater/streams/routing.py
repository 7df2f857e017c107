"""Routing: the partition of a record, and the checks that a record passes on the way.

A record with a key always goes to the same partition, in every process and every language: CRC-32 of the key, modulo
the number of partitions. Without a key a producer stays with one partition for a whole batch and then moves to the
next, which keeps frames large.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from headwater.core.errors import InvalidRecord
from headwater.core.limits import check_sizes
from headwater.core.schema import Schema
from headwater.streams.catalog import TopicInfo
from headwater.streams.typed import check_marker, check_row, size_of


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key."""
    return crc32(key) % partitions


class Router:
    """Checks records against a topic as it is described, and chooses their partitions. Immutable."""

    __slots__ = ("_count", "_limits", "_name", "_raw", "_schema")

    def __init__(self, info: TopicInfo, schema: Schema) -> None:
        self._name = info.name
        self._count = info.partitions
        self._limits = info.config
        self._schema = schema
        self._raw = schema.raw

    def partition(self, key: Any, partition: int | None, sticky: int) -> int:
        """Return the partition of a record: the given one, its key's, or else `sticky`; raises InvalidRecord."""
        if key is not None and (type(key) is not bytes or len(key) > self._limits.max_key_bytes):
            if type(key) is bytes:
                check_sizes(self._limits, key=len(key))
            raise InvalidRecord(f"a key is bytes, not {key!r:.60}")
        if key is None and self._limits.compact:
            raise InvalidRecord(f"topic {self._name!r} is compacted: every record needs a key")
        if partition is None:
            return sticky if key is None else partition_of(key, self._count)
        if not isinstance(partition, int) or not 0 <= partition < self._count:
            raise InvalidRecord(f"topic {self._name!r} has partitions 0 to {self._count - 1}, not {partition}")
        return partition

    def value(self, value: Any, key: bytes | None) -> tuple[Any, int]:
        """Return the value as it is stored, and about its size in bytes; raises InvalidRecord."""
        if type(value) is bytes and self._raw:
            size = len(value)
        elif value is None:
            if key is None:
                raise InvalidRecord("a delete marker (a value of None) needs a key")
            check_marker(self._schema)
            size = 0
        elif not self._raw:
            value = check_row(value, self._schema)
            size = size_of(value)
        elif isinstance(value, bytearray | memoryview):
            value = bytes(value)
            size = len(value)
        else:
            raise InvalidRecord(f"a value is bytes, not {type(value).__name__}: encode it, or use a typed topic")
        check_sizes(self._limits, value=size)
        return value, size

    def extras(self, key: bytes | None, headers: Any, timestamp: Any) -> int:
        """Return about the size of all that is beside the value, in bytes; raises InvalidRecord."""
        if timestamp is not None and (type(timestamp) is not int or not -(1 << 63) <= timestamp < 1 << 63):
            raise InvalidRecord(f"a timestamp is nanoseconds in 64 bits, not {timestamp!r}")
        size = 0 if key is None else len(key) + 4
        if headers is not None:
            size += self._size_of_headers(headers)
        return size

    def _size_of_headers(self, headers: Any) -> int:
        try:
            size = sum(len(name.encode()) + len(value) for name, value in headers.items())
            sound = all(isinstance(value, bytes) for value in headers.values())
        except (AttributeError, TypeError, UnicodeEncodeError):
            size, sound = 0, False
        if not sound:
            raise InvalidRecord("headers are a mapping of str to bytes")
        check_sizes(self._limits, headers=size)
        return size + 8 * len(headers)
