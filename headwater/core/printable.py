"""Printable text: data that is shown and never obeyed, in a terminal or a log."""

from __future__ import annotations

import unicodedata
from typing import Final

_SHOWN_CATEGORIES: Final = frozenset({"L", "M", "N", "P", "S", "Z"})


def printable(data: bytes | str) -> str:
    """Data as one line of text in which every control character, and every byte that is no text, is spelled out."""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    return "".join(character if _is_shown(character) else _spelled(character) for character in text)


def _is_shown(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    category = unicodedata.category(character)
    return category[0] in _SHOWN_CATEGORIES and category not in ("Zl", "Zp")


def _spelled(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
