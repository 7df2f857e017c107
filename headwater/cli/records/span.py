"""Positions and ranges as people write them: `start`, `end`, `17`, `-5`, `100:200`, `@-1h`, `@2026-01-31T12:00`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from headwater.cli.arguments import Mistake
from headwater.core.errors import HeadwaterError
from headwater.streams.start import Start, resolve, time

if TYPE_CHECKING:
    from headwater.log import Partition

GRAMMAR: Final = "start, end, an offset, -N from the end, @-1h ago, @2026-01-31T12:00"
WORDS: Final[dict[str, Start]] = {"start": "earliest", "end": "latest", "earliest": "earliest", "latest": "latest"}
"""The words of the command line, and those of programs."""

From = Annotated[
    str | None,
    typer.Option("--from", metavar="POSITION", help=f"Where to begin: {GRAMMAR}, or A:B for both ends."),
]
To = Annotated[
    str | None, typer.Option("--to", metavar="POSITION", help="Where to end, exclusive; the same positions.")
]


class PositionRange(NamedTuple):
    """From a position up to, and without, another one; in each partition for itself."""

    start: Start
    end: Start
    ends: bool
    """True if the user gave an end."""


def parse_position(text: str) -> Start:
    """One position; raises Mistake."""
    text = text.strip()
    if text in WORDS:
        return WORDS[text]
    try:
        return time(text[1:]) if text.startswith("@") else int(text)
    except (ValueError, HeadwaterError, OverflowError):
        raise Mistake(f"{text!r:.100} is not a position: use {GRAMMAR}") from None


def parse_span(first: str | None, last: str | None, default: Start = "earliest") -> PositionRange:
    """Return the range that `--from` and `--to` mean together. A range in `--from` gives both ends."""
    if first is None:
        return PositionRange(default, _end(last), last is not None)
    try:
        return PositionRange(parse_position(first), _end(last), last is not None)
    except Mistake:
        position_range = _range(first)
        if position_range is None:
            raise
        if last is not None:
            raise Mistake(f"--from {first!r:.100} has an end of its own: leave out --to") from None
        return position_range


def nearest(partition: Partition, position: Start, *, several: bool) -> int:
    """Return the offset of a position; of several partitions, one that lacks an offset gives its nearest one."""
    if several and isinstance(position, int) and position >= 0:
        start, last, _ = partition.bounds()
        return min(max(position, start), last)
    return resolve(partition, position)


def _end(text: str | None) -> Start:
    return "latest" if text is None else parse_position(text)


def _range(text: str) -> PositionRange | None:
    """Two positions with a colon between. Times have colons too: the first one counts that leaves two positions."""
    for at in (number for number, character in enumerate(text) if character == ":"):
        before, after = text[:at].strip(), text[at + 1 :].strip()
        try:
            start = parse_position(before) if before else "earliest"
            return PositionRange(start, parse_position(after) if after else "latest", bool(after))
        except Mistake:
            continue
    return None
