"""etcd, as far as the protocol uses it: keys with revisions, guarded writes, leases and watches. It never forgets.

Each operation is atomic. That its request or its answer may be lost on the way is the network's doing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.cluster.world import Process, World


class Item(NamedTuple):
    """A key's value, and when it came into being and was last changed."""

    value: Any
    created: int
    changed: int


class Guard(NamedTuple):
    """A condition of a write: the revision at which a key was created or last changed; 0 if the key must not exist."""

    key: str
    created: int | None = None
    changed: int | None = None


class Etcd(Process):
    """The keys."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "etcd")
        self.items: dict[str, Item] = {}
        self.revision = 0
        self._leases: dict[str, float] = {}
        self._watchers: list[tuple[Process, int, Callable[[str, Item | None], None]]] = []
        self.start()
        self.every(0.1, self._expire)

    def write(self, guards: list[Guard], values: dict[str, Any], lease: float | None = None) -> int:
        """Write all or, when a guard does not hold, nothing; the revision, or 0."""
        for guard in guards:
            item = self.items.get(guard.key)
            if guard.created is not None and (item.created if item else 0) != guard.created:
                return 0
            if guard.changed is not None and (item.changed if item else 0) != guard.changed:
                return 0
        self.revision += 1
        for key, value in values.items():
            before = self.items.get(key)
            self.items[key] = Item(value, before.created if before else self.revision, self.revision)
            if lease is not None:
                self._leases[key] = self.world.now + lease
            self._tell(key)
        return self.revision

    def keep_alive(self, key: str, created: int, lease: float) -> bool:
        """Extend the lease of a key if the key is still there and the same one. Return whether it is."""
        item = self.items.get(key)
        if item is None or item.created != created:
            return False
        self._leases[key] = self.world.now + lease
        return True

    def delete(self, key: str) -> None:
        """Remove a key."""
        if self.items.pop(key, None) is not None:
            self._leases.pop(key, None)
            self.revision += 1
            self._tell(key)

    def _expire(self) -> None:
        for key in [key for key, until in self._leases.items() if until < self.world.now]:
            self.world.note(f"etcd: the lease of {key} has ended")
            self.delete(key)

    def watch(self, process: Process, told: Callable[[str, Item | None], None]) -> None:
        """Tell a process of every change from now on, for as long as it lives."""
        self._watchers = [watcher for watcher in self._watchers if watcher[0] is not process]
        self._watchers.append((process, process.life, told))

    def _tell(self, key: str) -> None:
        item = self.items.get(key)
        for watcher in self._watchers:
            self._send(*watcher, key, item)

    def _send(
        self, process: Process, life: int, told: Callable[[str, Item | None], None], key: str, item: Item | None
    ) -> None:
        def tell() -> None:
            if process.life == life:
                told(key, item)

        self.world.send(self.name, process, tell)
