"""Kinds of columns: how their values compare with literals and with one another, the same in Arrow and in Python."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from headwater.core.errors import HeadwaterError, InvalidFilter
from headwater.core.filter.parsed import Literal
from headwater.core.times import parse_time

_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = _EPOCH.replace(tzinfo=None)
_MICROSECOND: Final = timedelta(microseconds=1)


class ColumnKind(ABC):
    """The values of a column as comparable ones: in Arrow as an array of `carrier`, in Python as plain objects."""

    plain = True
    """True if JSON has such values too."""

    def __init__(self, type_: Any, carrier: Any) -> None:
        self.type = type_
        self.carrier = carrier

    def array(self, array: pa.Array) -> pa.Array:
        """The comparable values of a column."""
        return array if array.type == self.carrier else array.cast(self.carrier)

    def python(self, value: Any) -> Any:
        """The comparable value of one record's."""
        return value

    def bind(self, sign: str, literal: Literal, name: str) -> tuple[str, Any]:
        """Return the comparison with a literal as one with a comparable value; the sign may be another one then.

        Raises InvalidFilter if the column, of this name, cannot be compared with the literal.
        """
        try:
            return self._bind(sign, literal.value)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, HeadwaterError) as error:
            shown = literal.value if isinstance(literal.value, str | bool) else _written(literal.value)
            detail = f": {error}" if isinstance(error, HeadwaterError) else ""
            raise InvalidFilter(f"{name} is {self.type}, and {shown!r:.60} is not{detail}", literal.at) from None

    @abstractmethod
    def _bind(self, sign: str, value: Fraction | str | bool) -> tuple[str, Any]:
        """Do what `bind` does. Any error of a conversion means that the two do not compare."""

    def common(self, other: ColumnKind) -> Any:
        """Return the type in which Arrow compares both without a loss; None if there is none."""
        return self.carrier if self.type == other.type else None


class WholeKind(ColumnKind):
    """Values that are whole numbers of some unit: integers, decimals, times. All comparisons are exact."""

    def __init__(
        self,
        type_: Any,
        carrier: Any,
        limits: tuple[int, int],
        count: Callable[[Fraction | str], Fraction],
        python: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(type_, carrier)
        self._low, self._high = limits
        self._count = count
        self._python = python
        self.plain = bool(pa.types.is_integer(type_) or pa.types.is_decimal(type_))

    def array(self, array: pa.Array) -> pa.Array:
        if pa.types.is_date64(array.type):
            array = array.cast(pa.date32())
        return array.view(self.carrier) if pa.types.is_temporal(array.type) else super().array(array)

    def python(self, value: Any) -> Any:
        return value if self._python is None or isinstance(value, int) else self._python(value)

    def _bind(self, sign: str, value: Fraction | str | bool) -> tuple[str, Any]:
        if isinstance(value, bool):
            raise TypeError
        sign, number = _among_whole(sign, self._count(value), self._low, self._high)
        if pa.types.is_decimal(self.carrier):
            return sign, Decimal(f"{number}e{-self.carrier.scale}")
        return sign, number

    def common(self, other: ColumnKind) -> Any:
        if pa.types.is_integer(self.type) and pa.types.is_floating(other.type):
            return other.common(self)
        if pa.types.is_integer(self.type) and pa.types.is_integer(other.type) and self.type != other.type:
            return None if pa.uint64() in (self.type, other.type) else pa.int64()
        if pa.types.is_timestamp(self.type) and pa.types.is_timestamp(other.type):
            same = self.type.unit == other.type.unit and (self.type.tz is None) == (other.type.tz is None)
            return self.carrier if same else None
        return super().common(other)


class FloatKind(ColumnKind):
    """Floating point numbers."""

    def _bind(self, sign: str, value: Fraction | str | bool) -> tuple[str, Any]:
        if isinstance(value, bool | str):
            raise TypeError
        number = pa.scalar(float(value), self.carrier).as_py()
        if math.isinf(number):
            raise OverflowError
        return sign, number

    def common(self, other: ColumnKind) -> Any:
        exact = pa.types.is_floating(other.type) or (pa.types.is_integer(other.type) and other.type.bit_width <= 32)
        return pa.float64() if exact else None


class TextKind(ColumnKind):
    """Text, and bytes, which compare with a text by its UTF-8."""

    def __init__(self, type_: Any) -> None:
        super().__init__(type_, pa.binary() if pa.types.is_fixed_size_binary(type_) else type_)
        self._text = bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))

    def _bind(self, sign: str, value: Fraction | str | bool) -> tuple[str, Any]:
        if not isinstance(value, str):
            raise TypeError
        return sign, value if self._text else value.encode()

    def common(self, other: ColumnKind) -> Any:
        if not isinstance(other, TextKind) or self._text != other._text:
            return None
        if self.carrier == other.carrier:
            return self.carrier
        return pa.large_string() if self._text else pa.large_binary()


