"""Bytes and columns in the console: text, whatever they are."""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.console.decoding import Decoder, decoder_named, plain, shown
from headwater.core.errors import InvalidConfiguration


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (b"tea", "text", "tea"),
        (b"", "text", ""),
        ("Bäume".encode(), "text", "Bäume"),
        (b"two\tteas\r\n", "text", "two\tteas\r\n"),
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b"[1, 2", "json", "[1, 2"),
        (b"\xff\x00", "hex", "ff 00"),
        (b"\x1b[31mred", "hex", "1b 5b 33 31 6d 72 65 64"),
        ({"price": 1.5, "raw": b"\xff", "at": datetime(2026, 1, 31, tzinfo=UTC)}, "row", None),
    ],
)
def test_a_value_is_shown_as_what_it_looks_like(value: Any, kind: str, text: str | None) -> None:
    value_shown = shown(value)
    assert value_shown is not None
    assert (value_shown["kind"], value_shown["cut"]) == (kind, False)
    if text is not None:
        assert (value_shown["text"], value_shown["size"]) == (text, len(value))


def test_a_long_value_is_cut_between_characters() -> None:
    value_shown = shown(("é" * 5000).encode(), limit=401)
    assert value_shown == {"kind": "text", "text": "é" * 401, "size": 10_000, "cut": True}
    assert shown(None) is None


@pytest.mark.parametrize(
    ("decoder", "value", "kind"),
    [("hex", b"tea", "hex"), ("text", b"\xfftea", "text"), ("json", b'{"a":1}', "json"), ("json", b"tea", "text")],
)
def test_a_decoder_is_chosen_by_its_name(decoder: str, value: bytes, kind: str) -> None:
    value_shown = shown(value, decoder_named(decoder))
    assert value_shown is not None
    assert value_shown["kind"] == kind


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (b'{"a": "\\ud800", "b": "\\u00e9"}', "json", '{"a": "\\ud800", "b": "\\u00e9"}'),  # half of a character
        (b"[" * 100_000, "json", "[" * 400),
    ],
)
def test_json_that_no_text_can_hold_is_shown_as_it_came(value: bytes, kind: str, text: str) -> None:
    value_shown = shown(value, "json")
    assert value_shown is not None
    assert (value_shown["kind"], value_shown["text"]) == (kind, text)
    value_shown["text"].encode()


def test_a_decoder_that_is_none_or_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfiguration, match="is not a decoder"):
        decoder_named("rot13")
    monkeypatch.setitem(sys.modules, "msgpack", None)  # as if it were not installed
    with pytest.raises(InvalidConfiguration, match="pip install msgpack"):
        shown(b"\x81\xa1a\x01", "msgpack")


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (b"\x81\xa1a\x01", "msgpack", '{"a": 1}'),
        (msgpack.packb({"n": [1, None, True], 7: b"\xff"}), "msgpack", '{"n": [1, null, true], "7": "0xff"}'),
        (msgpack.packb(datetime(2026, 1, 31, tzinfo=UTC), datetime=True), "msgpack", '"2026-01-31T00:00:00+00:00"'),
        (msgpack.packb(float("nan")), "msgpack", '"nan"'),
        (b"\x91" * 5000, "hex", None),  # too deep to be one
        (b"\xc1", "hex", "c1"),
        (b"tea and more", "text", "tea and more"),
    ],
)
def test_messagepack_is_shown_as_json_and_what_is_none_as_what_it_looks_like(
    value: bytes, kind: str, text: str | None
) -> None:
    value_shown = shown(value, "msgpack")
    assert value_shown is not None
    assert (value_shown["kind"], value_shown["size"]) == (kind, len(value))
    assert text is None or value_shown["text"] == text


def test_what_json_has_no_word_for_becomes_text() -> None:
    odd = {1: math.nan, "d": Decimal("1.50"), "t": timedelta(seconds=1), "b": [b"\x00", b"tea"], "x": object}
    document = plain(odd)
    assert document["1"] == "nan"
    assert (document["d"], document["b"]) == ("1.50", ["0x00", "tea"])
    json.dumps(document, allow_nan=False)


@given(st.binary(max_size=200), st.sampled_from(["auto", "text", "json", "hex", "msgpack"]))
def test_whatever_the_bytes_are_they_can_be_sent(content: bytes, decoder: Decoder) -> None:
    value_shown = shown(content, decoder, limit=50)
    assert value_shown is not None
    assert json.loads(json.dumps(value_shown)) == value_shown
    assert len(value_shown["text"]) <= 50
    value_shown["text"].encode()
