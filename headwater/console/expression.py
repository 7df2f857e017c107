"""Expressions: a small language to choose records by their columns, such as `price > 10 and symbol in ("HW", "WH")`.

It becomes an expression of Arrow's and can do no more than compare: there are no files, no functions of the user's, and
nothing runs for longer than a look at each record takes (patterns are RE2's, which do not backtrack).
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.errors import HeadwaterError, InvalidConfiguration
from headwater.streams.start import time

_LONGEST: Final = 2000
_DEEPEST: Final = 40
_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*|`[^`]+`)
    | (?P<mark><=|>=|==|!=|=|<|>|\(|\)|,|\.)
    | (?P<end>$)
    )""",
    re.VERBOSE,
)
_COMPARISONS: Final = {"=": "equal", "==": "equal", "!=": "not_equal"} | {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_SEARCHES: Final = {
    "contains": pc.match_substring,
    "starts": pc.starts_with,
    "ends": pc.ends_with,
    "matches": pc.match_substring_regex,
}
_WORDS: Final = frozenset({"and", "or", "not", "in", "is", "null", "true", "false", "with", "lower", "length"})
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r"}


class InvalidExpression(InvalidConfiguration):
    """An expression that means nothing, and where."""


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Column(NamedTuple):
    expression: Any
    type: Any
    name: str


class _Literal(NamedTuple):
    value: Any


_Operand = _Column | _Literal


def parse(text: str, schema: pa.Schema) -> Any:
    """The Arrow expression that a text means for columns of this schema; raises InvalidExpression."""
    if len(text) > _LONGEST:
        raise InvalidExpression(f"an expression has at most {_LONGEST} characters, not {len(text)}")
    return _Parser(text, schema).whole()


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidExpression(f"{text[at:].strip()[:20]!r} is not understood, at character {at + 1}")
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind)))
        if kind == "end":
            return found
        at = match.end()


class _Parser:
    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._tokens = _tokens(text)
        self._schema = schema
        self._next = 0
        self._depth = 0

    # What is next.

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str | None:
        """The next token, if it is one of these words or marks."""
        token = self._token
        word = token.text.lower()
        if token.kind in ("name", "mark") and word in texts:
            self._next += 1
            return word
        return None

    def _wrong(self, wanted: str) -> InvalidExpression:
        token = self._token
        found = "the end" if token.kind == "end" else repr(token.text[:40])
        return InvalidExpression(f"{wanted} is expected at character {token.at + 1}, not {found}")

    # Conditions.

    def whole(self) -> Any:
        found = self._any()
        if self._token.kind != "end":
            raise self._wrong("'and', 'or' or the end")
        return found

    def _any(self) -> Any:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise InvalidExpression(f"an expression is nested at most {_DEEPEST} deep")
        found = self._all()
        while self._take("or"):
            found = found | self._all()
        self._depth -= 1
        return found

    def _all(self) -> Any:
        found = self._negation()
        while self._take("and"):
            found = found & self._negation()
        return found

    def _negation(self) -> Any:
        negated = False
        while self._take("not"):
            negated = not negated
        found = self._condition()
        return ~found if negated else found

    def _condition(self) -> Any:
        if self._take("("):
            found = self._any()
            if not self._take(")"):
                raise self._wrong("')'")
            return found
        begun = self._token.at
        left = self._operand()
        if isinstance(left, _Column):
            if self._take("is"):
                negated = self._take("not")
                if not self._take("null"):
                    raise self._wrong("'null'")
                return left.expression.is_valid() if negated else left.expression.is_null()
            if self._take("in"):
                return self._membership(left)
            search = self._take(*_SEARCHES)
            if search is not None:
                return self._search(left, search)
        mark = self._take(*_COMPARISONS)
        if mark is not None:
            return self._comparison(left, _COMPARISONS[mark], self._operand(), begun)
        if isinstance(left, _Column) and pa.types.is_boolean(left.type):
            return left.expression
        raise self._wrong("a comparison")

    def _comparison(self, left: _Operand, operation: str, right: _Operand, at: int) -> Any:
        if isinstance(left, _Literal) and isinstance(right, _Literal):
            raise InvalidExpression(f"a comparison needs a column, at character {at + 1}")
        column = left if isinstance(left, _Column) else right
        assert isinstance(column, _Column)
        _check_comparable(column)
        both = [_as(one, column) for one in (left, right)]
        return getattr(pc, operation)(*both)

    def _membership(self, column: _Column) -> Any:
        if not self._take("("):
            raise self._wrong("'('")
        values = [self._literal()]
        while self._take(","):
            values.append(self._literal())
        if not self._take(")"):
            raise self._wrong("')'")
        _check_comparable(column)
        found = [_scalar(one.value, column).as_py() for one in values]
        if pa.types.is_integer(column.type):
            found = [int(one) for one in found if float(one).is_integer()]  # no other is in such a column
        elif pa.types.is_decimal(column.type):
            found = [Decimal(str(one)) for one in found]
        try:
            choice = pa.array(found, column.type)
        except (pa.ArrowException, OverflowError) as error:
            raise InvalidExpression(f"{column.name} is {column.type}, and one of its values is not: {error}") from None
        return column.expression.isin(choice)

    def _search(self, column: _Column, search: str) -> Any:
        if search in ("starts", "ends") and not self._take("with"):
            raise self._wrong("'with'")
        if not (_is_text(column.type) or _is_bytes(column.type)):
            raise InvalidExpression(f"{column.name} has no text to search: it is {column.type}")
        pattern = self._literal().value
        if not isinstance(pattern, str):
            raise InvalidExpression(f"what {column.name} {search} must be in quotes")
        if search == "matches":
            _check_pattern(pattern)
        return _SEARCHES[search](column.expression, pattern)

    # Operands.

    def _operand(self) -> _Operand:
        token = self._token
        if token.kind in ("number", "text") or token.text.lower() in ("true", "false", "null"):
            return self._literal()
        function = token.text.lower()
        if function in ("lower", "length") and self._tokens[self._next + 1].text == "(":
            self._next += 2
            column = self._column()
            if not self._take(")"):
                raise self._wrong("')'")
            return _applied(function, column)
        return self._column()

    def _literal(self) -> _Literal:
        token = self._token
        word = token.text.lower()
        if token.kind == "number":
            self._next += 1
            whole = re.fullmatch(r"-?\d+", token.text)
            return _Literal(int(token.text) if whole else float(token.text))
        if token.kind == "text":
            self._next += 1
            return _Literal(re.sub(r"\\(.)", lambda found: _ESCAPED.get(found[1], found[1]), token.text[1:-1]))
        if token.kind == "name" and word in ("true", "false"):
            self._next += 1
            return _Literal(word == "true")
        if word == "null":
            raise InvalidExpression(f"use 'is null' or 'is not null', at character {token.at + 1}")
        raise self._wrong("a number or a text in quotes")

    def _column(self) -> _Column:
        token = self._token
        if token.kind != "name" or token.text.lower() in _WORDS:
            raise self._wrong("a column")
        path = [self._name()]
        if path[0] not in self._schema.names:
            raise InvalidExpression(f"there is no column {path[0]!r}; there are {', '.join(self._schema.names)}")
        kind = self._schema.field(path[0]).type
        while self._take("."):
            if self._token.kind != "name":
                raise self._wrong("a name")
            inner = self._name()
            if not pa.types.is_struct(kind) or kind.get_field_index(inner) < 0:
                raise InvalidExpression(f"{'.'.join(path)} has no part {inner!r}: it is {kind}")
            path.append(inner)
            kind = kind.field(inner).type
        return _Column(pc.field(*path) if len(path) > 1 else pc.field(path[0]), kind, ".".join(path))

    def _name(self) -> str:
        text = self._token.text
        self._next += 1
        return text.strip("`")


