"""Known damage: each stretch that recovery or a reader has met, kept in a file and counted in the state, for everyone.

Readers take no lock to read. One that meets damage notes it if the partition's lock is free, and otherwise a little
later. Meeting the same damage again, in whatever process and from whatever offset, changes nothing.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Final, Protocol

from headwater.log.delayed_calls import DelayedCalls
from headwater.log.files.disk import Disk, read_plain
from headwater.log.recover.report import Damage

DAMAGE_FILE: Final = "damage.json"
_KEPT: Final = 1000
"""The most stretches that the file keeps: the newest ones."""
_AGAIN: Final = 0.5
"""The pause before the lock is tried again. Seconds."""


def read_damage(directory: Path) -> list[Damage]:
    """Return the known damage of a partition, by offset; nothing if the file itself is damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads(read_plain(directory / DAMAGE_FILE))
        return [
            Damage(
                directory / str(entry["file"]),
                int(entry["position"]),
                int(entry["offset"]),
                int(entry["next_offset"]),
                str(entry["reason"]),
            )
            for entry in document
        ]
    return []


def write_damage(disk: Disk, directory: Path, known: list[Damage]) -> None:
    """Keep what is known. The lock is held. A full disk, or one that is only read, has to do without."""
    content = [
        {
            "file": "" if damage.file == directory else damage.file.name,
            "position": damage.position,
            "offset": damage.offset,
            "next_offset": damage.next_offset,
            "reason": damage.reason,
        }
        for damage in known[-_KEPT:]
    ]
    with suppress(OSError):
        disk.replace(directory / DAMAGE_FILE, json.dumps(content, indent=1).encode(), sync=False)


_offset = attrgetter("offset")


def with_damage(known: list[Damage], added: Iterable[Damage]) -> tuple[list[Damage], int]:
    """Return the known damage with what is added, and the number of new stretches. Touching ones are merged."""
    merged = list(known)
    new = 0
    for damage in added:
        near = [other for other in merged if other.offset <= damage.next_offset and damage.offset <= other.next_offset]
        new += not near
        first = min((*near, damage), key=_offset)
        end = max(other.next_offset for other in (*near, damage))
        merged = [*(other for other in merged if other not in near), replace(first, next_offset=end)]
    return sorted(merged, key=_offset), new


def without_damage(known: list[Damage], offset: int) -> list[Damage]:
    """Return the known damage below an offset: the others are given out again."""
    return [replace(damage, next_offset=min(damage.next_offset, offset)) for damage in known if damage.offset < offset]


def without_damage_in(known: list[Damage], start: int, end: int) -> list[Damage]:
    """Return the known damage outside of [start, end)."""
    left: list[Damage] = []
    for damage in known:
        if damage.offset < start:
            left.append(replace(damage, next_offset=min(damage.next_offset, start)))
        if damage.next_offset > end:
            left.append(replace(damage, offset=max(damage.offset, end)))
    return left


class Noting(Protocol):
    """An object that notes damage for all processes."""

    def note_damage(self, damage: Damage) -> bool:
        """Note it; False when that has to be tried again later."""


class DamageNotes:
    """The damage that the readers of one handle have met. Thread-safe."""

    def __init__(self, owner: Noting) -> None:
        self._owner = weakref.ref(owner)
        self._met: set[tuple[int, int]] = set()

    def meet(self, damage: Damage) -> None:
        """A reader has met this: note it, once."""
        stretch = (damage.offset, damage.next_offset)
        if stretch not in self._met:
            self._met.add(stretch)
            self._note(damage)

    def forget(self, start: int, end: int) -> None:
        """Note damage in [start, end) again when a reader meets it again."""
        self._met = {stretch for stretch in self._met if stretch[1] <= start or end <= stretch[0]}

    def _note(self, damage: Damage) -> None:
        owner = self._owner()
        if owner is not None and not owner.note_damage(damage):
            _LATER.call(_AGAIN, lambda: self._note(damage))


_LATER = DelayedCalls("headwater-damage")
