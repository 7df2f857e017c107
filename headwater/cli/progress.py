"""Progress bars: on standard error, where that is a terminal, for what takes longer than a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from headwater.cli.output import console

_PATIENCE: Final = 0.5
"""Seconds before a bar is shown."""


@contextmanager
def progress(doing: str, total: int | None, unit: Literal["bytes", "records"]) -> Iterator[Callable[[int], None]]:
    """Show a bar for so much work. The block gets a function, which it calls with the amount that was done since.

    Without a total there is no bar: it would wipe away the user's typing.
    """
    people = console(stderr=True)
    amounts: tuple[ProgressColumn, ...] = (MofNCompleteColumn(),)
    if unit == "bytes":
        amounts = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    columns = (TextColumn(doing, markup=False), BarColumn(), *amounts, TimeRemainingColumn())
    began = time.monotonic()
    with Progress(*columns, console=people, transient=True, disable=total is None or not people.is_terminal) as bar:
        task = bar.add_task(doing, total=total, visible=False)

        def advance(more: int) -> None:
            bar.update(task, advance=more, visible=time.monotonic() - began > _PATIENCE)

        yield advance
