"""Conditions of `--where`: `price > 100`, `key = AAPL`, `value.customer.id ~ ^7`, `headers.trace != x`."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import pyarrow as pa
import typer

import headwater.core.compute as pc
from headwater.cli.mistake import Mistake
from headwater.cli.records.record_json import bytes_of, moment_of
from headwater.core.errors import HeadwaterError
from headwater.core.schema import Schema

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="Only these: FIELD OPERATOR VALUE, by = != < <= > >= ~ !~ (a regular expression); several hold together.",
    ),
]

_CONDITION: Final = re.compile(r"\s*(\"[^\"]+\"|[^\s=!<>~]+)\s*(==|=|!=|<=|>=|<|>|!~|~)\s*(.*?)\s*", re.DOTALL)
_ARROW: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_PYTHON: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SYSTEM: Final = ("partition", "offset", "timestamp", "key", "headers")


@dataclass(frozen=True, slots=True)
class Condition:
    """A field compared with a value. What has no such field, or null there, does not fulfil it."""

    text: str
    column: str
    path: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str, schema: Schema) -> Condition:
        """A condition on records of a topic; raises Mistake."""
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise Mistake(f"--where takes FIELD OPERATOR VALUE, such as 'price > 100', not {text!r:.100}")
        name, sign, value = found[1].strip('"'), found[2].replace("==", "="), found[3]
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        if sign.endswith("~"):
            try:
                re.compile(value)
            except re.error as error:
                raise Mistake(f"--where {text!r:.100}: {error}") from None
        column, path = _resolve(name, schema)
        return cls(text, column, path, sign, value)

    def mask(self, batch: pa.RecordBatch, partition: int, schema: Schema) -> pa.Array:
        """Which rows fulfil it."""
        try:
            if self.column == schema.system("partition"):
                holds = _PYTHON[self.operator](partition, int(self.value)) if self.operator in _PYTHON else False
                return pa.repeat(pa.scalar(holds), batch.num_rows)
            column = batch.column(self.column)
            if self.path:
                return self._mask_within(column, schema)
            found = self._compare(column)
        except (pa.ArrowException, HeadwaterError, ValueError) as error:
            raise Mistake(f"--where {self.text!r:.100}: {error}") from None
        return pc.fill_null(found, False)

    def _compare(self, column: pa.Array) -> pa.Array:
        kind = column.type
        if self.operator.endswith("~"):
            text = column if pa.types.is_binary(kind) or pa.types.is_string(kind) else column.cast(pa.string())
            found = pc.match_substring_regex(text, self.value)
            return pc.invert(found) if self.operator == "!~" else found
        if pa.types.is_timestamp(kind):
            moment = pa.scalar(moment_of(self.value), pa.int64())
            return _ARROW[self.operator](column.cast(pa.timestamp("ns", kind.tz)).cast(pa.int64()), moment)
        if pa.types.is_binary(kind):
            return _ARROW[self.operator](column, pa.scalar(self.value.encode(), kind))
        return _ARROW[self.operator](column, pa.scalar(self.value).cast(kind))

    def _mask_within(self, column: pa.Array, schema: Schema) -> pa.Array:
        """Within headers, structs, and values that are JSON: one by one."""
        headers = self.column == schema.system("headers")
        return pa.array([self._holds(one, headers) for one in column.to_pylist()], pa.bool_())

    def _holds(self, value: Any, headers: bool) -> bool:
        if headers:
            found: Any = dict(value or ()).get(self.path)
        else:
            found = _within(value, self.path)
        if found is None:
            return False
        if self.operator.endswith("~"):
            text = (bytes_of(found) or b"").decode("utf-8", "replace")
            return (re.search(self.value, text) is None) == (self.operator == "!~")
        if isinstance(found, bool | int | float):
            return self._holds_number(found)
        text = found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
        return _PYTHON[self.operator](text, self.value)

    def _holds_number(self, found: float) -> bool:
        if isinstance(found, bool):
            return _PYTHON[self.operator](str(found).lower(), self.value.lower())
        try:
            return _PYTHON[self.operator](found, float(self.value))
        except ValueError:
            return self.operator == "!="


def _within(value: Any, path: str) -> Any:
    if isinstance(value, bytes | str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _resolve(name: str, schema: Schema) -> tuple[str, str]:
    """The column that a name means, and the path within it."""
    columns = [schema.system("partition"), *schema.full.names]
    for head, path in _splits(name):
        if head in columns:
            return head, path
        if head in _SYSTEM:  # without the underscore that it has beside a typed topic's own columns
            return schema.system(head), path
    raise Mistake(f"--where: there is no column {name!r:.60}; there are {', '.join(columns)}")


def _splits(name: str) -> list[tuple[str, str]]:
    """A name as it is, and split at each dot from the last on: columns may have dots in their names."""
    dots = [number for number, character in enumerate(name) if character == "."]
    return [(name, ""), *((name[:at], name[at + 1 :]) for at in reversed(dots))]


def filtered(batch: pa.RecordBatch, partition: int, schema: Schema, conditions: list[Condition]) -> pa.RecordBatch:
    """The rows that fulfil all conditions."""
    for condition in conditions:
        if batch.num_rows:
            batch = batch.filter(condition.mask(batch, partition, schema))
    return batch
