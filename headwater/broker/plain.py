"""Plain records: the broker makes frames of them, for clients that know nothing of frames.

Values of a typed topic are rows as JSON. In it, bytes are text as base64, and times are text as ISO 8601.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import time
from collections.abc import Sequence
from decimal import Decimal
from itertools import count
from typing import Any

from headwater.broker.backend import NamedTopic
from headwater.broker.stored import topic_of
from headwater.core.errors import InvalidRecord, PartitionDeleted
from headwater.core.limits import check_sizes
from headwater.core.record import Record
from headwater.core.schema import Schema
from headwater.log import Frame, encode, encode_batch
from headwater.streams.catalog import TopicInfo
from headwater.streams.routing import partition_of
from headwater.streams.store import Store
from headwater.streams.typed import check_marker, check_row, rows_to_batch


class RoutedRecords:
    """The records of a request that go to one partition."""

    def __init__(self, frame: Frame, numbers: Sequence[int], topic_uuid: bytes) -> None:
        self._frame = frame
        self._topic_uuid = topic_uuid
        self.numbers = numbers
        """The positions of these records in the request."""

    def frames(self, info: TopicInfo) -> list[Frame]:
        """One frame; raises PartitionDeleted if another topic has the name by now."""
        if info.uuid != self._topic_uuid:
            raise PartitionDeleted(f"topic {info.name!r}")
        return [self._frame]


class RecordRouter:
    """Routes plain records to the partitions of their topics. For threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turns = count()

    def route(self, topic: NamedTopic, partition: int | None, records: Sequence[Record]) -> dict[int, RoutedRecords]:
        """Route the records of a request, all to `partition` if it is given.

        Raises UnknownTopic, PartitionDeleted and InvalidRecord, and then nothing is written.
        """
        info = topic_of(self._store, topic)
        return _routed(records, info, self._store.schema_of(info), partition, next(self._turns), time.time_ns())


def _routed(
    records: Sequence[Record], info: TopicInfo, schema: Schema, partition: int | None, turn: int, now_ns: int
) -> dict[int, RoutedRecords]:
    """Records by their partitions. A key decides; records without one all go to the partition whose turn it is."""
    if partition is not None and not 0 <= partition < info.partitions:
        raise InvalidRecord(f"topic {info.name!r} has partitions 0 to {info.partitions - 1}, not {partition}")
    chosen: dict[int, list[int]] = {}
    for number, record in enumerate(records):
        _check(record, info)
        target = partition
        if target is None:
            target = turn % info.partitions if record.key is None else partition_of(record.key, info.partitions)
        chosen.setdefault(target, []).append(number)
    return {
        target: RoutedRecords(_frame([records[number] for number in numbers], info, schema, now_ns), numbers, info.uuid)
        for target, numbers in chosen.items()
    }


def _check(record: Record, info: TopicInfo) -> None:
    limits = info.config
    if record.key is None and (limits.compact or record.value is None):
        why = f"topic {info.name!r} is compacted" if limits.compact else "a delete marker is for a key"
        raise InvalidRecord(f"{why}: the record needs a key")
    headers = sum(len(name.encode()) + len(value) for name, value in record.headers.items())
    check_sizes(limits, value=len(record.value or b""), key=len(record.key or b""), headers=headers)


def _frame(records: Sequence[Record], info: TopicInfo, schema: Schema, now_ns: int) -> Frame:
    keys = [record.key for record in records]
    headers = [record.headers for record in records]
    columns: dict[str, Any] = {
        "keys": keys if any(key is not None for key in keys) else None,
        "headers": list(map(dict, headers)) if any(headers) else None,
        "timestamps": [record.timestamp or now_ns for record in records],
        "compression": info.config.compression,
        "threshold": info.config.compression_threshold,
    }
    values = [record.value for record in records]
    if schema.raw:
        return encode(values, **columns)
    if any(value is None for value in values):
        check_marker(schema)
    rows = [None if value is None else _row(value, schema) for value in values]
    return encode_batch(rows_to_batch(rows, schema), schema, **columns)


def _row(value: bytes, schema: Schema) -> dict[str, Any]:
    try:
        row = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"a record of this topic is one row as JSON: {error}") from None
    if isinstance(row, dict):
        row = {name: _from_json(cell, schema, name) for name, cell in row.items()}
    return check_row(row, schema)


def _from_json(value: Any, schema: Schema, name: str) -> Any:
    if not isinstance(value, str) or name not in schema.payload.names:
        return value
    kind = str(schema.payload.field(name).type)
    try:
        if "binary" in kind:
            return base64.b64decode(value, validate=True)
        if kind.startswith("timestamp"):
            return dt.datetime.fromisoformat(value)
        if kind.startswith("date"):
            return dt.date.fromisoformat(value)
        if kind.startswith("time"):
            return dt.time.fromisoformat(value)
        if kind.startswith("decimal"):
            return Decimal(value)
    except (ValueError, ArithmeticError) as error:
        raise InvalidRecord(f"column {name!r} must be {kind}: {error}") from None
    return value


def as_bytes(value: Any) -> bytes:
    """The value of a stored record as plain bytes: a row becomes JSON."""
    return value if isinstance(value, bytes) else json.dumps(value, default=_to_json).encode()


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    return str(value)
