"""Output: tables for people, JSON for programs, and data that is shown but never obeyed.

Whatever comes from files (names, keys, values, reasons) may hold escape sequences or markup. It reaches a terminal
only through `shown`, as plain text.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final, NoReturn

from rich.console import Console
from rich.text import Text

from headwater.printable import printable as printable

_PIPE_WIDTH: Final = 120
_BROKEN_PIPE: Final = 141
"""What a shell reports for a command that a closed pipe has ended."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main`, which knows how to end quietly."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Where people look. It has colours on a terminal and is plain text in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return _Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def wants_json(asked: bool) -> bool:
    """Whether a program is reading: it asked for JSON, or the output is not a terminal."""
    return asked or not sys.stdout.isatty()


def write_json(document: dict[str, Any]) -> None:
    """One JSON document on standard output, in ASCII: all of it, also where Python's own stream is unbuffered."""
    content = memoryview(json.dumps(document, indent=2).encode("ascii") + b"\n")
    try:
        while content:
            content = content[os.write(sys.stdout.fileno(), content) :]
    except BrokenPipeError:
        raise BrokenPipeError from None  # without its number, by which typer would take it for its own to deal with


def shown(data: bytes | str, style: str = "", *, limit: int = 0) -> Text:
    """Data as text for the console: markup in it is not markup, and it ends after `limit` characters."""
    text = printable(data)
    if limit and len(text) > limit:
        text = text[: limit - 1] + "…"
    return Text(text, style=style)


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def end_quietly() -> NoReturn:
    """The reader of our output has gone: so do we, and nothing is said on the way."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os._exit(_BROKEN_PIPE)
