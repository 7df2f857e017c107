"""Positions and ranges as people write them: `start`, `end`, `17`, `-5`, `100:200`, `@-1h`, `@2026-01-31T12:00`."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import typer

from headwater.errors import HeadwaterError, InvalidConfiguration
from headwater.store.start import Start, Time, time

GRAMMAR: Final = "start, end, an offset, -N from the end, @-1h ago, @2026-01-31T12:00"
_WORDS: Final[dict[str, Start]] = {"start": "earliest", "end": "latest"}

From = Annotated[
    str | None,
    typer.Option("--from", metavar="POSITION", help=f"Where to begin: {GRAMMAR}, or A:B for both ends."),
]
To = Annotated[
    str | None, typer.Option("--to", metavar="POSITION", help="Where to end, without it; the same positions.")
]


class Span(NamedTuple):
    """From a position up to, and without, another one; in each partition for itself."""

    start: Start
    end: Start
    ends: bool
    """Whether an end was said."""


def parse_position(text: str) -> Start:
    """One position; raises InvalidConfiguration."""
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    try:
        return time(text[1:]) if text.startswith("@") else int(text)
    except (ValueError, HeadwaterError, OverflowError):
        raise InvalidConfiguration(f"{text!r:.100} is no position: use {GRAMMAR}") from None


def parse_span(first: str | None, last: str | None, default: Start = "earliest") -> Span:
    """What `--from` and `--to` say together. A range in `--from` says both."""
    if first is None:
        return Span(default, _end(last), last is not None)
    try:
        return Span(parse_position(first), _end(last), last is not None)
    except InvalidConfiguration:
        found = None if last is not None else _range(first)
        if found is None:
            raise
        return found


def _end(text: str | None) -> Start:
    return "latest" if text is None else parse_position(text)


def _range(text: str) -> Span | None:
    """Two positions with a colon between. Times have colons too: the first one counts that leaves two positions."""
    for at in (number for number, character in enumerate(text) if character == ":"):
        before, after = text[:at].strip(), text[at + 1 :].strip()
        try:
            start = parse_position(before) if before else "earliest"
            return Span(start, parse_position(after) if after else "latest", bool(after))
        except InvalidConfiguration:
            continue
    return None


def written(position: Start) -> str:
    """A position as people write it."""
    if isinstance(position, Time):
        return f"@{position.ns}"
    return {"earliest": "start", "latest": "end"}.get(str(position), str(position))
