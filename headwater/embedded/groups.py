"""The groups of an embedded store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from headwater.embedded.group import EmbeddedGroup

_Kind = TypeVar("_Kind", bound=EmbeddedGroup)


class OpenGroups(Generic[_Kind]):
    """The coordinators of groups, each opened when it is first asked for. Thread-safe."""

    def __init__(self, open_group: Callable[[str], _Kind]) -> None:
        self._open_group = open_group
        self._mutex = threading.Lock()
        self._groups: dict[str, _Kind] = {}

    def get(self, name: str) -> _Kind:
        """Return the coordinator of a group."""
        with self._mutex:
            group = self._groups.get(name)
            if group is None:
                group = self._groups[name] = self._open_group(name)
            return group

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def names(self) -> list[str]:
        """Return the names of those that are open, sorted."""
        with self._mutex:
            return sorted(self._groups)

    def forget(self, names: Iterable[str]) -> None:
        """Forget groups that nobody used and that were removed."""
        with self._mutex:
            for name in names:
                self._groups.pop(name, None)

    def close(self) -> None:
        """Close all of them; they can be opened again, also as another kind."""
        with self._mutex:
            groups, self._groups = self._groups, {}
        for group in groups.values():
            group.close()
