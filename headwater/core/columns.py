"""Columns as people write them, and Arrow shows them: `int64`, `timestamp[us, tz=UTC] not null`, `list<item: string>`.

A type that cannot be written so, such as a struct with a comma in a name, is written as Arrow's own bytes in base64.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from headwater.core.errors import SchemaError
from headwater.core.schema import Schema

_BYTES: Final = "arrow:"
_NOT_NULL: Final = " not null"
_WORD: Final = re.compile(r"[a-z][a-z0-9_]*")
_UNITS: Final = re.compile(r"\[(?P<unit>[^\],]*)(?:, tz=(?P<tz>[^\]]+))?\]")
_DIGITS: Final = re.compile(r"\((?P<precision>\d{1,3}), (?P<scale>-?\d{1,3})\)")
_NAME: Final = re.compile(r"(?P<name>[^:<>,]+): ")
_LISTS: Final = {"list": pa.list_, "large_list": pa.large_list}
_DECIMALS: Final = {"decimal128": pa.decimal128, "decimal256": pa.decimal256, "decimal": pa.decimal128}


def write_columns(schema: Schema) -> dict[str, str]:
    """The columns of a schema, by their names."""
    return {field.name: _written(field) for field in schema.payload}


def read_columns(columns: Mapping[str, str]) -> Schema:
    """The reverse; raises SchemaError."""
    return Schema(pa.schema([read_column(name, text) for name, text in columns.items()]))


def _written(field: Any) -> str:
    text = str(field.type) + ("" if field.nullable else _NOT_NULL)
    try:
        same = read_column(field.name, text).equals(field)
    except SchemaError:
        same = False
    return text if same else _BYTES + b64encode(pa.schema([field]).serialize().to_pybytes()).decode()


def read_column(name: str, text: str) -> Any:
    """A column of this name; raises SchemaError."""
    if text.startswith(_BYTES):
        try:
            return pa.ipc.read_schema(pa.py_buffer(b64decode(text.removeprefix(_BYTES), validate=True))).field(0)
        except (pa.ArrowException, Base64Error, ValueError, OSError, IndexError) as error:
            raise SchemaError(f"{text[:40]!r} is no column in Arrow's bytes: {error}") from error
    reader = _ColumnReader(text.strip())
    kind, nullable = reader.type(), not reader.skip(_NOT_NULL)
    reader.end()
    return pa.field(name, kind, nullable)


class _ColumnReader:
    """Reads one type, from the left to the right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _wrong(self) -> SchemaError:
        return SchemaError(
            f"{self._text!r:.80} is no type of Arrow's: write int64, string, timestamp[us], list<string>, …"
        )

    def skip(self, text: str) -> bool:
        """Return whether this comes next; then it is passed."""
        is_next = self._text.startswith(text, self._at)
        self._at += len(text) if is_next else 0
        return is_next

    def _expect(self, text: str) -> None:
        if not self.skip(text):
            raise self._wrong()

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def end(self) -> None:
        """Nothing more may come."""
        if self._at != len(self._text):
            raise self._wrong()

    def type(self) -> Any:
        """The next type."""
        word = self._match(_WORD)
        if word is None:
            raise self._wrong()
        try:
            return self._nested(word[0]) if self.skip("<") else self._plain(word[0])
        except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
            raise self._wrong() from error

    def _plain(self, word: str) -> Any:
        digits = self._match(_DIGITS)
        if digits is not None:
            return _DECIMALS[word](int(digits["precision"]), int(digits["scale"]))
        units = self._match(_UNITS)
        if units is None:
            return pa.type_for_alias(word)
        if word == "fixed_size_binary":
            return pa.binary(int(units["unit"]))
        if units["tz"] is not None:
            return pa.timestamp(units["unit"], units["tz"]) if word == "timestamp" else pa.type_for_alias("")
        return pa.type_for_alias(f"{word}[{units['unit']}]")

    def _nested(self, word: str) -> Any:
        if word == "map":
            key = self.type()
            self._expect(", ")
            item = pa.field("value", self.type(), not self.skip(_NOT_NULL))
            self._expect(">")
            return pa.map_(key, item)
        fields = [self._field()]
        while word == "struct" and self.skip(", "):
            fields.append(self._field())
        self._expect(">")
        if word == "struct":
            return pa.struct(fields)
        if word == "fixed_size_list":
            count = self._match(_UNITS)
            return pa.list_(fields[0], int(count["unit"]) if count is not None else -1)
        return _LISTS[word](fields[0])

    def _field(self) -> Any:
        name = self._match(_NAME)
        return pa.field("item" if name is None else name["name"], self.type(), not self.skip(_NOT_NULL))
