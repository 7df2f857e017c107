"""From the text of a filter to its tree, which knows no schema yet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.core.errors import InvalidFilter

if TYPE_CHECKING:
    from headwater.core.filter.bound import BoundFilter
    from headwater.core.schema import Schema

LONGEST: Final = 2000
"""The number of characters that a filter may have."""
LONGEST_SENT: Final = 16 * LONGEST
"""The same for filters between programs: several may be joined there, and times are written out."""
_DEEPEST: Final = 40
_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?(?!\w))
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+"|`[^`]+`)
    | (?P<word>[^\W\d]\w*)
    | (?P<mark><=|>=|==|<>|!=|!~|[=<>~(),.\[\]])
    | (?P<end>$)
    )""",
    re.VERBOSE,
)
_SIGNS: Final = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_SEARCHES: Final = {
    "like": "like",
    "ilike": "ilike",
    "contains": "contains",
    "starts": "starts with",
    "ends": "ends with",
    "matches": "matches",
    "~": "matches",
    "!~": "matches",
}
_KEYWORDS: Final = frozenset(
    {"and", "or", "not", "in", "is", "null", "true", "false", "like", "ilike", "between", "contains", "matches"}
)
_QUOTES: Final = "text and times are written in single quotes"


# The tree. `at` is the index in the text, for errors.


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and the path within it: `price`, `address.city`, `headers['kind']`."""

    path: tuple[str, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Header:
    """The value of one header: `header('kind')`."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Function:
    """`lower(…)` or `length(…)`."""

    name: str
    argument: Column | Header
    at: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a text, true or false."""

    value: Fraction | str | bool
    at: int


Operand = Column | Header | Function
"""Everything that has a value in each record."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left sign right`, by one of = != < <= > >=."""

    left: Operand
    sign: str
    right: Operand | Literal


@dataclass(frozen=True, slots=True)
class InList:
    """`operand in (…)`."""

    operand: Operand
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """`operand like 'pattern'`, and the other ways to search a text."""

    operand: Operand
    kind: str
    pattern: Literal


@dataclass(frozen=True, slots=True)
class IsNull:
    """`operand is null`."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class IsTrue:
    """A boolean operand by itself."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """`not condition`."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class And:
    """`condition and condition …`."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """`condition or condition …`."""

    conditions: tuple[Condition, ...]


Condition = Comparison | InList | Search | IsNull | IsTrue | Not | And | Or


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter. It fits any schema that has its columns."""

    text: str
    condition: Condition

    @classmethod
    def parse(cls, text: str, *, longest: int = LONGEST) -> Filter:
        """Parse a filter; raises InvalidFilter, which says where the text is wrong."""
        if not isinstance(text, str):
            raise InvalidFilter(f"a filter is a text, not {type(text).__name__}")
        if len(text) > longest:
            raise InvalidFilter(f"a filter has at most {longest} characters, not {len(text)}")
        return cls(text, _Parser(text).parse())

    @classmethod
    def all_of(cls, filters: Sequence[Filter]) -> Filter | None:
        """Return one filter for records that match all of these; None if there are none."""
        if len(filters) < 2:
            return filters[0] if filters else None
        return cls.parse(" and ".join(f"({part.text})" for part in filters), longest=LONGEST_SENT)

    def with_moments(self, moments: Mapping[int, int]) -> str:
        """Return the text with other times: `moments` are their nanoseconds since 1970, by where they stand."""
        pieces, end = [], 0
        for at, moment in sorted(moments.items()):
            token = _TOKEN.match(self.text, at)
            assert token is not None, "a literal stands there"
            pieces += [self.text[end:at], str(moment)]
            end = token.end()
        return "".join([*pieces, self.text[end:]])

    def bind(self, schema: Schema) -> BoundFilter:
        """Prepare the filter for records of this schema; raises InvalidFilter for columns and types that do not fit."""
        from headwater.core.filter.bound import BoundFilter

        return BoundFilter(self, schema)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            rest = text[at:].lstrip()
            at = len(text) - len(rest)
            if rest[0] in "'\"`":
                raise InvalidFilter(f"the quote {rest[0]} is never closed", at)
            hint = f"; {_QUOTES}" if rest[0] in "-.0123456789" else ""
            raise InvalidFilter(f"{rest[:20]!r} is not understood{hint}", at)
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        if kind == "end":
            return tokens
        at = match.end()


