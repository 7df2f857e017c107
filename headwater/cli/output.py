"""Output: tables for people, JSON for programs, and data that is shown but never obeyed.

Whatever comes from files (names, keys, values, reasons) may hold escape sequences or markup. It reaches a terminal
only through `shown`, as plain text.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from headwater.core.printable import printable as printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Write JSON, as in a pipe.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_PIPE_WIDTH: Final = 120
_BROKEN_PIPE: Final = 141
"""The exit code that a shell reports for a command that a closed pipe has ended."""


def console(*, stderr: bool = False) -> Console:
    """Return the console that people read. It has colours on a terminal and is plain text in a pipe."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to `main`, which knows how to end quietly."""
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Quiet(stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def wants_json(asked: bool) -> bool:
    """Return whether a program is reading: the caller asked for JSON, or the output is not a terminal."""
    return asked or not sys.stdout.isatty()


def write_json(document: dict[str, Any]) -> None:
    """One JSON document on standard output, in ASCII."""
    write_bytes(json.dumps(document, indent=2).encode("ascii") + b"\n")


def write_line(document: dict[str, Any]) -> None:
    """A JSON document on a line of its own, for programs that read them as they come."""
    write_bytes(json.dumps(document).encode("ascii") + b"\n")


def write_bytes(data: bytes) -> None:
    """Bytes on standard output as they are: all of them, also where Python's own stream is unbuffered."""
    content = memoryview(data)
    try:
        while content:
            content = content[os.write(sys.stdout.fileno(), content) :]
    except BrokenPipeError:
        raise BrokenPipeError from None  # without its number, by which typer would take it for its own to deal with


def shown(data: bytes | str, style: str = "", *, limit: int = 0) -> Text:
    """Data as text for the console: markup in it is not markup, and it ends after `limit` characters."""
    from rich.text import Text

    text = printable(data)
    if limit and len(text) > limit:
        text = text[: limit - 1] + "…"
    return Text(text, style=style)


def table(*headings: str) -> Table:
    """A table for people, with these columns; a heading that begins with `>` is of numbers, aligned to the right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left")
    return made


def facts(rows: list[tuple[str, Any]]) -> Table:
    """Names and values, one below the other."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value if isinstance(value, Text) else shown(str(value)))
    return made


def say(renderable: RenderableType) -> None:
    """Something for people, on standard output."""
    console().print(renderable)


def done(text: str) -> None:
    """Tell people that something was done."""
    from rich.text import Text

    console().print(Text.assemble(("✓ ", "bold green"), printable(text)), soft_wrap=True)


def confirm(question: str, yes: bool) -> None:
    """Ask, unless `yes` was said; raises when the answer is no, or when nobody is there to be asked."""
    from headwater.core.errors import HeadwaterError

    if yes:
        return
    if not sys.stdin.isatty():
        raise HeadwaterError(f"there is no terminal to ask at: {question} Give --yes to go ahead")
    if not typer.confirm(printable(question), err=True):
        raise HeadwaterError("nothing was done")


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def ago(nanoseconds: int) -> str:
    """Return the age of a moment, for people."""
    seconds = max(time.time() - nanoseconds / 1e9, 0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def end_quietly() -> NoReturn:
    """The reader of our output has gone: so do we, and nothing is said on the way."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os._exit(_BROKEN_PIPE)
