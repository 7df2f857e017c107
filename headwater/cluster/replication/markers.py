"""Delete markers that are gone from a replica's log.

A marker has its grace, and may go then. But a replica that was away has not heard of it, and may have what it deletes:
if it copied the rest from a log that lacks the marker, that would be back, on a replica that may lead one day. So a log
says up to where markers may be gone. A replica that copies it, and is not that far, must have copied everything from
that very log, since what those markers delete was gone there too; else it begins anew. And none may go from it
meanwhile: a state that is drawn anew whenever some have gone, with every start and with every election, shows whether
that is so.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headwater.log.entropy import random_bytes


class Markers(NamedTuple):
    """The delete markers (tombstones) that may be gone from a log."""

    until: int
    """Those before this offset."""
    state: int
    """The state of the log, 0 while some go. A log remembers the state in which it copies another one from the
    beginning; 0 once it has all that lacks markers."""

    def are_going(self, end: int) -> bool:
        """Return whether some go just now that a copy lacks which ends there: then it has to wait."""
        return end < self.until and not self.state


ALL_THERE: Final = Markers(0, 0)


def new_state() -> int:
    """A state that no log was ever in."""
    return int.from_bytes(random_bytes(7)) + 1
