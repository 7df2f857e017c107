"""A record as JSON, which `hw consume` writes into a pipe and `hw produce --input records` reads.

Bytes that are text are text; others are `{"hex": "…"}`. Times are ISO 8601 in UTC, to the nanosecond.
"""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headwater.core.errors import HeadwaterError, InvalidConfiguration, InvalidRecord
from headwater.core.schema import Schema
from headwater.core.times import parse_iso_time

_NUMBER: Final = re.compile(r"-?[0-9]+")
_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}


class ReadRecord(NamedTuple):
    """A record that was read from JSON."""

    key: bytes | None
    value: Any
    timestamp: int | None
    headers: dict[str, bytes] | None


def write_record(record: Any) -> bytes:
    """A consumed record as a line."""
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": written_moment(record.timestamp),
        "key": plain(record.key),
        "value": plain(record.value),
    }
    if record.headers:
        document["headers"] = {name: plain(value) for name, value in record.headers.items()}
    return json.dumps(document, ensure_ascii=True).encode("ascii") + b"\n"


def plain(value: Any) -> Any:
    """A value of a record as JSON knows it."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime | date | time_of_day):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    return value


def read_record(document: Any, where: str, schema: Schema) -> ReadRecord:
    """The record that JSON describes; raises InvalidRecord."""
    if not isinstance(document, dict) or "value" not in document:
        raise InvalidRecord(f'{where}: a record is an object with a "value", such as hw consume writes')
    value = document["value"]
    if schema.raw:
        value = _bytes(value, where)
    elif value is not None:
        if not isinstance(value, dict):
            raise InvalidRecord(f"{where}: the topic is typed: its values are objects")
        kinds = {field.name: field.type for field in schema.payload}
        try:
            value = {name: _typed(item, kinds.get(name), where) for name, item in value.items()}
        except (ValueError, ArithmeticError) as error:
            raise InvalidRecord(f"{where}: {error}") from None
    stamp = document.get("timestamp")
    headers = document.get("headers")
    try:
        return ReadRecord(
            _bytes(document.get("key"), where),
            value,
            None if stamp is None else moment_of(stamp) if isinstance(stamp, str) else int(stamp),
            read_headers(headers or None),
        )
    except (HeadwaterError, TypeError, ValueError, OverflowError) as error:
        raise InvalidRecord(f"{where}: {error}") from None


def read_headers(headers: Any) -> dict[str, bytes] | None:
    """Headers by their names, from JSON, from Arrow, or from the text that CSV has of them; raises InvalidRecord."""
    try:
        if isinstance(headers, str):
            headers = json.loads(headers)
        pairs = None if headers is None else dict(headers).items()
        return None if pairs is None else {str(name): _bytes(value, f"header {name}") or b"" for name, value in pairs}
    except (ValueError, TypeError):
        raise InvalidRecord(f"headers are names and values, not {headers!r:.60}") from None


def _typed(value: Any, kind: Any, where: str) -> Any:
    """Return a text of JSON's as a value of the column's type. All other values are checked when they are sent."""
    if kind is None or value is None:
        return value
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _bytes(value, where)
    if not isinstance(value, str):
        return value
    if pa.types.is_timestamp(kind):
        zoned = value if kind.tz is not None or value.endswith("Z") else f"{value}Z"
        return moment_of(zoned) // _NANOSECONDS[kind.unit]
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_time(kind):
        return time_of_day.fromisoformat(value)
    return Decimal(value) if pa.types.is_decimal(kind) else value


def _bytes(value: Any, where: str) -> bytes | None:
    if isinstance(value, dict) and set(value) == {"hex"}:
        try:
            return bytes.fromhex(value["hex"])
        except (ValueError, TypeError):
            raise InvalidRecord(f"{where}: {value['hex']!r:.60} is not hexadecimal") from None
    return bytes_of(value)


def bytes_of(value: Any) -> bytes | None:
    """Return a value of JSON's or of a column as a key or a raw value: text as it is, all else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool | int | float | dict | list):
        return json.dumps(value).encode()
    return str(value).encode()


def key_of(document: Any, path: str | None) -> bytes | None:
    """A field of a JSON document, `customer.id` being one within another; None when it is not there."""
    for name in (path or "").split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(name)
    return bytes_of(document)


def written_moment(nanoseconds: int) -> str:
    """A timestamp in ISO 8601, to the nanosecond; a number where no calendar has it."""
    try:
        moment = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(nanoseconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds % 1_000_000_000:09d}Z"


def moment_of(text: str) -> int:
    """The reverse of `written_moment`; other forms of ISO 8601 are taken too, and numbers as nanoseconds."""
    text = text.strip()
    try:
        nanoseconds = int(text) if _NUMBER.fullmatch(text) else parse_iso_time(text)
    except InvalidConfiguration as error:
        raise InvalidRecord(str(error)) from None
    if not -(1 << 63) <= nanoseconds < 1 << 63:
        raise InvalidRecord(f"a timestamp is nanoseconds in 64 bits, not {nanoseconds}")
    return nanoseconds
