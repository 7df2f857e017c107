"""The topics that a consumer reads, by names or by patterns such as `orders.*`."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from headwater.core.errors import InvalidName
from headwater.core.names import check_name

_WILD = frozenset("*?[")


def is_pattern(name: str) -> bool:
    """Return whether this stands for any number of topics."""
    return not _WILD.isdisjoint(name)


class TopicFilter:
    """Matches topics by exact names and by shell-style patterns; internal topics only by their exact names."""

    def __init__(self, topics: str | Iterable[str]) -> None:
        wanted = [topics] if isinstance(topics, str) else list(topics)
        if not wanted:
            raise InvalidName("name at least one topic, or a pattern such as 'orders.*'")
        self.patterns = [name for name in wanted if isinstance(name, str) and is_pattern(name)]
        self.names = [check_name("topic", name, internal=True) for name in wanted if name not in self.patterns]

    def __call__(self, name: str) -> bool:
        if name in self.names:
            return True
        return not name.startswith("__") and any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)
