"""An option: which values a field of a configuration may have, and how they are written as text.

Both follow from the field's type. `Annotated[int, size(4 * KIB, TIB)]` is a whole number of bytes in that range,
`Annotated[str, Text("a name")]` is text, `bool` and `Literal` are what they say, and `... | None` allows None as well.
So an option is declared in one line, and from that line it is checked, read from the environment and documented.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from headwater.core.errors import InvalidConfiguration

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
PIB: Final = 1 << 50
EIB: Final = 1 << 60
MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
CENTURY: Final = 36500 * DAY

Units = dict[str, Fraction]
"""The units in which a number can be given, the smallest first."""

_SIZES: Final[Units] = {
    name: Fraction(1 << 10 * power) for power, name in enumerate(("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"), start=1)
}
_TIMES: Final[Units] = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_NUMBER: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?([A-Za-z]*)")
_YES: Final = ("true", "yes", "on", "1")
_NO: Final = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest of the numbers that an option may be."""

    least: float
    most: float
    whole: bool
    noun: str
    units: Units

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return f"{self.noun} from {self.written(self.least)} to {self.written(self.most)}"

    def parse(self, text: str) -> int | float | None:
        """The number that `text` says, in or out of the range; None when it says none."""
        match = _NUMBER.fullmatch(text)
        units = {"": Fraction(1)} | {name.lower(): unit for name, unit in self.units.items()}
        if match is None or match[2].lower() not in units:
            return None
        value = Fraction(match[1]) * units[match[2].lower()]
        return int(value) if self.whole and value.denominator == 1 else float(value)

    def written(self, value: float) -> str:
        """The number in the greatest unit of which it is a whole number."""
        exact = Fraction(str(value))
        for name, unit in reversed(self.units.items()) if exact else ():
            if exact % unit == 0:
                return f"{exact / unit}{name}"
        return str(value if exact.denominator > 1 else int(exact))


def size(least: int, most: int) -> Range:
    """A range of sizes in bytes."""
    return Range(least, most, True, "a whole number of bytes", _SIZES)


def seconds(least: float, most: float) -> Range:
    """A range of lengths of time."""
    return Range(least, most, False, "a number of seconds", _TIMES)


def count(least: int, most: int) -> Range:
    """A range of numbers of things."""
    return Range(least, most, True, "a whole number", {})


@dataclass(frozen=True, slots=True)
class Text:
    """Text that an option may be: what it is, for people, and a check that raises InvalidConfiguration."""

    noun: str
    check: Callable[[str], object] = str

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, str) or not value.strip():
            return False
        try:
            self.check(value)
        except InvalidConfiguration:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Option:
    """A field of a configuration: one of `words`, a number in `range`, or `text`."""

    name: str
    default: Any
    words: tuple[str | bool | None, ...]
    range: Range | None
    text: Text | None = None

    @property
    def allowed(self) -> str:
        """The allowed values, for people."""
        choices = [f'"{word}"' if isinstance(word, str) else str(word) for word in self.words if word is not None]
        choices += [str(self.range)] if self.range is not None else []
        choices += [self.text.noun] if self.text is not None else []
        choices += ["None"] if None in self.words else []
        return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))

    def allows(self, value: object) -> bool:
        """Return whether it may be `value`."""
        if (self.range is not None and value in self.range) or (self.text is not None and value in self.text):
            return True
        return any(isinstance(value, type(word)) and value == word for word in self.words)

    def check(self, value: object) -> None:
        """Raise InvalidConfiguration unless it may be `value`."""
        if not self.allows(value):
            raise InvalidConfiguration(f"{self.name} must be {self.allowed}, not {_shown(value)}")

    def parse(self, text: str) -> Any:
        """The value that `text` stands for, as in the environment; raises InvalidConfiguration."""
        spellings: dict[str, str | bool | None] = {}
        for word in self.words:
            spelt = _YES if word is True else _NO if word is False else (str(word).lower(),)
            spellings |= dict.fromkeys(spelt, word)
        text = text.strip()
        if text.lower() in spellings:
            return spellings[text.lower()]
        value = text if self.text is not None else self.range.parse(text) if self.range is not None else None
        if value is None or not self.allows(value):
            hint = ", ".join(self.range.units) if self.range is not None else ""
            raise InvalidConfiguration(f"must be {self.allowed}" + (f"; units are {hint}" if hint else ""))
        return value

    def written(self, value: Any) -> str:
        """A value that it may be as text, such as `parse` takes."""
        if self.range is not None and value in self.range:
            return self.range.written(value)
        return value if self.text is not None and value in self.text else str(value).lower()


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # an int with more digits than Python is willing to write
        return f"{type(value).__name__} too large to show"


_known: Final[dict[type[Any], tuple[Option, ...]]] = {}


def options_of(kind: type[Any]) -> tuple[Option, ...]:
    """The options of a configuration, in the order of their fields."""
    if kind not in _known:
        hints = get_type_hints(kind, include_extras=True)
        _known[kind] = tuple(Option(field.name, field.default, *_choices(hints[field.name])) for field in fields(kind))
    return _known[kind]


def _choices(hint: Any) -> tuple[tuple[str | bool | None, ...], Range | None, Text | None]:
    """The words, the range and the text that a type allows."""
    limits = None
    if get_origin(hint) is Annotated:
        hint, limits = get_args(hint)
    words: list[str | bool | None] = []
    for part in get_args(hint) if get_origin(hint) is not Literal and get_args(hint) else (hint,):
        if get_origin(part) is Literal:
            words += get_args(part)
        elif part is bool:
            words += (True, False)
        elif part is type(None):
            words.append(None)
    return tuple(words), limits if isinstance(limits, Range) else None, limits if isinstance(limits, Text) else None


class Options:
    """The base of every configuration: a frozen dataclass whose fields are checked when it is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for option in options_of(type(self)):
            option.check(getattr(self, option.name))
