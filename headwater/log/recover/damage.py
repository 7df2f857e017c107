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
        found = json.loads(read_plain(directory / DAMAGE_FILE))
        return [
            Damage(
                directory / str(one["file"]),
                int(one["position"]),
                int(one["offset"]),
                int(one["next_offset"]),
                str(one["reason"]),
            )
            for one in found
        ]
    return []


def write_damage(disk: Disk, directory: Path, known: list[Damage]) -> None:
    """Keep what is known. The lock is held. A full disk, or one that is only read, has to do without."""
    content = [
        {
            "file": "" if one.file == directory else one.file.name,
            "position": one.position,
            "offset": one.offset,
            "next_offset": one.next_offset,
            "reason": one.reason,
        }
        for one in known[-_KEPT:]
    ]
    with suppress(OSError):
        disk.replace(directory / DAMAGE_FILE, json.dumps(content, indent=1).encode(), sync=False)


def with_damage(known: list[Damage], found: Iterable[Damage]) -> tuple[list[Damage], int]:
    """Return the known damage with what was found, and the number of new stretches. Touching ones are merged."""
    merged = list(known)
    new = 0
    for damage in found:
        same = [one for one in merged if one.offset <= damage.next_offset and damage.offset <= one.next_offset]
        new += not same
        first = min((*same, damage), key=lambda one: one.offset)
        end = max(one.next_offset for one in (*same, damage))
        merged = [*(one for one in merged if one not in same), replace(first, next_offset=end)]
    return sorted(merged, key=lambda one: one.offset), new


def without_damage(known: list[Damage], offset: int) -> list[Damage]:
    """Return the known damage below an offset: the others are given out again."""
    return [replace(one, next_offset=min(one.next_offset, offset)) for one in known if one.offset < offset]


def without_damage_in(known: list[Damage], start: int, end: int) -> list[Damage]:
    """Return the known damage outside of [start, end)."""
    found: list[Damage] = []
    for one in known:
        if one.offset < start:
            found.append(replace(one, next_offset=min(one.next_offset, start)))
        if one.next_offset > end:
            found.append(replace(one, offset=max(one.offset, end)))
    return found


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
        place = (damage.offset, damage.next_offset)
        if place not in self._met:
            self._met.add(place)
            self._note(damage)

    def forget(self, start: int, end: int) -> None:
        """Note damage in [start, end) again when a reader meets it again."""
        self._met = {one for one in self._met if one[1] <= start or end <= one[0]}

    def _note(self, damage: Damage) -> None:
        owner = self._owner()
        if owner is not None and not owner.note_damage(damage):
            _LATER.call(_AGAIN, lambda: self._note(damage))


_LATER = DelayedCalls("headwater-damage")
