"""Names of topics and groups: portable, and nothing that a path could be tricked with."""

from __future__ import annotations

import re
from typing import Final

from headwater.core.errors import InvalidName

MAX_NAME: Final = 255
_ALLOWED: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
RESERVED_PREFIX: Final = "__"
"""Names that begin like this belong to Headwater itself."""
GROUPS: Final = "__groups"
"""The place of groups: a directory of this name, or a topic in a cluster."""
WRITERS: Final = "__txn"
"""In a cluster, the topic in which the transactions of writers are decided."""
HISTORY: Final = "__history"
"""The topic with the history of topics' growth and groups' lag."""
_TAKEN: Final = frozenset({"store.lock", "steward.lock", "broker.key", "cluster.json"})
"""Files beside the topics of a directory."""


def check_name(kind: str, name: object, *, internal: bool = False) -> str:
    """The name, if it can be one; raises InvalidName, which says why not."""
    if not isinstance(name, str) or not name:
        raise InvalidName(f"a {kind} needs a name, not {name!r}")
    if len(name) > MAX_NAME:
        raise InvalidName(f"the name of a {kind} has at most {MAX_NAME} characters, not {len(name)}")
    if not _ALLOWED.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot name a {kind}: use letters, digits, '.', '_' and '-', and do not begin with '.'"
        )
    if name in _TAKEN:
        raise InvalidName(f"{name!r} cannot name a {kind}: Headwater has a file of that name")
    if name.startswith(RESERVED_PREFIX) and not internal:
        raise InvalidName(f"{name!r} cannot name a {kind}: names that begin with '__' are reserved")
    return name
