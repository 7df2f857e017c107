"""A violation: one promise that was not kept, named by its kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The ways in which a log can break its promise."""

    LOST_WRITE = "lost write"
    """Acknowledged, and not there."""

    DUPLICATE = "duplicate"
    """Sent once, and there twice."""

    REORDERED = "reordered"
    """Read in another order than its producer sent it."""

    SKIPPED_BY_POLL = "skipped by poll"
    """In the log, and passed over by a consumer that went on behind it."""

    READ_WENT_BACK = "read went back"
    """Acknowledged, or read by someone, and not shown to a read that began afterwards."""

    POSITION_MOVED_BACK = "position moved back"
    """A committed position is now lower than it was."""

    UNSEEN = "unseen"
    """Read, and never sent by anyone."""

    CAME_BACK = "came back"
    """Deleted, and there again."""

    DIVERGED = "diverged"
    """Another record at the same offset, or none, on another replica or for another reader."""

    SERVED_DAMAGE = "served damage"
    """Handed to a reader although its bytes are not what was written."""

    BLOCKED = "blocked"
    """A process that should have gone on was held up by another one's fault."""

    FALSE_SUCCESS = "false success"
    """Reported as done, and not done."""

    CRASH = "crash"
    """An error that no promise allows, raised by the log or by the proof itself."""

    HANG = "hang"
    """A run that did not end in its time."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One finding: `detail` says which record, offset or process, for whoever has to find the cause."""

    kind: Kind
    detail: str
    traceback: str | None = None

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}"
