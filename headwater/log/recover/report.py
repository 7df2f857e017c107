"""The reports of recovery: damage by name, and everything that was adopted, cut or made anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Damage:
    """Records that were acknowledged and can no longer be read: `offset` up to, and without, `next_offset`."""

    file: Path
    position: int
    offset: int
    next_offset: int
    reason: str


OnDamage = Callable[[Damage], None]
"""Called for each damaged stretch that a reader passes over."""


@dataclass(slots=True)
class RecoveryReport:
    """The findings and the work of one recovery."""

    partition: Path
    adopted_records: int = 0
    """Records that a dead writer had written whole but not published: they are in the log now."""
    cut_bytes: int = 0
    """Bytes of an unfinished append, removed. None of it had been acknowledged."""
    dropped_records: int = 0
    """Records given up because a sync had failed. None of them had been acknowledged as durable."""
    rebuilt: list[str] = field(default_factory=list)
    """Files made anew from the log because they were missing or damaged."""
    damage: list[Damage] = field(default_factory=list)
    strangers: list[Path] = field(default_factory=list)
    """Files that look like segments but do not belong to this log: left alone and ignored."""
    truncated_to: int | None = None
    """The offset that a truncation was carried out to."""
    poisoned: bool = False
    """True if a sync had failed; the log goes on in a new segment."""

    @property
    def clean(self) -> bool:
        """True if there was nothing to do."""
        return not (
            self.adopted_records
            or self.cut_bytes
            or self.dropped_records
            or self.rebuilt
            or self.damage
            or self.strangers
            or self.truncated_to is not None
            or self.poisoned
        )

    def __str__(self) -> str:
        parts = [
            f"adopted {self.adopted_records} records" if self.adopted_records else "",
            f"cut {self.cut_bytes} bytes of an unfinished append" if self.cut_bytes else "",
            f"dropped {self.dropped_records} records after a failed sync" if self.dropped_records else "",
            f"rebuilt {', '.join(self.rebuilt)}" if self.rebuilt else "",
            f"truncated to {self.truncated_to}" if self.truncated_to is not None else "",
            *(f"offsets {d.offset} to {d.next_offset - 1} are lost: {d.reason}" for d in self.damage),
            *(f"ignored {path.name}" for path in self.strangers),
        ]
        return f"{self.partition}: {'; '.join(part for part in parts if part) or 'clean'}"
