"""A document: a file that people write, as it was written, and the line of each of its keys.

YAML, TOML and, for pipelines, calls in Python become the same: nested dicts, and the line where each key stands. So one
set of checks serves all three, and each message can say where to look.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headwater.core.errors import InvalidFile, Problem

Key = tuple[str, ...]
"""The path of a value: `("sinks", "totals", "topic")`."""

SUFFIXES: Final = (".yaml", ".yml", ".toml")


@dataclass
class Document:
    """The content of a file, and the line of each value."""

    file: str
    """As people know it: for messages."""
    directory: Path
    """The directory that relative paths in the document start from."""
    content: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)

    def line(self, key: Key) -> int:
        """The line of a key, or of the nearest one around it that has a line."""
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key, 1)

    def problem(self, key: Key, message: str) -> Problem:
        """Something that is wrong at a key."""
        return Problem(self.file, self.line(key), ".".join(key), message)


@dataclass(frozen=True)
class Kind:
    """The kind of a file, for messages: its noun, its parts, and the error that says that it is wrong."""

    noun: str
    content: str
    error: type[InvalidFile] = InvalidFile
    suffixes: tuple[str, ...] = SUFFIXES


def read_document(path: Path, kind: Kind) -> Document:
    """The document in a file of YAML or TOML, or of JSON where the kind has it. Raises the kind's error."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise kind.error([Problem(str(path), 1, "", f"is not text in UTF-8: {error}")]) from error
    if path.suffix == ".toml":
        return _toml(path, text, kind)
    if path.suffix in (".yaml", ".yml"):
        return _yaml(path, text, kind)
    if path.suffix == ".json" and ".json" in kind.suffixes:
        return _json(path, text, kind)
    message = f"{kind.noun} is a file that ends in {', '.join(kind.suffixes)}"
    raise kind.error([Problem(str(path), 1, "", message)])


def _document(path: Path, content: Any, lines: dict[Key, int], kind: Kind) -> Document:
    if not isinstance(content, dict):
        raise kind.error([Problem(str(path), 1, "", f"{kind.noun} is {kind.content}")])
    return Document(str(path), path.parent.absolute(), content, lines)


# TOML.


def _toml(path: Path, text: str, kind: Kind) -> Document:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"at line (\d+)", str(error))
        line = int(match[1]) if match else text.count("\n") + 1
        raise kind.error([Problem(str(path), line, "", f"is no TOML: {error}")]) from error
    return _document(path, content, _toml_lines(text), kind)


def _toml_lines(text: str) -> dict[Key, int]:
    """The line on which each key's statement begins. A statement ends where tomllib can parse it by itself."""
    lines: dict[Key, int] = {}
    table: Key = ()
    rows = text.split("\n")
    begin = 0
    for end in range(1, len(rows) + 1):
        statement = "\n".join(rows[begin:end])
        try:
            keys = list(_toml_keys(tomllib.loads(statement), ()))
        except tomllib.TOMLDecodeError:
            continue  # it goes on
        if statement.lstrip().startswith("["):
            table = ()
        for key in keys:
            lines.setdefault(table + key, begin + 1)
        if statement.lstrip().startswith("["):
            table = keys[-1]
        begin = end
    return lines


def _toml_keys(content: Any, key: Key) -> Iterator[Key]:
    if isinstance(content, dict):
        for name, value in content.items():
            yield (*key, name)
            yield from _toml_keys(value, (*key, name))


# YAML.


def _yaml(path: Path, text: str, kind: Kind) -> Document:
    try:
        import yaml
    except ImportError:
        message = "YAML needs the package PyYAML: run pip install pyyaml, or write it as TOML"
        raise kind.error([Problem(str(path), 1, "", message)]) from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error)
        line = mark.line + 1 if mark is not None else 1
        raise kind.error([Problem(str(path), line, "", f"is no YAML: {reason}")]) from error
    lines: dict[Key, int] = {}
    twice: list[Problem] = []
    for key, number in _yaml_lines(node, ()):
        if key in lines:
            twice.append(Problem(str(path), number, ".".join(key), f"is there twice, first in line {lines[key]}"))
        lines.setdefault(key, number)
    if twice:
        raise kind.error(twice)
    return _document(path, content, lines, kind)


# JSON, whose keys are where they are in the same text as YAML.


def _json(path: Path, text: str, kind: Kind) -> Document:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise kind.error([Problem(str(path), error.lineno, "", f"is no JSON: {error.msg}")]) from error
    lines: dict[Key, int] = {}
    with suppress(Exception):  # PyYAML is not installed, or does not take all of JSON: then messages name the key alone
        import yaml

        node = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
        lines = dict(_yaml_lines(node, ()))
    return _document(path, content, lines, kind)


def _yaml_lines(node: Any, key: Key) -> Iterator[tuple[Key, int]]:
    if getattr(node, "id", "") != "mapping":
        return
    for name, value in node.value:
        if name.id == "scalar" and name.value != "<<":
            yield (*key, name.value), name.start_mark.line + 1
            yield from _yaml_lines(value, (*key, name.value))