def _applied(function: str, column: _Column) -> _Column:
    name = f"{function}({column.name})"
    if function == "lower" and _is_text(column.type):
        return _Column(pc.utf8_lower(column.expression), column.type, name)
    if function == "length" and _is_bytes(column.type):
        return _Column(pc.binary_length(column.expression), pa.int32(), name)
    if function == "length" and _is_text(column.type):
        return _Column(pc.utf8_length(column.expression), pa.int32(), name)
    raise InvalidExpression(f"{function} is for text, and {column.name} is {column.type}")


def _as(operand: _Operand, column: _Column) -> Any:
    if isinstance(operand, _Column):
        if operand.type == column.type:
            return operand.expression
        _check_comparable(operand)
        if not (_is_number(operand.type) and _is_number(column.type)):
            raise InvalidExpression(f"{operand.name} is {operand.type} and {column.name} is {column.type}")
        return operand.expression.cast(pa.float64())
    return pc.scalar(_scalar(operand.value, column))


def _scalar(value: Any, column: _Column) -> Any:
    """A literal as a value of the column's type."""
    kind = column.type
    mismatch = InvalidExpression(f"{column.name} is {kind}, and {value!r:.60} is not")
    if isinstance(value, bool) != pa.types.is_boolean(kind):
        raise mismatch
    try:
        if _is_number(kind) and isinstance(value, int | float):
            # Not in the column's own type: 0.5 is no whole number, and comparing with it makes sense.
            whole = isinstance(value, int) and not pa.types.is_decimal(kind)
            return pa.scalar(value, pa.int64() if whole else pa.float64())
        if _is_bytes(kind) and isinstance(value, str):
            return pa.scalar(value.encode(), kind)
        if pa.types.is_timestamp(kind) and isinstance(value, str):
            return pa.scalar(time(value).ns, pa.timestamp("ns", "UTC")).cast(kind, safe=False)
        if isinstance(value, str) and not _is_number(kind):
            return pa.scalar(value).cast(kind)
        if isinstance(value, bool):
            return pa.scalar(value)
    except (pa.ArrowException, ValueError, OverflowError, HeadwaterError):
        raise mismatch from None
    raise mismatch


def _check_comparable(column: _Column) -> None:
    if pa.types.is_nested(column.type):
        raise InvalidExpression(f"{column.name} is {column.type}, which compares with nothing: name a part of it")


def _check_pattern(pattern: str) -> None:
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowException as error:
        raise InvalidExpression(f"{pattern!r:.60} is no pattern: {str(error)[:100]}") from None


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
