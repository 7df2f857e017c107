"""Decoding: bytes and columns as text to be shown. It is always plain text, never markup."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from typing import Any, Final, Literal, TypedDict, get_args

from headwater.core.errors import InvalidConfiguration

Decoder = Literal["auto", "text", "json", "hex", "msgpack"]
PREVIEW: Final = 400
"""So many characters of a value are shown in a list. All of it is shown when it is asked for."""


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Characters that no text has."""


class Shown(TypedDict):
    """A value to be shown: its format, its text, its size in bytes, and whether the text is cut."""

    kind: str
    text: str
    size: int
    cut: bool


def decoder_named(name: str) -> Decoder:
    """The decoder of a name; raises InvalidConfiguration."""
    for known in get_args(Decoder):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise InvalidConfiguration(f"{name!r:.40} is not a decoder: use {', '.join(get_args(Decoder))}")


def shown(value: Any, decoder: Decoder = "auto", limit: int = PREVIEW) -> Shown | None:
    """A key or a value to be shown; None for one that is not there."""
    if value is None:
        return None
    if not isinstance(value, bytes):
        text = _written(plain(value))
        return {"kind": "row", "text": text[:limit], "size": len(text), "cut": len(text) > limit}
    kind, text = _DECODERS[decoder](value[: limit * 4 + 4] if decoder in ("auto", "text", "hex") else value)
    cut = len(text) > limit or (decoder in ("auto", "text", "hex") and len(value) > limit * 4 + 4)
    return {"kind": kind, "text": text[:limit], "size": len(value), "cut": cut}


def _auto(content: bytes) -> tuple[str, str]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if error.start < len(content) - 4 or error.reason != "unexpected end of data":
            return _hex(content)
        text = content[: error.start].decode()  # only the last character is cut in two
    if _CONTROL.search(text):
        return _hex(content)
    return ("json" if text[:1] in ("{", "[") else "text"), text


def _text(content: bytes) -> tuple[str, str]:
    return "text", content.decode("utf-8", "replace")


def _json(content: bytes) -> tuple[str, str]:
    try:
        return "json", _written(json.loads(content))
    except (ValueError, RecursionError):  # it is none, or nested deeper than anybody can read
        return _auto(content)


def _written(value: Any) -> str:
    """A value as JSON for people: letters as they are, but halves of characters as the escapes that they came as."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _hex(content: bytes) -> tuple[str, str]:
    return "hex", content.hex(" ")


def _msgpack(content: bytes) -> tuple[str, str]:
    try:
        unpack: Callable[..., Any] = importlib.import_module("msgpack").unpackb
    except ImportError:
        raise InvalidConfiguration("msgpack is not installed where the console runs: pip install msgpack") from None
    try:
        return "msgpack", _written(plain(unpack(content, strict_map_key=False, timestamp=3)))
    except Exception:  # noqa: BLE001 - whatever it is, it is not MessagePack
        return _auto(content)


_DECODERS: Final[dict[Decoder, Callable[[bytes], tuple[str, str]]]] = {
    "auto": _auto,
    "text": _text,
    "json": _json,
    "hex": _hex,
    "msgpack": _msgpack,
}


def plain(value: Any) -> Any:
    """A value as JSON can hold it: what JSON has no word for becomes text."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        kind, text = _auto(value)
        return text if kind != "hex" else f"0x{value.hex()}"
    if isinstance(value, datetime | date | clock_time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)