class BooleanKind(ColumnKind):
    """True and false."""

    def _bind(self, sign: str, value: Fraction | str | bool) -> tuple[str, Any]:
        if not isinstance(value, bool):
            raise TypeError
        return sign, value


@lru_cache(maxsize=256)
def kind_of(type_: Any) -> ColumnKind | None:
    """Return the kind of a column of this type; None if its values do not compare."""
    types = pa.types
    if types.is_boolean(type_):
        return BooleanKind(type_, type_)
    if types.is_floating(type_):
        return FloatKind(type_, pa.float32() if types.is_float16(type_) else type_)
    if types.is_integer(type_):
        bits = type_.bit_width
        signed = types.is_signed_integer(type_)
        limits = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return WholeKind(type_, type_, limits, _number)
    if types.is_decimal(type_):
        carrier = type_ if types.is_decimal256(type_) else pa.decimal128(type_.precision, type_.scale)
        most = 10**type_.precision - 1
        return WholeKind(type_, carrier, (-most, most), lambda value: _number(value) * Fraction(10) ** type_.scale)
    if types.is_timestamp(type_) or types.is_date(type_) or types.is_time(type_) or types.is_duration(type_):
        return _temporal(type_)
    is_text = types.is_string(type_) or types.is_large_string(type_)
    if is_text or types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return TextKind(type_)
    return None


def _temporal(type_: Any) -> ColumnKind:
    bits = 32 if pa.types.is_date(type_) else type_.bit_width
    limits = (-(1 << bits - 1), (1 << bits - 1) - 1)
    carrier = pa.int32() if bits == 32 else pa.int64()
    if not pa.types.is_timestamp(type_):
        read = pa.date32() if pa.types.is_date(type_) else type_

        def count(value: Fraction | str) -> Fraction:
            if not isinstance(value, str):
                raise TypeError
            return Fraction(pa.scalar(value).cast(read).value)

        return WholeKind(type_, carrier, limits, count, lambda value: _units(value, getattr(type_, "unit", "")))

    def count_moment(value: Fraction | str) -> Fraction:
        zone = None if type_.tz is not None else UTC
        return Fraction(parse_time(value, zone) if isinstance(value, str) else value) / _NANOSECONDS[type_.unit]

    return WholeKind(type_, carrier, limits, count_moment, lambda value: _units(value, type_.unit))


def _number(value: Fraction | str) -> Fraction:
    if isinstance(value, str):
        raise TypeError
    return value


def _among_whole(sign: str, value: Fraction, low: int, high: int) -> tuple[str, int]:
    """Return a comparison of whole numbers from `low` to `high` that is true for the same ones."""
    never, always = ("<", low), (">=", low)
    if sign in ("=", "!="):
        if value.denominator == 1 and low <= value <= high:
            return sign, int(value)
        return never if sign == "=" else always
    if value < low:
        return never if sign in ("<", "<=") else always
    if value > high:
        return always if sign in ("<", "<=") else never
    return sign, math.ceil(value) if sign in ("<", ">=") else math.floor(value)


def _units(value: Any, unit: str) -> int:
    """The number that stands for one of Python's times in a column of this unit, which it has come from."""
    if isinstance(value, datetime):
        microseconds = (value - (_NAIVE_EPOCH if value.tzinfo is None else _EPOCH)) // _MICROSECOND
    elif isinstance(value, date):
        return value.toordinal() - _EPOCH.toordinal()
    elif isinstance(value, time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        microseconds = seconds * 1_000_000 + value.microsecond
    else:
        microseconds = value // _MICROSECOND
    return microseconds * 1000 // _NANOSECONDS[unit]


def _written(value: Fraction) -> Any:
    """A number as errors show it."""
    try:
        return int(value) if value.denominator == 1 else float(value)
    except OverflowError:
        return int(value)
