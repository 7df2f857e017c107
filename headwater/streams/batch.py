"""A batch: records for one partition that a producer has taken and not yet written."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from headwater.core.config import TopicConfig
from headwater.core.schema import Schema
from headwater.log import Frame, Identity, encode, encode_batch
from headwater.streams.receipt import Outcome
from headwater.streams.typed import rows_to_batch

RECORD_BYTES: Final = 12
"""The bytes of a record beside its value: its timestamp, and the end of its value."""


class Batch:
    """Columns that grow record by record. Not thread-safe: the producer's mutex is held by whoever changes it."""

    __slots__ = ("_packed", "due_ns", "headers", "keys", "outcome", "room", "timestamps", "values", "waits")

    def __init__(self, partition: int) -> None:
        self.outcome = Outcome(partition)
        self.values: list[Any] = []
        self.timestamps: list[int] = []
        """A list, though an array would be smaller: appending to one takes five times as long."""
        self._packed = bytearray()
        """The timestamps before those, eight bytes each: of records that came many at once, and all before them."""
        self.keys: list[bytes | None] = []
        """Only as long as the last key needs: records without keys cost nothing here."""
        self.headers: dict[int, Mapping[str, bytes]] = {}
        self.room = 0
        """The bytes that may still come before the batch is written; none before it has begun."""
        self.due_ns = 0
        self.waits = False
        """True if the idle thread will try again to write it."""

    def __len__(self) -> int:
        """The number of records."""
        return len(self.values)

    def begin(self, room: int, due_ns: int) -> None:
        """Make room for the first record; the batch is to be written at the time `due_ns`."""
        self.room = room
        self.due_ns = due_ns

    def add(
        self, value: Any, size: int, timestamp: int, key: bytes | None, headers: Mapping[str, bytes] | None
    ) -> None:
        """Take one record of about `size` bytes."""
        number = len(self.values)
        try:
            self.values.append(value)
            self.timestamps.append(timestamp)
            if key is not None:
                if len(self.keys) < number:
                    self.keys += [None] * (number - len(self.keys))
                self.keys.append(key)
            if headers is not None:
                self.headers[number] = dict(headers)
            self.room -= size
        except BaseException:
            self.cut(number)
            raise

    def add_all(self, values: list[Any], size: int, timestamp: int) -> None:
        """Take many records at once, of about `size` bytes together, without keys and headers."""
        number = len(self.values)
        try:
            self.values += values
            self._packed += struct.pack(f"<{len(self.timestamps)}q", *self.timestamps)
            self.timestamps.clear()
            self._packed += timestamp.to_bytes(8, "little", signed=True) * len(values)
            self.room -= size
        except BaseException:
            self.cut(number)
            raise

    def cut(self, count: int) -> None:
        """Back to `count` records, when an interruption (Ctrl-C) has left some that are half there."""
        packed = len(self._packed) // 8
        del self.values[count:], self.keys[count:]
        del self._packed[8 * count :], self.timestamps[max(count - packed, 0) :]
        self.headers.pop(count, None)

    def frame(self, schema: Schema, config: TopicConfig, identity: Identity | None) -> Frame:
        """All of it as one frame."""
        count = len(self.values)
        columns: dict[str, Any] = {
            "keys": self.keys + [None] * (count - len(self.keys)) if self.keys else None,
            "headers": [self.headers.get(number) for number in range(count)] if self.headers else None,
            "timestamps": self._times(),
            "compression": config.compression,
            "threshold": config.compression_threshold,
            "identity": identity,
        }
        if schema.raw:
            return encode(self.values, **columns)
        return encode_batch(rows_to_batch(self.values, schema), schema, **columns)

    def _times(self) -> int | list[int] | pa.Array:
        if self._packed:
            content = self._packed + struct.pack(f"<{len(self.timestamps)}q", *self.timestamps)
            return pa.Array.from_buffers(pa.int64(), len(self.values), [None, pa.py_buffer(content)])
        first = self.timestamps[0]
        alike = first == self.timestamps[-1] and self.timestamps.count(first) == len(self.timestamps)
        return first if alike else self.timestamps
