"""The access file: users, and the rights of each on topics, groups and the broker, as people write them.

    users:
      billing:
        topics:
          orders.*: read            # every topic whose name begins so
          invoices: [read, write]
        groups:
          billing: [read, write]
        broker: read

Everything that is not allowed is denied. A pattern is a name, or its beginning and `*`. Topics of Headwater's own,
whose names begin with two underscores, are meant only by patterns that begin so too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from headwater.broker.security.access import BROKER, Kind, Right
from headwater.core.document import Document, read_document
from headwater.core.document import Kind as FileKind
from headwater.core.errors import HeadwaterError, InvalidFile, Problem
from headwater.core.names import RESERVED_PREFIX, check_name
from headwater.core.section import Section, suggestion

RIGHTS: Final[tuple[Right, ...]] = get_args(Right)

_KIND: Final = FileKind("an access file", "a mapping with the key users")
_NOUN: Final = f"one or a list of {', '.join(RIGHTS)}"


@dataclass
class Names:
    """The names that a user has one right on."""

    exact: set[str] = field(default_factory=set)
    beginnings: tuple[str, ...] = ()
    internal: tuple[str, ...] = ()

    def add(self, pattern: str) -> None:
        """Add a name, or the beginning of names."""
        if not pattern.endswith("*"):
            self.exact.add(pattern)
        elif pattern.startswith(RESERVED_PREFIX):
            self.internal += (pattern[:-1],)
        else:
            self.beginnings += (pattern[:-1],)

    def __contains__(self, name: str) -> bool:
        if name in self.exact:
            return True
        return name.startswith(self.internal if name.startswith(RESERVED_PREFIX) else self.beginnings)


Rights = dict[tuple[Kind, Right], Names]
"""The rights of one user."""


def read_access(path: Path) -> Mapping[str, Rights]:
    """The users in a file, each with its rights. Raises InvalidFile, with everything that is wrong, or OSError."""
    whole = Section.whole(read_document(path, _KIND))
    users = users_in(whole)
    if "users" not in whole:
        whole.wrong("users is missing: a mapping of names to their rights")
    whole.finish()
    if whole.problems:
        raise InvalidFile(sorted(whole.problems, key=lambda problem: problem.line))
    return users


def users_in(section: Section) -> dict[str, Rights]:
    """The users below a section, each with its rights; what is wrong with them is noted there."""
    return {user.name: _rights(user) for user in section.sections("users", "their rights", identifiers=False)}


def rights_from_json(name: str, content: str | bytes) -> Rights:
    """The rights of a user as a cluster keeps them; raises InvalidFile."""
    where = f"the rights of {name!r:.60}"
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidFile([Problem(where, 1, "", "must be a JSON object with topics, groups and broker")])
    whole = Section.whole(Document(where, Path(), document))
    rights = _rights(whole)
    if whole.problems:
        raise InvalidFile(whole.problems)
    return rights


def written_rights(rights: Rights) -> dict[str, Any]:
    """The rights as an access file has them; the same for the same rights."""
    document: dict[str, Any] = {}
    for kind in ("topic", "group"):
        patterns: dict[str, list[str]] = {}
        for right in RIGHTS:
            names = rights.get((kind, right), Names())
            beginnings = {f"{beginning}*" for beginning in (*names.beginnings, *names.internal)}
            for pattern in sorted(names.exact | beginnings):
                patterns.setdefault(pattern, []).append(right)
        if patterns:
            document[f"{kind}s"] = dict(sorted(patterns.items()))
    broker = [right for right in RIGHTS if ("broker", right) in rights]
    return document | ({"broker": broker} if broker else {})


def _rights(user: Section) -> Rights:
    rights: Rights = {}
    kinds: tuple[Kind, ...] = ("topic", "group")
    for kind in kinds:
        names = user.section(f"{kind}s")
        for pattern in names.present if names is not None else ():
            assert names is not None
            allowed = _allowed(names, pattern)
            _check_pattern(names, kind, pattern)
            for right in allowed:
                rights.setdefault((kind, right), Names()).add(pattern)
    for right in _allowed(user, "broker"):
        rights.setdefault(("broker", right), Names()).add(BROKER)
    user.finish()
    return rights


def _allowed(section: Section, key: str) -> list[Right]:
    """The rights at a key: a word or a list of words."""
    value: Any = section.anything(key)
    if value is None and key not in section.present:
        return []
    rights: list[Right] = []
    for word in value if isinstance(value, list) else [value]:
        if word in RIGHTS:
            rights.append(word)
        elif isinstance(word, str):
            section.wrong(f"there is no right {word!r}: {suggestion(word, RIGHTS)}", key)
        else:
            section.wrong(f"must be {_NOUN}, not {value!r}", key)
    return rights


def _check_pattern(section: Section, kind: str, pattern: str) -> None:
    name = pattern.removesuffix("*")
    try:
        if "*" in name:
            section.wrong("'*' can only be at the end", pattern)
        elif name and (name == pattern or name != RESERVED_PREFIX):
            check_name(kind, name, internal=True)
    except HeadwaterError as error:
        section.wrong(str(error), pattern)
