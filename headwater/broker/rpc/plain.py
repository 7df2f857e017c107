"""Plain records: what clients send and get that know nothing of frames."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from headwater.core.errors import InvalidRecord, PartitionDeleted
from headwater.core.schema import Schema
from headwater.log import Frame, StoredFrame, encode, encode_batch
from headwater.streams.catalog import TopicInfo
from headwater.streams.routing import partition_of
from headwater.streams.typed import check_marker, check_row, rows_to_batch
from headwater.v1 import broker_pb2 as pb


class Records:
    """Records for one partition, and which of a request they are."""

    def __init__(self, frame: Frame, numbers: Sequence[int], topic_uuid: bytes) -> None:
        self._frame = frame
        self._topic_uuid = topic_uuid
        self.numbers = numbers

    def frames(self, info: TopicInfo) -> list[Frame]:
        """One frame; raises PartitionDeleted when the topic is another one by now."""
        if info.uuid != self._topic_uuid:
            raise PartitionDeleted(f"topic {info.name!r}")
        return [self._frame]


def records_of(
    records: Sequence[pb.Record], info: TopicInfo, schema: Schema, partition: int | None, turn: int, now_ns: int
) -> dict[int, Records]:
    """The records of a request by their partitions; raises InvalidRecord, and then nothing is written.

    A key decides; without one all go to the partition whose turn it is.
    """
    if partition is not None and not 0 <= partition < info.partitions:
        raise InvalidRecord(f"topic {info.name!r} has partitions 0 to {info.partitions - 1}, not {partition}")
    chosen: dict[int, list[int]] = {}
    for number, record in enumerate(records):
        _check(record, info)
        place = partition
        if place is None:
            place = partition_of(record.key, info.partitions) if record.HasField("key") else turn % info.partitions
        chosen.setdefault(place, []).append(number)
    return {
        place: Records(_frame([records[number] for number in numbers], info, schema, now_ns), numbers, info.uuid)
        for place, numbers in chosen.items()
    }


def _check(record: pb.Record, info: TopicInfo) -> None:
    limits = info.config
    if not record.HasField("key") and (limits.compact or not record.HasField("value")):
        why = f"topic {info.name!r} is compacted" if limits.compact else "a delete marker is for a key"
        raise InvalidRecord(f"{why}: the record needs a key")
    headers = sum(len(name.encode()) + len(value) for name, value in record.headers.items())
    for what, found, limit, option in (
        ("a key", len(record.key), limits.max_key_bytes, "max_key_bytes"),
        ("a value", len(record.value), limits.max_value_bytes, "max_value_bytes"),
        ("the headers of a record", headers, limits.max_headers_bytes, "max_headers_bytes"),
    ):
        if found > limit:
            raise InvalidRecord(f"{what}: {found} bytes are over the limit of {limit} ({option})")


def _frame(records: Sequence[pb.Record], info: TopicInfo, schema: Schema, now_ns: int) -> Frame:
    keys = [record.key if record.HasField("key") else None for record in records]
    headers = [dict(record.headers) for record in records]
    columns: dict[str, Any] = {
        "keys": keys if any(key is not None for key in keys) else None,
        "headers": headers if any(headers) else None,
        "timestamps": [record.timestamp_ns or now_ns for record in records],
        "compression": info.config.compression,
        "threshold": info.config.compression_threshold,
    }
    if schema.raw:
        return encode([record.value if record.HasField("value") else None for record in records], **columns)
    if not all(record.HasField("value") for record in records):
        check_marker(schema)
    rows = [_row(record.value, schema) if record.HasField("value") else None for record in records]
    return encode_batch(rows_to_batch(rows, schema), schema, **columns)


def _row(value: bytes, schema: Schema) -> dict[str, Any]:
    try:
        row = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"a record of this topic is one row as JSON: {error}") from None
    if isinstance(row, dict):
        row = {name: _from_json(one, schema, name) for name, one in row.items()}
    return check_row(row, schema)


def _from_json(value: Any, schema: Schema, name: str) -> Any:
    """What JSON has no values for is text in it: bytes as base64, times as ISO 8601."""
    if not isinstance(value, str) or name not in schema.payload.names:
        return value
    kind = str(schema.payload.field(name).type)
    try:
        if "binary" in kind:
            return base64.b64decode(value, validate=True)
        if kind.startswith("timestamp"):
            return datetime.fromisoformat(value)
        if kind.startswith("date"):
            return date.fromisoformat(value)
        if kind.startswith("time"):
            return time.fromisoformat(value)
        if kind.startswith("decimal"):
            return Decimal(value)
    except (ValueError, ArithmeticError) as error:
        raise InvalidRecord(f"column {name!r} must be {kind}: {error}") from None
    return value


def to_records(frames: Iterable[StoredFrame], start: int, end: int | None = None) -> Iterator[pb.Record]:
    """The records of frames with `start` <= offset < `end`."""
    for frame in frames:
        for offset, timestamp, key, value, headers in frame.records(start, end):
            record = pb.Record(key=key, timestamp_ns=timestamp, offset=offset)
            if value is not None:
                record.value = value if isinstance(value, bytes) else json.dumps(value, default=_to_json).encode()
            for name, content in headers.items():
                record.headers[name] = content
            yield record


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