class _Parser:
    """Recursive descent over the tokens, from the loosest operator to the tightest."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str | None:
        """Consume the next token if it is one of these words or marks, and return it."""
        token = self._token
        word = token.text.lower()
        if token.kind in ("word", "mark") and word in texts:
            self._next += 1
            return word
        return None

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected(f"'{text}'")

    def _unexpected(self, expected: str, hint: str = "") -> InvalidFilter:
        token = self._token
        actual = "the end" if token.kind == "end" else repr(token.text[:40])
        return InvalidFilter(f"{expected} is expected, not {actual}{hint and '; '}{hint}", token.at)

    # Conditions.

    def parse(self) -> Condition:
        condition = self._or()
        if self._token.kind != "end":
            raise self._unexpected("'and', 'or' or the end", _QUOTES)
        return condition

    def _or(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise InvalidFilter(f"a filter is nested at most {_DEEPEST} deep", self._token.at)
        conditions = [self._and()]
        while self._take("or"):
            conditions.append(self._and())
        self._depth -= 1
        return conditions[0] if len(conditions) == 1 else Or(tuple(conditions))

    def _and(self) -> Condition:
        conditions = [self._not()]
        while self._take("and"):
            conditions.append(self._not())
        return conditions[0] if len(conditions) == 1 else And(tuple(conditions))

    def _not(self) -> Condition:
        negated = False
        while self._take("not"):
            negated = not negated
        condition = self._condition()
        return Not(condition) if negated else condition

    def _condition(self) -> Condition:
        if self._take("("):
            condition = self._or()
            self._expect(")")
            return condition
        left = self._operand_or_literal()
        if isinstance(left, Literal):
            return self._reversed(left)
        if self._take("is"):
            negated = self._take("not")
            self._expect("null")
            return Not(IsNull(left)) if negated else IsNull(left)
        sign = self._take(*_SIGNS)
        if sign is not None:
            return Comparison(left, _SIGNS[sign], self._operand_or_literal())
        negated = self._take("not")
        predicate = self._predicate(left)
        if predicate is None and negated:
            raise self._unexpected("'in', 'like' or 'between'")
        if predicate is None:
            return IsTrue(left)
        return Not(predicate) if negated else predicate

    def _reversed(self, left: Literal) -> Condition:
        """`10 < price`, as `price > 10`."""
        sign = self._take(*_SIGNS)
        if sign is None:
            raise self._unexpected("a comparison")
        right = self._operand_or_literal()
        if isinstance(right, Literal):
            raise InvalidFilter("a comparison needs a column", left.at)
        return Comparison(right, _SIGNS[sign].translate(str.maketrans("<>", "><")), left)

    def _predicate(self, operand: Operand) -> Condition | None:
        if self._take("in"):
            self._expect("(")
            values = [self._literal()]
            while self._take(","):
                values.append(self._literal())
            self._expect(")")
            return InList(operand, tuple(values))
        if self._take("between"):
            low = Comparison(operand, ">=", self._literal())
            self._expect("and")
            return And((low, Comparison(operand, "<=", self._literal())))
        search = self._take(*_SEARCHES)
        if search is None:
            return None
        if search in ("starts", "ends"):
            self._expect("with")
        pattern = self._literal()
        if not isinstance(pattern.value, str):
            raise InvalidFilter("the text to search for must be in single quotes", pattern.at)
        condition = Search(operand, _SEARCHES[search], pattern)
        return Not(condition) if search == "!~" else condition

    # Operands.

    def _operand_or_literal(self) -> Operand | Literal:
        token = self._token
        if token.kind in ("number", "text") or (
            token.kind == "word" and token.text.lower() in ("true", "false", "null")
        ):
            return self._literal()
        if token.kind == "word" and self._tokens[self._next + 1].text == "(":
            return self._function()
        return self._column()

    def _function(self) -> Operand:
        token = self._token
        name = token.text.lower()
        if name in _KEYWORDS:
            raise self._unexpected("a column")
        if name not in ("lower", "length", "header"):
            raise InvalidFilter(
                f"there is no function {token.text!r:.40}; there are header, length and lower", token.at
            )
        self._next += 2
        operand: Operand
        if name == "header":
            header = self._literal()
            if not isinstance(header.value, str):
                raise InvalidFilter("the name of a header must be in single quotes", header.at)
            operand = Header(header.value, token.at)
        else:
            argument = self._operand_or_literal()
            if not isinstance(argument, Column | Header):
                raise InvalidFilter(f"{name} needs a column", argument.at)
            operand = Function(name, argument, token.at)
        self._expect(")")
        return operand

    def _literal(self) -> Literal:
        token = self._token
        word = token.text.lower()
        if token.kind == "number":
            self._next += 1
            return Literal(Fraction(token.text), token.at)
        if token.kind == "text":
            self._next += 1
            return Literal(_unquoted(token), token.at)
        if token.kind == "word" and word in ("true", "false"):
            self._next += 1
            return Literal(word == "true", token.at)
        if token.kind == "word" and word == "null":
            raise InvalidFilter("nothing equals null: use 'is null' or 'is not null'", token.at)
        raise self._unexpected("a number or a text in single quotes")

    def _column(self) -> Column:
        at = self._token.at
        if self._token.kind == "word" and self._token.text.lower() in _KEYWORDS:
            raise self._unexpected("a column")
        path = [self._name("a column")]
        while True:
            if self._take("."):
                path.append(self._name("a name"))
            elif self._take("["):
                if self._token.kind != "text":
                    raise self._unexpected("a name in single quotes")
                path.append(_unquoted(self._token))
                self._next += 1
                self._expect("]")
            else:
                return Column(tuple(path), at)

    def _name(self, expected: str) -> str:
        token = self._token
        if token.kind not in ("word", "quoted"):
            raise self._unexpected(expected)
        self._next += 1
        return token.text if token.kind == "word" else _unquoted(token)


def _unquoted(token: _Token) -> str:
    quote = token.text[0]
    text = token.text[1:-1].replace(quote * 2, quote)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidFilter(f"{text!r:.40} contains half of a character", token.at) from None
    return text
