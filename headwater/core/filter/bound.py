"""A filter bound to a schema, evaluated on record batches by Arrow, or on one record by Python.

Both follow SQL: a comparison with null is neither true nor false, and only records for which the whole is true match.
"""

from __future__ import annotations

import json
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import pyarrow as pa

import headwater.core.compute as pc
from headwater.core.errors import HeadwaterError, InvalidFilter
from headwater.core.filter import parsed
from headwater.core.filter.kinds import ColumnKind, TextKind, kind_of
from headwater.core.filter.searching import Searching
from headwater.core.record import Record
from headwater.core.schema import HEADERS, Schema
from headwater.core.times import parse_time

_SYSTEM: Final = ("partition", "offset", "timestamp", "key", "headers")
_PARTITION: Final = pa.int32()
_ARROW: Final[dict[str, str]] = {
    "=": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_PYTHON: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_JSON_FUNCTIONS: Final[dict[str, Callable[[str], Any]]] = {"length": len, "lower": str.lower}


class BoundFilter:
    """Chooses records of one schema."""

    def __init__(self, parsed_filter: parsed.Filter, schema: Schema) -> None:
        """Raises InvalidFilter for a column that the schema does not have, and for types that do not compare."""
        binder = _Binder(schema)
        self.text = parsed_filter.text
        self.schema = schema
        self._condition = binder.condition(parsed_filter.condition)
        self.portable_text = parsed_filter.with_moments(binder.moments)
        """The filter for another program: times are numbers, so that its clock and its zone do not matter."""
        self.columns: frozenset[str] = frozenset(binder.columns)
        """The columns that a batch must have. The partition is not among them: the caller passes it."""

    def matches(self, batch: pa.RecordBatch, partition: int = 0) -> pa.BooleanArray:
        """Return a mask without nulls: true for each record of the batch that matches. Reads `columns` alone."""
        try:
            return pc.fill_null(self._condition.mask(_Rows(batch, partition)), False)
        except (pa.ArrowException, OSError) as error:
            raise InvalidFilter(f"{self.text!r:.100} cannot be applied to these records: {str(error)[:200]}") from None

    def matches_record(self, record: Record, partition: int = 0) -> bool:
        """Return whether one record matches; the same as `matches` says of it in a batch."""
        return self._condition.holds(record, partition) is True


class _Rows:
    """A batch under evaluation."""

    def __init__(self, batch: pa.RecordBatch, partition: int) -> None:
        self.batch = batch
        self.partition = partition
        self._documents: dict[tuple[str, ...], list[Any]] = {}

    def documents(self, within: _TypedOperand) -> list[Any]:
        """The JSON documents of a column, parsed once for all paths into it."""
        documents = self._documents.get(within.path)
        if documents is None:
            documents = self._documents[within.path] = [_document(text) for text in within.array(self).to_pylist()]
        return documents


# Operands: everything that has a value in each record.


class _Operand(ABC):
    """A value of each record. Its type is None in JSON, where each record may have another one."""

    def __init__(self, path: tuple[str, ...], type_: Any, at: int) -> None:
        self.path = path
        self.type = type_
        self.at = at

    @property
    def name(self) -> str:
        """The operand as errors show it."""
        return ".".join(self.path)

    @abstractmethod
    def values(self, rows: _Rows) -> list[Any]:
        """The values of a batch as Python's own."""

    @abstractmethod
    def value(self, record: Record, partition: int) -> Any:
        """The value of one record."""

    def is_null(self, rows: _Rows) -> pa.Array:
        """True for each record of a batch that has no value here."""
        return pa.array([value is None for value in self.values(rows)], pa.bool_())


class _TypedOperand(_Operand):
    """An operand whose values are all of one type, so that Arrow can hold them."""

    @abstractmethod
    def array(self, rows: _Rows) -> pa.Array:
        """The values of a batch."""

    def values(self, rows: _Rows) -> list[Any]:
        return self.array(rows).to_pylist()  # type: ignore[no-any-return]

    def is_null(self, rows: _Rows) -> pa.Array:
        return pc.is_null(self.array(rows))


class _ColumnOperand(_TypedOperand):
    def __init__(self, column: str, type_: Any, at: int, get: Callable[[Record], Any]) -> None:
        super().__init__((column,), type_, at)
        self._column = column
        self._get = get

    def array(self, rows: _Rows) -> pa.Array:
        return rows.batch.column(self._column)

    def value(self, record: Record, partition: int) -> Any:  # noqa: ARG002
        return self._get(record)


class _HeadersOperand(_ColumnOperand):
    """All headers. They are null also in a record that has none beside others that have some."""

    def is_null(self, rows: _Rows) -> pa.Array:
        headers = self.array(rows)
        offsets = headers.offsets
        return pc.or_(pc.is_null(headers), pc.equal(offsets.slice(0, len(headers)), offsets.slice(1)))

    def value(self, record: Record, partition: int) -> Any:
        return super().value(record, partition) or None


class _PartitionOperand(_TypedOperand):
    def array(self, rows: _Rows) -> pa.Array:
        return pa.repeat(pa.scalar(rows.partition, _PARTITION), rows.batch.num_rows)

    def value(self, record: Record, partition: int) -> Any:  # noqa: ARG002
        return partition


class _RowOperand(_Operand):
    """The value of a typed topic as a whole. It is null, a tombstone, if all its columns are."""

    def __init__(self, columns: list[str], at: int) -> None:
        super().__init__(("value",), pa.struct([]), at)
        self._columns = columns

    def values(self, rows: _Rows) -> list[Any]:
        nulls = self.is_null(rows).to_pylist()
        listed = rows.batch.select(self._columns).to_pylist()
        return [None if null else row for null, row in zip(nulls, listed, strict=True)]

    def is_null(self, rows: _Rows) -> pa.Array:
        mask = pc.is_null(rows.batch.column(self._columns[0]))
        for name in self._columns[1:]:
            mask = pc.and_(mask, pc.is_null(rows.batch.column(name)))
        return mask

    def value(self, record: Record, partition: int) -> Any:  # noqa: ARG002
        return record.value


class _StructOperand(_TypedOperand):
    """A field of a struct."""

    def __init__(self, parent: _TypedOperand, field: str, type_: Any) -> None:
        super().__init__((*parent.path, field), type_, parent.at)
        self._parent = parent
        self._field = field

    def array(self, rows: _Rows) -> pa.Array:
        return pc.struct_field(self._parent.array(rows), [self._field])

    def value(self, record: Record, partition: int) -> Any:
        parent = self._parent.value(record, partition)
        return None if parent is None else parent[self._field]


class _HeaderOperand(_TypedOperand):
    """The value of one header; the last one, should there be several of the name."""

    def __init__(self, headers: _TypedOperand, name: str, at: int) -> None:
        super().__init__((*headers.path, name), HEADERS.item_type, at)
        self._headers = headers
        self._header = name

    def array(self, rows: _Rows) -> pa.Array:
        return pc.map_lookup(self._headers.array(rows), pa.scalar(self._header), "last")

    def value(self, record: Record, partition: int) -> Any:
        headers = self._headers.value(record, partition)
        return headers.get(self._header) if headers else None


class _JsonOperand(_Operand):
    """A place in the JSON that a text or binary column holds. Nothing is there in what is no JSON."""

    def __init__(self, parent: _TypedOperand, path: tuple[str, ...]) -> None:
        super().__init__((*parent.path, *path), None, parent.at)
        self._parent = parent
        self._path_within = path

    def values(self, rows: _Rows) -> list[Any]:
        return [self._within(document) for document in rows.documents(self._parent)]

    def value(self, record: Record, partition: int) -> Any:
        return self._within(_document(self._parent.value(record, partition)))

    def _within(self, document: Any) -> Any:
        for name in self._path_within:
            document = document.get(name) if isinstance(document, dict) else None
        return document


def _document(text: bytes | str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class _JsonFunction(_Operand):
    """A function of a text in JSON. Other values have none."""

    def __init__(self, name: str, work: Callable[[str], Any], argument: _Operand, at: int) -> None:
        super().__init__((f"{name}({argument.name})",), None, at)
        self._work = work
        self._argument = argument

    def values(self, rows: _Rows) -> list[Any]:
        return [self._of(value) for value in self._argument.values(rows)]

    def value(self, record: Record, partition: int) -> Any:
        return self._of(self._argument.value(record, partition))

    def _of(self, value: Any) -> Any:
        return self._work(value) if isinstance(value, str) else None


class _LowerOperand(_TypedOperand):
    """A text in lower case."""

    def __init__(self, argument: _TypedOperand, at: int) -> None:
        super().__init__((f"lower({argument.name})",), argument.type, at)
        self._argument = argument

    def array(self, rows: _Rows) -> pa.Array:
        return pc.utf8_lower(self._argument.array(rows))

    def value(self, record: Record, partition: int) -> Any:
        value = self._argument.value(record, partition)
        return pc.utf8_lower(pa.scalar(value, self.type)).as_py()  # Python knows other lower cases


class _LengthOperand(_TypedOperand):
    """The number of characters of a text, or of bytes."""

    def __init__(self, argument: _TypedOperand, at: int) -> None:
        super().__init__((f"length({argument.name})",), pa.int64(), at)
        self._argument = argument

    def array(self, rows: _Rows) -> pa.Array:
        array = TextKind(self._argument.type).array(self._argument.array(rows))
        binary = pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)
        return (pc.binary_length if binary else pc.utf8_length)(array).cast(pa.int64())

    def value(self, record: Record, partition: int) -> Any:
        value = self._argument.value(record, partition)
        return None if value is None else len(value)


# Conditions: true, false or null for each record.


class _Condition(ABC):
    @abstractmethod
    def mask(self, rows: _Rows) -> pa.Array:
        """True, false or null for each record of a batch."""

    @abstractmethod
    def holds(self, record: Record, partition: int) -> bool | None:
        """The same for one record."""


class _Compared(_Condition):
    """An operand of one type against a literal, which was converted to that type."""

    def __init__(self, operand: _TypedOperand, kind: ColumnKind, sign: str, literal: parsed.Literal) -> None:
        self._operand = operand
        self._kind = kind
        self._sign, self._value = kind.bind(sign, literal, operand.name)
        self._scalar = pa.scalar(self._value, kind.carrier)

    def mask(self, rows: _Rows) -> pa.Array:
        return getattr(pc, _ARROW[self._sign])(self._kind.array(self._operand.array(rows)), self._scalar)

    def holds(self, record: Record, partition: int) -> bool | None:
        value = self._operand.value(record, partition)
        return None if value is None else _PYTHON[self._sign](self._kind.python(value), self._value)


class _AnyOf(_Condition):
    """Membership in a list of literals."""

    def __init__(self, operand: _TypedOperand, kind: ColumnKind, literals: tuple[parsed.Literal, ...]) -> None:
        self._operand = operand
        self._kind = kind
        bound = [kind.bind("=", literal, operand.name) for literal in literals]
        # A literal that no value of the type can equal has become another comparison, which is never true.
        self._values = [value for sign, value in bound if sign == "="]
        self._set = pa.array(self._values, kind.carrier)

    def mask(self, rows: _Rows) -> pa.Array:
        array = self._kind.array(self._operand.array(rows))
        return pc.if_else(pc.is_valid(array), pc.is_in(array, self._set), pa.scalar(None, pa.bool_()))

    def holds(self, record: Record, partition: int) -> bool | None:
        value = self._operand.value(record, partition)
        return None if value is None else self._kind.python(value) in self._values


class _ColumnsCompared(_Condition):
    """Two operands that Arrow compares as values of one type."""

    def __init__(self, left: _TypedOperand, sign: str, right: _TypedOperand, common: Any) -> None:
        self._left = left
        self._sign = sign
        self._right = right
        self._common = common

    def mask(self, rows: _Rows) -> pa.Array:
        left, right = (self._array(operand, rows) for operand in (self._left, self._right))
        return getattr(pc, _ARROW[self._sign])(left, right)

    def _array(self, operand: _TypedOperand, rows: _Rows) -> pa.Array:
        kind = kind_of(operand.type)
        assert kind is not None
        array = kind.array(operand.array(rows))
        return array if array.type == self._common else array.cast(self._common)

    def holds(self, record: Record, partition: int) -> bool | None:
        values = []
        for operand in (self._left, self._right):
            kind, value = kind_of(operand.type), operand.value(record, partition)
            if kind is None or value is None:
                return None
            values.append(kind.python(value))
        return _PYTHON[self._sign](*values)


class _ValuesCompared(_Condition):
    """Operands whose types only the records know, as in JSON, or that no type of Arrow's holds without a loss."""

    def __init__(self, left: _Operand, sign: str, right: _Operand | parsed.Literal) -> None:
        self._left = left
        self._compare = _PYTHON[sign]
        self._right = right
        self._literal = _plain_literal(right.value) if isinstance(right, parsed.Literal) else None

    def mask(self, rows: _Rows) -> pa.Array:
        left = self._left.values(rows)
        right = [self._literal] * len(left) if isinstance(self._right, parsed.Literal) else self._right.values(rows)
        return pa.array(map(self._compared, left, right), pa.bool_())

    def holds(self, record: Record, partition: int) -> bool | None:
        right = self._right
        other = self._literal if isinstance(right, parsed.Literal) else right.value(record, partition)
        return self._compared(self._left.value(record, partition), other)

    def _compared(self, left: Any, right: Any) -> bool | None:
        left, right = _comparable(left), _comparable(right)
        if left is None or right is None or _category(left) is not _category(right):
            return None
        return self._compare(left, right)


class _Searched(_Condition):
    """A text that is searched."""

    def __init__(self, operand: _Operand, search: parsed.Search) -> None:
        self._operand = operand
        self._kind = TextKind(pa.string() if operand.type is None else operand.type)
        pattern = search.pattern.value
        assert isinstance(pattern, str)
        try:
            self._searching = Searching(search.kind, pattern, self._kind.carrier)
        except InvalidFilter as error:
            raise InvalidFilter(str(error), search.pattern.at) from None

    def mask(self, rows: _Rows) -> pa.Array:
        if isinstance(self._operand, _TypedOperand):
            return self._searching.mask(self._kind.array(self._operand.array(rows)))
        return self._searching.mask(pa.array(map(_json_text, self._operand.values(rows)), pa.string()))

    def holds(self, record: Record, partition: int) -> bool | None:
        value = self._operand.value(record, partition)
        if self._operand.type is None:
            value = _json_text(value)
        return None if value is None else self._searching.finds(value)


class _Null(_Condition):
    def __init__(self, operand: _Operand) -> None:
        self._operand = operand

    def mask(self, rows: _Rows) -> pa.Array:
        return self._operand.is_null(rows)

    def holds(self, record: Record, partition: int) -> bool | None:
        return self._operand.value(record, partition) is None


class _True(_Condition):
    def __init__(self, operand: _Operand) -> None:
        self._operand = operand

    def mask(self, rows: _Rows) -> pa.Array:
        if isinstance(self._operand, _TypedOperand):
            return self._operand.array(rows)
        return pa.array(
            [value if isinstance(value, bool) else None for value in self._operand.values(rows)], pa.bool_()
        )

    def holds(self, record: Record, partition: int) -> bool | None:
        value = self._operand.value(record, partition)
        return value if isinstance(value, bool) else None


class _Negated(_Condition):
    def __init__(self, condition: _Condition) -> None:
        self._condition = condition

    def mask(self, rows: _Rows) -> pa.Array:
        return pc.invert(self._condition.mask(rows))

    def holds(self, record: Record, partition: int) -> bool | None:
        held = self._condition.holds(record, partition)
        return None if held is None else not held


class _Every(_Condition):
    def __init__(self, conditions: list[_Condition]) -> None:
        self._conditions = conditions

    def mask(self, rows: _Rows) -> pa.Array:
        mask = self._conditions[0].mask(rows)
        for condition in self._conditions[1:]:
            mask = pc.and_kleene(mask, condition.mask(rows))
        return mask

    def holds(self, record: Record, partition: int) -> bool | None:
        unknown = False
        for condition in self._conditions:
            held = condition.holds(record, partition)
            if held is False:
                return False
            unknown = unknown or held is None
        return None if unknown else True


class _Some(_Condition):
    def __init__(self, conditions: list[_Condition]) -> None:
        self._conditions = conditions

    def mask(self, rows: _Rows) -> pa.Array:
        mask = self._conditions[0].mask(rows)
        for condition in self._conditions[1:]:
            mask = pc.or_kleene(mask, condition.mask(rows))
        return mask

    def holds(self, record: Record, partition: int) -> bool | None:
        unknown = False
        for condition in self._conditions:
            held = condition.holds(record, partition)
            if held is True:
                return True
            unknown = unknown or held is None
        return None if unknown else False


# Values of no fixed type.


def _comparable(value: Any) -> Any:
    """Bytes as text, so that a key compares with a text in JSON; objects and lists compare with nothing."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, bool | int | float | Decimal | str) else None


def _category(value: Any) -> type:
    for category in (bool, str):
        if isinstance(value, category):
            return category
    return float


def _plain_literal(value: Any) -> Any:
    if isinstance(value, bool | str):
        return value
    try:
        return int(value) if value.denominator == 1 else float(value)
    except OverflowError:
        return int(value)  # beyond all floats, where the fraction decides nothing


def _json_text(value: Any) -> str | None:
    """A value of JSON as a text to search: numbers, objects and lists as JSON writes them."""
    text = value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # JSON can hold half characters, which no text of Arrow's can.
    return None if text is None else text.encode("utf-8", "replace").decode()


# From the parsed tree to the bound one.


class _Binder:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.columns: set[str] = set()
        self.moments: dict[int, int] = {}
        """The times in the filter as nanoseconds since 1970, by where they stand in its text."""

    def condition(self, condition: parsed.Condition) -> _Condition:
        match condition:
            case parsed.And(conditions):
                return _Every([self.condition(part) for part in conditions])
            case parsed.Or(conditions):
                return _Some([self.condition(part) for part in conditions])
            case parsed.Not(negated):
                return _Negated(self.condition(negated))
            case parsed.IsNull(operand):
                return _Null(self._operand(operand))
            case parsed.IsTrue(operand):
                return self._is_true(self._operand(operand))
            case parsed.InList(operand, values):
                return self._membership(self._operand(operand), values)
            case parsed.Search(operand):
                return self._search(self._operand(operand), condition)
            case parsed.Comparison(left, sign, right):
                return self._comparison(self._operand(left), sign, right)

    @staticmethod
    def _is_true(operand: _Operand) -> _Condition:
        if operand.type is not None and not pa.types.is_boolean(operand.type):
            raise InvalidFilter(f"a comparison is expected after {operand.name}, which is {operand.type}", operand.at)
        return _True(operand)

    def _membership(self, operand: _Operand, values: tuple[parsed.Literal, ...]) -> _Condition:
        if operand.type is None:
            return _Some([_ValuesCompared(operand, "=", value) for value in values])
        typed, kind = self._typed(operand)
        return _AnyOf(typed, kind, tuple(self._fixed(value, kind) for value in values))

    @staticmethod
    def _search(operand: _Operand, search: parsed.Search) -> _Condition:
        if operand.type is not None and not _is_text(operand.type):
            raise InvalidFilter(f"{operand.name} has no text to search: it is {operand.type}", operand.at)
        return _Searched(operand, search)

    def _comparison(self, left: _Operand, sign: str, other: parsed.Operand | parsed.Literal) -> _Condition:
        if isinstance(other, parsed.Literal):
            if left.type is None:
                return _ValuesCompared(left, sign, other)
            typed, kind = self._typed(left)
            return _Compared(typed, kind, sign, self._fixed(other, kind))
        right = self._operand(other, text_expected=True)
        if left.type is None or right.type is None:
            for operand in (left, right):
                if operand.type is not None and not (_is_text(operand.type) or self._typed(operand)[1].plain):
                    raise InvalidFilter(f"{operand.name} is {operand.type}, which no value in JSON can be", operand.at)
            return _ValuesCompared(left, sign, right)
        (left, left_kind), (right, right_kind) = self._typed(left), self._typed(right)
        common = left_kind.common(right_kind)
        if common is not None:
            return _ColumnsCompared(left, sign, right, common)
        if _is_number(left.type) and _is_number(right.type):
            return _ValuesCompared(left, sign, right)
        raise InvalidFilter(f"{right.name} is {right.type} and {left.name} is {left.type}", right.at)

    def _fixed(self, literal: parsed.Literal, kind: ColumnKind) -> parsed.Literal:
        """Return a literal without clock and zone: a time becomes its nanoseconds since 1970."""
        if not pa.types.is_timestamp(kind.type) or not isinstance(literal.value, str):
            return literal
        try:
            moment = parse_time(literal.value, None if kind.type.tz is not None else UTC)
        except HeadwaterError:
            return literal  # binding it tells what is wrong
        self.moments[literal.at] = moment
        return parsed.Literal(Fraction(moment), literal.at)

    @staticmethod
    def _typed(operand: _Operand) -> tuple[_TypedOperand, ColumnKind]:
        kind = kind_of(operand.type)
        if kind is None or not isinstance(operand, _TypedOperand):
            raise InvalidFilter(
                f"{operand.name} is {operand.type}, which cannot be compared: name a part of it", operand.at
            )
        return operand, kind

    # Operands.

    def _operand(self, operand: parsed.Operand, *, text_expected: bool = False) -> _Operand:
        if isinstance(operand, parsed.Header):
            headers = self._column(self._schema.system("headers"), operand.at)
            return _HeaderOperand(headers, operand.name, operand.at)
        if isinstance(operand, parsed.Function):
            return self._function(operand)
        column, path = self._resolve(operand, text_expected)
        if column is None:
            self.columns.update(self._schema.payload.names)
            return _RowOperand(self._schema.payload.names, operand.at)
        bound = self._column(column, operand.at)
        if path and column == self._schema.system("headers"):
            return _HeaderOperand(bound, ".".join(path), operand.at)
        for number, name in enumerate(path):
            if _is_text(bound.type):
                return _JsonOperand(bound, path[number:])
            if not pa.types.is_struct(bound.type) or bound.type.get_field_index(name) < 0:
                raise InvalidFilter(f"{bound.name} has no part {name!r:.40}: it is {bound.type}", operand.at)
            bound = _StructOperand(bound, name, bound.type.field(name).type)
        return bound

    def _function(self, function: parsed.Function) -> _Operand:
        argument = self._operand(function.argument)
        if argument.type is None:
            return _JsonFunction(function.name, _JSON_FUNCTIONS[function.name], argument, function.at)
        if isinstance(argument, _TypedOperand):
            if function.name == "length" and _is_text(argument.type):
                return _LengthOperand(argument, function.at)
            if function.name == "lower" and _is_text(argument.type, binary=False):
                return _LowerOperand(argument, function.at)
        raise InvalidFilter(f"{function.name} is for text, and {argument.name} is {argument.type}", function.at)

    def _resolve(self, column: parsed.Column, text_expected: bool) -> tuple[str | None, tuple[str, ...]]:
        """Return the name of the column and the path within it; None is the value of a typed topic as a whole."""
        names = [self._schema.system("partition"), *self._schema.full.names]
        path = column.path
        for length in range(len(path), 0, -1):  # columns may have dots in their names
            head = ".".join(path[:length])
            if head in names:
                return head, path[length:]
            if head in _SYSTEM:  # without the underscore that it has beside a typed topic's own columns
                return self._schema.system(head), path[length:]
        if path == ("value",):
            return None, ()
        if path[0] == "value":
            return self._resolve(parsed.Column(path[1:], column.at), text_expected)
        name = ".".join(path)
        hint = f"; for a text, write '{name}'" if text_expected else ""
        raise InvalidFilter(f"there is no column {name!r:.60}; there are {', '.join(names)}{hint}", column.at)

    def _column(self, name: str, at: int) -> _TypedOperand:
        schema = self._schema
        if name == schema.system("partition"):
            return _PartitionOperand((name,), _PARTITION, at)
        self.columns.add(name)
        kind = _HeadersOperand if name == schema.system("headers") else _ColumnOperand
        return kind(name, schema.full.field(name).type, at, _getter(schema, name))


def _getter(schema: Schema, name: str) -> Callable[[Record], Any]:
    for field in ("offset", "timestamp", "key", "headers"):
        if name == schema.system(field):
            return operator.attrgetter(field)
    if schema.raw:
        return operator.attrgetter("value")
    return lambda record: None if record.value is None else record.value[name]


def _is_text(type_: Any, *, binary: bool = True) -> bool:
    types = pa.types
    if types.is_string(type_) or types.is_large_string(type_):
        return True
    return binary and bool(types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_))


def _is_number(type_: Any) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))
