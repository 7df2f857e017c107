"""The option `--where`: filters, all of which must hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
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


def parse_where(texts: Sequence[str] | None) -> list[Filter]:
    """Parse the filters of a command line; raises Mistake."""
    try:
        return [Filter.parse(text) for text in texts or ()]
    except InvalidFilter as error:
        raise Mistake(f"--where: {error}") from None


def bind_where(filters: Sequence[Filter], schema: Schema) -> list[BoundFilter]:
    """Bind filters to a topic's schema; raises Mistake."""
    try:
        return [condition.bind(schema) for condition in filters]
    except InvalidFilter as error:
        raise Mistake(f"--where: {error}") from None


def matching(batch: pa.RecordBatch, partition: int, filters: Sequence[BoundFilter]) -> pa.RecordBatch:
    """Return the records of a batch that match all filters."""
    for condition in filters:
        if batch.num_rows:
            batch = batch.filter(condition.matches(batch, partition))
    return batch
