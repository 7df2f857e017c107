"""Searching texts: for a part, by the patterns of SQL's `like`, and by regular expressions."""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.errors import InvalidFilter

_PLAIN: Final = {"contains": "match_substring", "starts with": "starts_with", "ends with": "ends_with"}


class Searching:
    """One search, on arrays and on single values of a type: of text, or of bytes, where `_` is one byte."""

    def __init__(self, kind: str, pattern: str, type_: Any) -> None:
        """Raises InvalidFilter for a regular expression that is none."""
        self._ignore_case = kind == "ilike"
        if kind == "like":
            kind, pattern = _simplified(pattern)
        elif kind == "ilike":
            kind, pattern = "matches", _regular(pattern)
        self._kind = kind
        self._pattern = pattern
        self._type = type_
        text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
        self._python: Any = pattern if text else pattern.encode()
        if kind == "matches":
            try:
                self.mask(pa.array(["" if text else b""], type_))
            except pa.ArrowException as error:
                raise InvalidFilter(f"{pattern!r:.60} is no regular expression: {str(error)[:100]}") from None

    def mask(self, array: pa.Array) -> pa.Array:
        """True or false for each text; null for null."""
        if self._kind == "matches":
            return pc.match_substring_regex(array, self._pattern, ignore_case=self._ignore_case)
        return getattr(pc, _PLAIN[self._kind])(array, self._pattern)

    def finds(self, value: Any) -> bool:
        """The same for one text."""
        if self._kind == "contains":
            return self._python in value
        if self._kind == "starts with":
            return bool(value.startswith(self._python))
        if self._kind == "ends with":
            return bool(value.endswith(self._python))
        return bool(self.mask(pa.array([value], self._type))[0].as_py())  # Python's own expressions are others


def _simplified(pattern: str) -> tuple[str, str]:
    """Return a pattern of `like` as a plain search, which is much faster, or as a regular expression."""
    inner = pattern.strip("%")
    if "%" not in inner and "_" not in inner and inner != pattern:
        if not pattern.startswith("%"):
            return "starts with", inner
        return ("contains" if pattern.endswith("%") else "ends with"), inner
    return "matches", _regular(pattern)


def _regular(pattern: str) -> str:
    escaped = "".join({"%": ".*", "_": "."}.get(character) or _escaped(character) for character in pattern)
    return f"^(?s:{escaped})$"


def _escaped(character: str) -> str:
    if character == "\0":
        return r"\x00"
    return re.sub(r"([^\w])", r"\\\1", character) if character.isascii() else character
