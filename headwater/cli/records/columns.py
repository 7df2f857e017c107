"""Columns as people write them, `price:float64` or `symbol:string!`, and back."""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa

from headwater.cli.arguments import Mistake

_ZONED: Final = re.compile(r"timestamp\[\s*(s|ms|us|ns)\s*,\s*(?:tz=)?([\w+:/-]+)\s*\]")
_DECIMAL: Final = re.compile(r"decimal(?:128)?\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_LIST: Final = re.compile(r"list<(?:item:\s*)?(.+)>")
_ALIASES: Final = {
    "text": "string",
    "int": "int64",
    "float": "float64",
    "timestamp": "timestamp[us]",
    "bytes": "binary",
}


def parse_schema(columns: list[str]) -> pa.Schema:
    """The schema of these columns; several may be in one text, with commas between."""
    parts = [part for text in columns for part in re.split(r",(?![^\[(<]*[\])>])", text)]
    return pa.schema([parse_column(part) for part in parts])


def parse_column(text: str) -> pa.Field:
    """`name:type`, with `!` behind it where it must not be null; raises Mistake."""
    name, separator, kind = text.strip().partition(":")
    if not name.strip() or not separator:
        raise Mistake(f"a column is written name:type, such as price:float64, not {text!r:.100}")
    required = kind.strip().endswith("!")
    return pa.field(name.strip(), _parse_type(kind.strip().removesuffix("!").strip()), nullable=not required)


def _parse_type(text: str) -> Any:
    if match := _ZONED.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if match := _LIST.fullmatch(text):
        return pa.list_(_parse_type(match[1]))
    try:
        if match := _DECIMAL.fullmatch(text):
            return pa.decimal128(int(match[1]), int(match[2]))
        return pa.type_for_alias(_ALIASES.get(text, text))
    except ValueError:
        raise Mistake(
            f"unknown type {text!r:.60}: use string, int64, float64, bool, binary, date32, timestamp[us, UTC], "
            f"decimal(12,2), list<int64> or another of Arrow's"
        ) from None


def written(schema: pa.Schema) -> list[dict[str, Any]]:
    """The columns for programs."""
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]
