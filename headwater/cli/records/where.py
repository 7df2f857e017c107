"""The option `--where`: filters, all of which must hold. They become one, which the store applies where it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.arguments import Mistake
from headwater.core.errors import InvalidFilter
from headwater.core.filter import BoundFilter, Filter

if TYPE_CHECKING:
    from headwater.core.schema import Schema

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        metavar="FILTER",
        help="Only records that match, such as \"price > 100 and symbol = 'HW'\"; several must all hold.",
    ),
]


def parse_where(texts: Sequence[str] | None) -> Filter | None:
    """Parse the filters of a command line, and return all of them as one; raises Mistake."""
    try:
        return Filter.all_of([Filter.parse(text) for text in texts or ()])
    except InvalidFilter as error:
        raise Mistake(f"--where: {error}") from None


def bind_where(where: Filter | None, schema: Schema) -> BoundFilter | None:
    """Bind the filter to a topic's schema; raises Mistake."""
    try:
        return None if where is None else where.bind(schema)
    except InvalidFilter as error:
        raise Mistake(f"--where: {error}") from None
