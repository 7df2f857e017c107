"""A section: a part of a document that is read key by key, each checked.

Problems are noted and reading goes on, so that all of them are told at once. A key that nobody has asked for is one
that does not exist: the nearest that does is suggested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from headwater.core.document import Document, Key
from headwater.core.errors import HeadwaterError, Problem
from headwater.core.names import check_name
from headwater.core.options import Range, count, seconds

YEAR = 365 * 24 * 3600.0


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return a suggestion of the name that may have been meant."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known) or 'none'}"


class Section:
    """A mapping of the document. For one reader, who asks for every key that there may be and then calls `finish`."""

    def __init__(self, document: Document, key: Key, content: dict[str, Any], problems: list[Problem]) -> None:
        self.document = document
        self.key = key
        self._content = content
        self._problems = problems
        self._asked: list[str] = []

    @classmethod
    def whole(cls, document: Document) -> Section:
        """All of a document."""
        return cls(document, (), document.content, [])

    @property
    def problems(self) -> list[Problem]:
        """The problems that were found so far, here and elsewhere in the document."""
        return self._problems

    @property
    def name(self) -> str:
        """The last part of the key: what the section is called."""
        return self.key[-1]

    @property
    def line(self) -> int:
        """The line on which it begins."""
        return self.document.line(self.key)

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None

    @property
    def present(self) -> list[str]:
        """Every key that is there, known or not."""
        return list(map(str, self._content))

    def wrong(self, message: str, name: str | None = None) -> None:
        """Note something that is wrong, with a key of this section or with all of it."""
        key = self.key if name is None else (*self.key, name)
        self._problems.append(self.document.problem(key, message))

    def _value(self, name: str, kind: type | tuple[type, ...], noun: str, required: bool) -> Any:
        self._asked.append(name)
        value = self._content.get(name)
        if value is None:
            if required:
                self.wrong(f"{name} is missing: {noun}")
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.wrong(f"must be {noun}, not {value!r}", name)
            return None
        return value

    def anything(self, name: str) -> Any:
        """Whatever is there."""
        self._asked.append(name)
        return self._content.get(name)

    def text(self, name: str, *, required: bool = False, noun: str = "text") -> str | None:
        """Text that is not empty."""
        value = self._value(name, str, noun, required)
        if value is not None and not value.strip():
            self.wrong(f"must be {noun}, and is empty", name)
            return None
        return value.strip() if value is not None else None

    def flag(self, name: str) -> bool:
        """Yes or no; no unless given."""
        return bool(self._value(name, bool, "true or false", False))

    def word(self, name: str, words: Sequence[str], default: str) -> str:
        """One of some words."""
        value = self.text(name, noun=f"one of {', '.join(words)}")
        if value is None:
            return default
        if value not in words:
            self.wrong(f"cannot be {value!r}: {suggestion(value, words)}", name)
            return default
        return value

    def number(self, name: str, default: int | None, least: int = 1, most: int = 1 << 62) -> int | None:
        """A whole number."""
        limits = count(least, most)
        value = self._value(name, int, str(limits), False)
        if value is not None and value not in limits:
            self.wrong(f"must be {limits}, not {value}", name)
            return default
        return default if value is None else int(value)

    def duration(self, name: str, default: float) -> float:
        """A length of time, as a number of seconds or as text such as `30s`."""
        length = self._value(name, (int, float, str), "a length of time such as 30s", False)
        return default if length is None else self._seconds(name, length, default)

    def _seconds(self, name: str, length: Any, default: float) -> float:
        value = parse_seconds(length)
        if value is None:
            self.wrong(f"must be a length of time such as 500ms, 30s, 5min or 1h, not {length!r}", name)
        return default if value is None else value

    def names(self, name: str) -> tuple[str, ...]:
        """A list of names, or one."""
        noun = "a name or a list of names"
        value = self._value(name, (str, list), noun, False)
        if value is None:
            return ()
        names = [value] if isinstance(value, str) else value
        if not names or not all(isinstance(item, str) and item for item in names) or len(set(names)) < len(names):
            self.wrong(f"must be {noun}, each once, not {value!r}", name)
            return ()
        return tuple(names)

    def named(self, name: str, kind: str, *, required: bool = False, default: str = "") -> str:
        """A name as topics and groups have them."""
        value = self.text(name, required=required, noun=f"the name of a {kind}")
        if value is None:
            return default
        try:
            return check_name(kind, value)
        except HeadwaterError as error:
            self.wrong(str(error), name)
            return default

    def scalars(self, name: str) -> dict[str, str]:
        """A mapping of names to plain values, as text."""
        value = self._value(name, dict, "a mapping of names to values", False) or {}
        texts = {}
        for key, item in value.items():
            if not isinstance(key, str) or not isinstance(item, str | int | float | bool):
                self.wrong(f"must be a mapping of names to plain values; {key!r} has {item!r}", name)
                continue
            texts[key] = str(item).lower() if isinstance(item, bool) else str(item)
        return texts

    def section(self, name: str) -> Section | None:
        """A mapping below this one."""
        value = self._value(name, dict, "a mapping", False)
        return None if value is None else Section(self.document, (*self.key, name), value, self._problems)

    def sections(self, name: str, noun: str, *, identifiers: bool = True) -> Iterator[Section]:
        """The mappings below a key: things, by their names, in the order of the document."""
        value = self._value(name, dict, f"a mapping of names to {noun}", False) or {}
        for key, content in value.items():
            section = Section(self.document, (*self.key, name, str(key)), content, self._problems)
            if not isinstance(key, str) or not key:
                section.wrong(f"{key!r} cannot be a name here: put quotes around it")
            elif identifiers and (not key.isidentifier() or key.startswith("__")):
                section.wrong(f"{key!r} cannot be a name here: use letters, digits and '_', and begin with a letter")
            elif not isinstance(content, dict):
                section.wrong(f"must be a mapping, not {content!r}")
            else:
                yield section

    def finish(self) -> None:
        """All keys were asked for: others do not exist."""
        for name in self._content:
            if name not in self._asked:
                self.wrong(f"there is no key {name!r} here: {suggestion(str(name), self._asked)}", str(name))


_DURATION: Range = seconds(0, 100 * YEAR)


def parse_seconds(length: Any) -> float | None:
    """A length of time in seconds, or None when it is none."""
    value = length if isinstance(length, int | float) else _DURATION.parse(str(length).strip())
    return float(value) if value is not None and value in _DURATION else None
